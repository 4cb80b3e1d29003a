"""Rules, made from rows and kept for addresses."""

import os
import shutil

import pytest

from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.unwind import rules as rules_module
from otel_gpu.stacks.unwind.frame_steps import AARCH64, X86_64
from otel_gpu.stacks.unwind.rules import (
    BY_FRAME_POINTER,
    BY_STACK_POINTER,
    FRAME_RECORD,
    GENERAL,
    NO_CODE,
    OUTERMOST,
    Rules,
    UnwindRule,
)
from tests.unit.stacks.stack_captures import gcc

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the library")

SOURCE = """
__asm__(".section .text.here, \\"ax\\", @progbits\\n.skip 64, 0x90\\n.globl here\\nhere:\\n"
        ".cfi_startproc\\npush %rbp\\n.cfi_def_cfa_offset 16\\n.cfi_offset rbp, -16\\n"
        "mov %rsp, %rbp\\n.cfi_def_cfa_register rbp\\nnop\\n"
        ".cfi_def_cfa r10, 0\\nnop\\n.cfi_def_cfa rsp, 12\\nnop\\n"
        ".cfi_def_cfa rsp, 16\\n.cfi_register rbp, r9\\nnop\\n"
        ".cfi_offset rbp, -16\\n.cfi_undefined rip\\nnop\\n.cfi_endproc\\n"
        ".cfi_startproc\\n.cfi_signal_frame\\nnop\\n.cfi_endproc\\n.previous\\n");
int data = 7;
"""


def image_of(folder, name="library.so"):
    path = folder / name
    gcc(SOURCE, path, "-O2", "-fPIC", "-shared")
    return ElfImage(os.open(path, os.O_RDONLY))


def mapping(image):
    return Mapping(0, 1 << 32, 0, "/library.so", image, 0)


@pytest.fixture
def image(tmp_path):
    return image_of(tmp_path)


@pytest.fixture
def here(image):
    content = bytes(image.read(0, 1 << 20))
    for segment in image.segments:
        at = bytes(image.read(segment.address, 1 << 20)).find(b"\x55\x48\x89\xe5\x90\x90\x90")
        if at >= 0:
            return segment.address + at
    raise AssertionError(content)


@pytest.mark.parametrize(
    ("offset", "rule"),
    [
        (0, UnwindRule(BY_STACK_POINTER, 1, -1, 0)),
        (1, UnwindRule(BY_STACK_POINTER, 2, -1, -2)),
        (3, UnwindRule(BY_STACK_POINTER, 2, -1, -2)),
        (4, UnwindRule(BY_FRAME_POINTER, 2, -1, -2)),
        pytest.param(5, UnwindRule(GENERAL), id="another register"),
        pytest.param(6, UnwindRule(GENERAL), id="not whole words"),
        pytest.param(7, UnwindRule(GENERAL), id="a frame pointer that is not in memory"),
        (8, UnwindRule(OUTERMOST)),
        pytest.param(9, UnwindRule(GENERAL), id="a signal frame"),
        pytest.param(-32, UnwindRule(FRAME_RECORD), id="code without a row"),
    ],
)
def test_a_rule_is_what_most_rows_say(image, here, offset, rule):
    """In words: the CFA from the register, the rest from the CFA; the general way otherwise."""
    rules = Rules(X86_64).of(mapping(image))

    assert rules[here + offset] == rule


def test_what_is_no_code_leads_nowhere(image):
    """Data, and what is not in the file; all of it, if the file is for another processor."""
    data = next(s.address for s in image.segments if not s.executable)

    assert Rules(X86_64).of(mapping(image))[data] == UnwindRule(NO_CODE)
    assert Rules(X86_64).of(mapping(image))[1 << 40] == UnwindRule(NO_CODE)
    code = next(s.address for s in image.segments if s.executable)
    assert Rules(AARCH64).of(mapping(image))[code] == UnwindRule(NO_CODE)


def test_memory_that_is_no_file_has_one_rule():
    """Frame pointers in generated code; nothing where uretprobes return to."""
    rules = Rules(X86_64)
    generated = rules.of(Mapping(0, 4096, 0, "", None, 0))
    probes = rules.of(Mapping(0, 4096, 0, "[uprobes]", None, 0))

    assert (generated[5], generated.row(5), generated.follows_call(5)) == (
        UnwindRule(FRAME_RECORD), None, True
    )  # fmt: skip
    assert (probes[5], probes.row(5), probes.follows_call(5)) == (UnwindRule(NO_CODE), None, False)
    assert rules.used == len(generated) == len(probes) == 0


def test_the_same_rule_is_kept_once(image, here):
    """Addresses are many, rules are few."""
    rules = Rules(X86_64).of(mapping(image))

    assert rules[here + 1] is rules[here + 2] is rules[here + 3]


@pytest.mark.parametrize("order", [1, -1])
def test_rules_of_rows_that_were_met_are_those_of_their_addresses(image, here, order):
    """Whichever address of a row comes first."""
    known = Rules(X86_64).of(mapping(image))

    for address in range(here - 8, here + 16)[::order]:
        assert known[address] == Rules(X86_64).of(mapping(image))[address]


def test_rules_do_not_grow_without_end(monkeypatch, tmp_path, image, here):
    """Past a bound all are forgotten, between two walks; the same goes for files."""
    monkeypatch.setattr(rules_module, "_MAX_RULES", 84)
    monkeypatch.setattr(rules_module, "_MAX_ELF_FILES", 2)
    rules = Rules(X86_64)
    of_file = rules.of(mapping(image))
    for address in range(here, here + 12):
        of_file[address]
    of_file.row(here)
    assert rules.used == 84
    rules.begin()
    assert rules.of(mapping(image)) is of_file
    of_file[here + 12]
    rules.begin()
    assert rules.used == 0
    assert rules.of(mapping(image)) is not of_file

    others = [image_of(tmp_path, f"{number}.so") for number in range(2)]
    kept = rules.of(mapping(others[0]))
    rules.begin()
    assert rules.of(mapping(others[0])) is kept
    rules.of(mapping(others[1]))
    rules.begin()
    assert rules.of(mapping(others[0])) is not kept


def test_a_walk_reads_so_much_and_no_more(monkeypatch, image, here):
    """What is left out is not remembered as if there were nothing."""
    monkeypatch.setattr(rules_module, "_MAX_WORK", 100)
    rules = Rules(X86_64)
    of_file = rules.of(mapping(image))
    read = [of_file[address].kind for address in range(here, here + 5)]

    assert read[0] == BY_STACK_POINTER
    assert read[-1] == NO_CODE
    assert of_file.row(here) is None
    rules.begin()
    assert of_file[here + 4] == UnwindRule(BY_FRAME_POINTER, 2, -1, -2)
    assert of_file.row(here) is not None


def test_rules_of_files_that_were_closed_are_forgotten(tmp_path, here):
    """Each short program opens the files anew that no other one maps: what is kept stays as small."""
    rules = Rules(X86_64)
    for number in range(20):
        image = image_of(tmp_path, f"{number}.so")
        assert rules.of(mapping(image))[here].kind == BY_STACK_POINTER
        rules.of(mapping(image)).row(here)
        used = rules.used
        image.close()

    assert len(rules._files) == 1
    assert used == rules.used == rules._files[image].weight
