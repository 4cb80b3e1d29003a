"""Where in a function of arm64 a probe is safe: by the words that real libraries begin with."""

import struct

import pytest

from otel_gpu.capture.probes import arm64_sites
from otel_gpu.capture.probes.arm64_sites import choose_arm64_site
from otel_gpu.capture.probes.probe_sites import ENTRY, SITE_BYTES, Site, SiteClass

EMULATED, SINGLE_STEPPED = SiteClass.EMULATED, SiteClass.SINGLE_STEPPED
RET = 0xD65F03C0
NOP = 0xD503201F
BTI_C = 0xD503245F
PACIASP = 0xD503233F
ADRP_X16 = 0xD000C310
PUSH_FRAME = 0xA9B17BFD  # stp x29, x30, [sp, #-0xf0]!
MAKE_ROOM = 0xD10503FF  # sub sp, sp, #0x140
MOV_X9 = 0xD2800029  # mov x9, #1
MOV_X0 = 0xD2800020
# The driver's, 535.261.03: adrp, mov, movk, ldr, cmp, b.eq, adrp, ldr, mov, br, mov, ret.
CU_INIT = (
    *(0xB000CA82, 0x52974001, 0x72A64381, 0xB9499842, 0x6B01005F, 0x540000A0),
    *(0xD000C301, 0xF942FC21, 0xAA0103F0, 0xD61F0200, 0x52800080, RET),
)
# The runtime's, 13.5.
CUDA_GET_LAST_ERROR = (
    *(0xA9B37BFD, 0x910003FD, 0xB9004FFF, 0xF9002BFF, 0x97FF740A, 0x52800081, 0xB4000940),
)
# Of libibverbs 44 and glibc 2.36.
IBV_CLOSE_DEVICE = (
    *(0xA9BF7BFD, 0x910003FD, 0xF8590001, 0xF940A821),
    *(0xD63F0020, 0x52800000, 0xA8C17BFD, RET),
)
FORK = (MAKE_ROOM, 0x90000761, 0x90000720, 0xF9473400, 0xA90E7BFD, 0x910383FD)
GETPID = (NOP, 0xD2801588, 0xD4000001, RET)
POSIX_SPAWN = (0x52800006, 0x140001B3)


def site(*words, **more):
    return choose_arm64_site(struct.pack(f"<{len(words)}I", *words), **more)


@pytest.fixture(params=[True, False], ids=["Linux 6.13", "Linux 6.12"])
def simulates_nops(request, monkeypatch):
    """Whether the kernel does a nop itself."""
    monkeypatch.setattr(arm64_sites, "is_kernel_since", lambda version: request.param)
    choose_arm64_site.cache_clear()
    yield request.param
    choose_arm64_site.cache_clear()


@pytest.mark.parametrize(
    ("words", "instruction", "kind"),
    [
        pytest.param(CU_INIT, "adrp", EMULATED, id="cuInit"),
        pytest.param(CUDA_GET_LAST_ERROR, "stp", SINGLE_STEPPED, id="cudaGetLastError"),
        pytest.param((0x17FFC494,), "b", EMULATED, id="ibv_reg_mr_iova"),
        pytest.param(IBV_CLOSE_DEVICE, "stp", SINGLE_STEPPED, id="ibv_close_device"),
        pytest.param((RET,), "ret", EMULATED, id="_dl_debug_state"),
        pytest.param(POSIX_SPAWN, "mov", SINGLE_STEPPED, id="posix_spawn"),
        pytest.param((PACIASP, PUSH_FRAME, RET), "paciasp", SINGLE_STEPPED, id="signed"),
    ],
)
def test_starts_of_real_libraries(words, instruction, kind):
    """All of the driver's begin with what every kernel simulates, and none of the runtime's."""
    assert site(*words) == Site(0, instruction, kind)


@pytest.mark.parametrize(
    ("word", "instruction"),
    [
        (0x14000002, "b"),
        (0x94000002, "bl"),
        (0x54000040, "b.cond"),
        (0xB4000940, "cbz"),
        (0x35000140, "cbnz"),
        (0x36000040, "tbz"),
        (0xB7F80040, "tbnz"),
        (0xD61F0200, "br"),
        (0xD63F0020, "blr"),
        (RET, "ret"),
        (0x10000041, "adr"),
        (0xF000C301, "adrp"),
    ],
)
def test_what_all_kernels_simulate(word, instruction):
    assert site(word, RET, RET) == Site(0, instruction, EMULATED)


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(0xD65F0BFF, id="retaa"),
        pytest.param(0xD61F081F, id="braaz"),
        pytest.param(0x54000050, id="bc.cond"),
        pytest.param(0xD4000001, id="svc"),
        pytest.param(0xD4200000, id="brk"),
        pytest.param(0xD503203F, id="yield"),
        pytest.param(0, id="udf"),
    ],
)
def test_what_looks_alike_is_not_simulated(word):
    """Signed returns and jumps, other hints, traps."""
    assert site(word, RET).kind == SINGLE_STEPPED


@pytest.mark.parametrize("word", [0x58000040, 0x18000041, 0x98000042, 0x1C000040, 0xC85F7C20])
def test_literal_and_exclusive_loads_never_carry_a_probe(word):
    """Kernels refuse them, or read from the wrong place."""
    assert site(word, RET).kind == SiteClass.REFUSED


def test_a_nop_depends_on_the_kernel(simulates_nops):
    """As glibc's functions begin that make a system call."""
    kind = EMULATED if simulates_nops else SINGLE_STEPPED

    assert site(*GETPID) == Site(0, "nop", kind)
    # It is skipped where it is not simulated.
    assert site(NOP, ADRP_X16, RET).offset == (0 if simulates_nops else 4)


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        pytest.param((BTI_C, ADRP_X16, RET), 4, id="bti"),
        pytest.param((BTI_C, PUSH_FRAME, RET), 0, id="bti, frame"),
        pytest.param((MOV_X9, 0x7100001F, 0xB4000040, RET, RET), 8, id="free register, flags"),
        pytest.param((MOV_X0, ADRP_X16, RET), 0, id="writes an argument"),
        pytest.param((0x9100001F, ADRP_X16, RET), 0, id="writes the stack pointer"),
        pytest.param((0xAA0003FE, ADRP_X16, RET), 0, id="writes the return address"),
        pytest.param((0xF9400009, ADRP_X16, RET), 0, id="reads what it is given"),
        pytest.param((PUSH_FRAME, ADRP_X16, RET), 0, id="saves a frame"),
        pytest.param((PACIASP, ADRP_X16, RET), 0, id="signs the return address"),
        pytest.param((*(MOV_X9,) * 6, ADRP_X16, RET), 24, id="24 bytes"),
        pytest.param((*(MOV_X9,) * 7, ADRP_X16, RET), 0, id="28 bytes"),
    ],
)
def test_the_first_simulated_instruction_behind_the_start_is_the_site(words, offset):
    """Where arguments, stack and the return address are as at the entry."""
    found = site(*words)

    assert (found.offset, found.kind) == (offset, EMULATED if offset else SINGLE_STEPPED)
    assert site(*words, behind_entry=False).offset == 0


@pytest.mark.parametrize(
    "words",
    [
        # 4: adrp; 8: cbnz x9, 4
        pytest.param((MOV_X9, ADRP_X16, 0xB5FFFFE9, RET), id="a loop around it"),
        pytest.param((MOV_X9, ADRP_X16, 0x17FFFFFF, RET), id="a jump to it"),
        pytest.param((MOV_X9, ADRP_X16, 0xD61F0200), id="through a register"),
        pytest.param((MOV_X9, ADRP_X16, 0xD71F0A11), id="through a signed one"),
        pytest.param((MOV_X9, ADRP_X16, 0x54008000, RET), id="a part that lies elsewhere"),
    ],
)
def test_what_may_be_passed_more_than_once_in_a_call_is_no_site(words):
    """Each turn of a loop would be a call."""
    assert site(*words).offset == 0


def test_jumps_to_the_start_and_calls_of_others_are_no_loops():
    assert site(MOV_X9, ADRP_X16, 0x17FFFFFE, RET).offset == 4
    assert site(MOV_X9, ADRP_X16, 0x97FF740A, RET).offset == 4


def test_probes_that_read_no_stack_pass_a_frame():
    """As of glibc's fork; a return probe would take another address for the caller's."""
    assert site(*FORK).offset == 0
    assert site(*FORK, reads_stack=False) == Site(4, "adrp", EMULATED)
    words = (PACIASP, PUSH_FRAME, 0x910043FD, 0xF90013F5, 0x6DBF27E8, ADRP_X16, RET)
    assert site(*words, reads_stack=False) == Site(20, "adrp", EMULATED)


@pytest.mark.parametrize(("starts", "offset"), [((), 4), ((4,), 0), ((0,), 4), ((8,), 4)])
def test_nothing_is_skipped_that_another_symbol_begins_with(starts, offset):
    assert site(BTI_C, ADRP_X16, RET, later_starts=starts).offset == offset


@pytest.mark.parametrize("code", [b"", b"\0", b"\xc0\x03\x5f"])
def test_what_is_no_whole_instruction_is_not_decoded(code):
    assert choose_arm64_site(code) == ENTRY


def test_functions_of_any_words_have_a_site_within_bounds():
    for seed in range(2_000):
        words = [(seed * 2_654_435_761 + n * 40_503 * (seed + n)) & 0xFFFFFFFF for n in range(9)]
        assert site(*words).offset in range(0, SITE_BYTES + 1, 4)
