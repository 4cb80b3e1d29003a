"""Where in a function its probe goes: by bytes, as compilers and others make them."""

import os
import platform

import pytest

from otel_gpu.capture.probes import probe_sites
from otel_gpu.capture.probes.probe_sites import (
    ENTRY,
    MAX_FUNCTION_BYTES,
    Site,
    SiteClass,
    choose_site,
    emulated,
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the decoder is there on x86-64"
)

EMULATED, SINGLE_STEPPED = SiteClass.EMULATED, SiteClass.SINGLE_STEPPED
CMP = "81 3d 11 22 33 44 00 ba 1c 32"  # cmpl $0x321cba00, x(%rip)
JMP_AWAY = "ff 25 11 22 33 44"  # jmp *x(%rip)
MOV_5 = "b8 05 00 00 00"  # mov $5, %eax
RET = "31 c0 c3"  # xor %eax, %eax; ret
PUSH = "55"


def site(code, **more):
    return choose_site(bytes.fromhex(code), **more)


@pytest.fixture(params=[True, False], ids=["Linux 6.18", "Linux 5.15"])
def long_nops(request, monkeypatch):
    """Whether the kernel emulates nops of several bytes."""
    monkeypatch.setattr(probe_sites, "is_kernel_since", lambda _version: request.param)
    choose_site.cache_clear()
    yield request.param
    choose_site.cache_clear()


@pytest.mark.parametrize(
    ("code", "instruction"),
    [
        ("55", "push"),
        ("41 57", "push"),
        ("90", "nop"),
        ("66 90", "nop"),
        ("eb 00", "jmp"),
        ("e9 00 00 00 00", "jmp"),
        ("e8 00 00 00 00", "call"),
        ("74 10", "je"),
        ("0f 85 00 01 00 00", "jne"),
    ],
)
def test_what_all_kernels_emulate_is_probed_where_it_is(code, instruction):
    """Also a jump to the next instruction, and a call of it."""
    assert site(f"{code} {RET}") == Site(0, instruction, EMULATED)


@pytest.mark.parametrize(
    ("code", "instruction"),
    [
        ("41 90", "xchg"),
        ("f3 0f 1e fa", "endbr64"),
        ("68 01 00 00 00", "push"),
        ("ff 35 11 22 33 44", "push"),
        ("c3", "ret"),
        ("66 e9 00 00", "jmp"),
    ],
)
def test_what_looks_alike_is_not_emulated(code, instruction):
    """Registers behind a prefix, constants, memory, and jumps of 16 bits."""
    assert emulated(bytes.fromhex(code)) == ""
    assert site(code).offset == 0
    assert site(code).kind != EMULATED


def test_nops_of_several_bytes_depend_on_the_kernel(long_nops):
    code = "31 c0 0f 1f 44 00 00 55 c3"

    assert site(code) == (Site(2, "nop", EMULATED) if long_nops else Site(7, "push", EMULATED))


@pytest.mark.parametrize(
    ("release", "are_emulated"),
    [
        ("6.18.44-fc-v769", True),
        ("7.0", True),
        ("6.17.9", False),
        ("5.15.0-91-generic", False),
        ("odd", False),
    ],
)
def test_the_version_of_the_kernel_says_what_it_emulates(monkeypatch, release, are_emulated):
    name = os.uname_result(("Linux", "host", release, "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: name)
    probe_sites.is_kernel_since.cache_clear()

    assert probe_sites.is_kernel_since((6, 18)) == are_emulated

    monkeypatch.undo()
    probe_sites.is_kernel_since.cache_clear()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(f"{CMP} 74 06 {JMP_AWAY} {RET}", (10, "je"), id="libcuda"),
        pytest.param(f"48 8b 05 11 22 33 44 41 56 {RET}", (7, "push"), id="libc10"),
        pytest.param(f"f3 0f 1e fa {PUSH} {RET}", (4, "push"), id="endbr64"),
        pytest.param(f"31 c0 eb 00 {RET}", (2, "jmp"), id="jump to the next instruction"),
        pytest.param(f"64 48 8b 04 25 28 00 00 00 {PUSH} c3", (9, "push"), id="stack protector"),
        pytest.param(f"48 89 7c 24 f8 {PUSH} c3", (5, "push"), id="saves an argument"),
        pytest.param(
            f"{MOV_5} {MOV_5} {MOV_5} {MOV_5} 66 2e 90 {PUSH} c3", (23, "push"), id="24 bytes"
        ),
    ],
)
def test_the_first_emulated_instruction_behind_the_start_is_the_site(code, expected):
    """Where arguments and stack are as at the entry."""
    assert site(code) == Site(*expected, EMULATED)


@pytest.mark.parametrize(
    ("code", "instruction"),
    [
        pytest.param(RET, "xor", id="short"),
        pytest.param(f"31 ff {PUSH} c3", "xor", id="writes an argument"),
        pytest.param(f"40 b7 01 {PUSH} c3", "mov", id="writes a part of one"),
        pytest.param(f"41 89 c1 {PUSH} c3", "mov", id="writes the sixth"),
        pytest.param(f"0f 44 f8 {PUSH} c3", "cmove", id="may write one"),
        pytest.param(f"89 e5 {PUSH} c3", "mov", id="writes the frame pointer"),
        pytest.param(f"48 83 ec 18 {PUSH} c3", "sub", id="moves the stack"),
        pytest.param(f"68 01 00 00 00 {PUSH} c3", "push", id="pushes a constant"),
        pytest.param(f"48 8b 07 {PUSH} c3", "mov", id="reads what it is given"),
        pytest.param(f"48 8b 04 c5 00 00 00 00 {PUSH} c3", "mov", id="reads a table"),
        pytest.param(f"f3 a4 {PUSH} c3", "rep", id="repeats"),
        pytest.param(f"0f 05 {PUSH} c3", "syscall", id="system call"),
        pytest.param(f"{MOV_5 * 5} {PUSH} c3", "mov", id="25 bytes"),
        pytest.param(f"cc {PUSH} c3", "int", id="another's breakpoint"),
        pytest.param(f"31 c0 cc {PUSH} c3", "xor", id="a breakpoint behind the start"),
    ],
)
def test_a_probe_stays_at_the_entry_where_another_place_shows_something_else(code, instruction):
    """It is single-stepped there, and known to be."""
    assert site(code) == Site(0, instruction, SINGLE_STEPPED)


@pytest.mark.parametrize(
    "code",
    [
        # 5: dec %eax; 7: jnz 5
        pytest.param(f"{MOV_5} ff c8 75 fc c3", id="the site is the end of a loop"),
        # 5: test; 7: je out; dec; jmp 5
        pytest.param(f"{MOV_5} 85 c0 74 04 ff c8 eb f8 c3", id="the site is the head of a loop"),
        pytest.param(f"{CMP} 74 00 {RET[:-3]} 0f 85 f2 ff ff ff c3", id="a far branch back"),
        pytest.param(f"{MOV_5} 74 01 90 ff e0", id="through a register"),
        pytest.param(f"{MOV_5} 74 01 90 ff 24 c5 00 00 00 00", id="through a table"),
        pytest.param(f"{MOV_5} 0f 84 00 10 00 00 c3", id="a part that lies elsewhere"),
    ],
)
def test_what_may_be_passed_more_than_once_in_a_call_is_no_site(code):
    """Each turn of a loop would be a call."""
    assert site(code).offset == 0


@pytest.mark.parametrize("end", ["ff e0", "ff 24 c5 00 00 00 00", "0f 84 00 10 00 00 c3"])
def test_a_push_is_in_no_loop(end):
    """Wherever the function jumps to; but not where it is seen to jump back."""
    assert site(f"31 c0 {PUSH} {end}") == Site(2, "push", EMULATED)
    assert site(f"31 c0 {PUSH} 5d eb fa") == Site(2, "push", EMULATED)
    assert site(f"31 c0 31 c0 {PUSH} 5d eb fa").offset == 0


def test_a_loop_to_the_very_start_is_as_at_the_entry():
    """Each turn passes both."""
    assert site(f"{CMP} 74 f4 {RET}") == Site(10, "je", EMULATED)


@pytest.mark.parametrize(
    ("starts", "offset"), [((), 4), ((4,), 0), ((2,), 0), ((5,), 4), ((0,), 4)]
)
def test_nothing_is_skipped_that_another_symbol_begins_with(starts, offset):
    """Its callers would be counted as this one's."""
    assert site(f"f3 0f 1e fa {PUSH} {RET}", later_starts=starts).offset == offset


def test_probes_that_read_no_stack_pass_what_makes_room_there():
    code = f"48 83 ec 18 eb 00 {RET}"

    assert site(code).offset == 0
    assert site(code, reads_stack=False) == Site(4, "jmp", EMULATED)
    assert site(f"48 29 c4 eb 00 {RET}", reads_stack=False).offset == 0
    # A constant that is pushed, and what another function keeps for this one to push.
    assert site(f"6a 01 68 01 00 00 00 {PUSH} c3", reads_stack=False).offset == 7
    assert site(f"ff 37 {PUSH} c3", reads_stack=False).offset == 0


@pytest.mark.parametrize("code", ["", "06", "81 3d 00", f"{CMP} 74 06 06", f"{CMP} 74 00 0f"])
def test_what_is_not_decoded_as_a_whole_is_probed_at_its_entry(code):
    """Cut, or no instructions: a size that is wrong says nothing about the rest."""
    assert site(code) == ENTRY


def test_functions_of_any_bytes_have_a_site_within_bounds():
    """The decoder reads what is no code at all, of any size."""
    for seed in range(256):
        code = bytes((seed * 7 + n * n) % 256 for n in range(seed * 8))
        found = choose_site(code)
        assert 0 <= found.offset <= probe_sites.SITE_BYTES
        assert found.kind != EMULATED or emulated(code[found.offset :])
    assert len(code) < MAX_FUNCTION_BYTES
