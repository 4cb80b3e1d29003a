"""Programs of call frame information, by hand: what compilers on other processors write too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.unwind.cfi_rows import (
    AT_EXPRESSION,
    AT_OFFSET,
    EXPRESSION,
    OFFSET,
    REGISTER,
    UNDEFINED,
    Common,
    Saved,
)
from otel_gpu.stacks.unwind.cfi_rows import row_at as row_of

# def_cfa rsp + 8; offset ra, 1
X86_64 = "0c 07 08 90 01"


def row_at(distance, program, begin=X86_64, code=1, data=-8):
    common = Common(code, data, 16, 0, False, False, bytes.fromhex(begin))
    return row_of(common, bytes.fromhex(program), 0x1000, 0x2000, 0x1000 + distance)


@pytest.mark.parametrize(
    ("distance", "cfa", "saved"),
    [
        (0, (7, 8, b""), {}),
        (1, (7, 16, b""), {6: -16}),
        (3, (7, 16, b""), {6: -16}),
        (4, (6, 16, b""), {6: -16}),
        (99, (6, 16, b""), {6: -16}),
    ],
)
def test_a_row_holds_until_the_next(distance, cfa, saved):
    """push %rbp; mov %rsp, %rbp: a row from the end of each instruction on."""
    row = row_at(distance, "41 0e 10 86 02 43 0d 06")

    assert row[:3] == cfa
    assert row.saved == {
        16: Saved(AT_OFFSET, -8),
        **{number: Saved(AT_OFFSET, offset) for number, offset in saved.items()},
    }


@pytest.mark.parametrize(
    ("distance", "extent"), [(0, (0, 1)), (1, (1, 4)), (3, (1, 4)), (4, (4, 4096)), (99, (4, 4096))]
)
def test_a_row_says_how_far_it_holds(distance, extent):
    """From the instruction that made it so to the next one that changes it, or to the end."""
    row = row_at(distance, "41 0e 10 86 02 43 0d 06")

    assert (row.begin - 0x1000, row.end - 0x1000) == extent


@pytest.mark.parametrize(
    ("program", "cfa"),
    [
        ("02 10 0e 18", (7, 24)),
        ("03 10 00 0e 18", (7, 24)),
        ("04 10 00 00 00 0e 18", (7, 24)),
        ("50 0c 06 10", (6, 16)),
        ("50 12 06 7e", (6, 16)),
        ("50 13 7d", (7, 24)),
        ("50 0d 06", (6, 8)),
    ],
)
def test_each_way_to_say_the_cfa(program, cfa):
    """Distances of one, two and four bytes; offsets as they are and scaled."""
    before, after = row_at(15, program), row_at(16, program)

    assert before[:3] == (7, 8, b"")
    assert after[:3] == (*cfa, b"")


@pytest.mark.parametrize(
    ("program", "saved"),
    [
        ("83 03", Saved(AT_OFFSET, -24)),
        ("05 03 03", Saved(AT_OFFSET, -24)),
        ("11 03 7d", Saved(AT_OFFSET, 24)),
        ("14 03 02", Saved(OFFSET, -16)),
        ("15 03 7e", Saved(OFFSET, 16)),
        ("10 03 02 76 78", Saved(AT_EXPRESSION, 0, b"\x76\x78")),
        ("16 03 02 76 78", Saved(EXPRESSION, 0, b"\x76\x78")),
        ("09 03 08", Saved(REGISTER, 8)),
        ("07 03", Saved(UNDEFINED)),
        ("83 03 08 03", None),
        ("83 03 c3", None),
        ("83 03 06 03", None),
        ("83 03 0a 83 04 0b", Saved(AT_OFFSET, -24)),
        ("83 03 00 2e 10 2d 2c", Saved(AT_OFFSET, -24)),
    ],
)
def test_each_way_to_save_a_register(program, saved):
    """In memory, in a register, as an expression, nowhere; taken back; put aside."""
    assert row_at(0, program).saved.get(3) == saved


def test_a_register_is_restored_to_what_all_functions_begin_with():
    """Not to what it was before."""
    row = row_at(0, "90 05 d0 83 02")

    assert row.saved == {16: Saved(AT_OFFSET, -8), 3: Saved(AT_OFFSET, -16)}


def test_a_row_that_was_put_aside_comes_back_with_its_cfa():
    """As after an early return in the middle of a function."""
    program = "41 0e 10 83 02 0a 42 0e 08 c3 42 0b"

    assert row_at(1, program)[:6] == row_at(5, program)[:6]
    assert row_at(3, program)[:4] == (7, 8, b"", {16: Saved(AT_OFFSET, -8)})


def test_registers_that_nobody_follows_are_left_out():
    """Windows binaries' vector registers, AArch64's, and whatever a file makes up."""
    assert row_at(0, "05 21 03 05 ff ff 7f 03").saved == {16: Saved(AT_OFFSET, -8)}


# def_cfa sp + 0
AARCH64 = "0c 1f 00"


@pytest.mark.parametrize(
    ("distance", "cfa", "saved"),
    [
        (0, (31, 0), {}),
        (3, (31, 0), {}),
        (4, (31, 0), {}),
        (8, (31, 48), {29: -48, 30: -40}),
        (16, (31, 48), {29: -48, 30: -40, 19: -32}),
        (36, (31, 0), {}),
    ],
)
def test_aarch64_counts_in_instructions(distance, cfa, saved):
    """
    paciasp; stp x29, x30, [sp, #-48]!; str x19; ...; ldp x29, x30, [sp], #48.

    The signature of the return address is announced, and nothing of the row.
    """
    program = "41 2d 41 0e 30 9d 06 9e 05 42 93 04 45 0e 00 dd de d3 2d"
    row = row_at(distance, program, AARCH64, code=4)

    assert row[:3] == (*cfa, b"")
    assert row.saved == {number: Saved(AT_OFFSET, offset) for number, offset in saved.items()}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("01 00", id="an address that is set"),
        pytest.param("1d 00", id="another processor's"),
        pytest.param("2f 03 01", id="of old compilers"),
        pytest.param("3f", id="unknown"),
        pytest.param("0b", id="nothing was put aside"),
        pytest.param("0a " * 65, id="too much is put aside"),
        pytest.param("0f 01 76 0e 08", id="half a rule"),
        pytest.param("0c 07", id="cut short"),
        pytest.param("0f 05 76 00", id="an expression that is cut short"),
        pytest.param("03 01", id="a distance that is cut short"),
        pytest.param("05 " + "ff" * 10 + "01 01", id="a number of 77 bits"),
    ],
)
def test_what_is_no_program_is_refused(program):
    """There is one kind of error for what it says, and one for its end."""
    with pytest.raises((ValueError, IndexError)):
        row_at(0, program)


@given(st.binary(max_size=200), st.integers(0, 1 << 64), st.integers(-(1 << 63), 1 << 63))
def test_no_program_harms(program, code, data):
    """Whatever the bytes: a row, or one of the two errors."""
    common = Common(code, data, 16, 0, False, False, program)
    try:
        row = row_of(common, program, 0, 1 << 65, 1 << 64)
    except (ValueError, IndexError):
        return
    assert len(row.saved) <= 32
