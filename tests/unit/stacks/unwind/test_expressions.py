"""DWARF expressions, by hand and as compilers write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.unwind.expressions import evaluate
from otel_gpu.stacks.unwind.leb128 import sleb128, uleb128

REGISTERS = {6: 0x1000, 7: 0x2000, 16: 0x40B, 31: 0x3000}
MEMORY = {0x0FF8: 0x1111_2222_3333_4444, 0x20A0: 0x5000, 0x1010: 7}


def read(address, size_bytes):
    value = MEMORY.get(address)
    return None if value is None else value & (1 << 8 * size_bytes) - 1


def value(program, *initial):
    return evaluate(bytes.fromhex(program), REGISTERS, read, *initial)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        pytest.param("76 78 06", 0x1111_2222_3333_4444, id="realigned stack: *(rbp - 8)"),
        pytest.param("77 a0 01 06", 0x5000, id="signal frame: *(rsp + 160)"),
        pytest.param("77 08 80 00 3f 1a 3b 2a 33 24 22", 0x2010, id="stub, after its push"),
        pytest.param("76 78 94 02", 0x4444, id="two bytes of memory"),
        pytest.param("76 10 06 23 08", 15, id="*(rbp + 16) + 8"),
    ],
)
def test_what_compilers_write_gives_an_address(program, expected):
    """The expressions that occur in the tables of libraries."""
    assert value(program) == expected


@pytest.mark.parametrize(("place", "expected"), [(0x400, 0x2008), (0x40A, 0x2008), (0x40B, 0x2010)])
def test_a_stub_has_pushed_a_word_from_its_eleventh_byte_on(place, expected):
    """Stubs are 16 bytes long; the fourth and last instruction jumps, the third pushes."""
    program = bytes.fromhex("7708 8000 3f 1a 3b 2a 33 24 22")

    assert evaluate(program, {7: 0x2000, 16: place}, read) == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("30", 0),
        ("4f", 31),
        ("08 ff", 255),
        ("09 ff", -1),
        ("0a fe ff", 0xFFFE),
        ("0b fe ff", -2),
        ("0c fd ff ff ff", 0xFFFF_FFFD),
        ("0d fd ff ff ff", -3),
        ("0e 01 00 00 00 00 00 00 80", 1 << 63 | 1),
        ("0f ff ff ff ff ff ff ff ff", -1),
        ("10 80 01", 128),
        ("11 80 7f", -128),
        ("31 32 12", 2),
        ("31 32 13", 1),
        ("31 32 14", 1),
        ("31 32 33 15 02", 1),
        ("31 32 16", 1),
        ("31 32 33 17", 2),
        ("31 32 33 17 13", 1),
        ("31 32 33 17 13 13", 3),
        ("09 f9 19", 7),
        ("3c 3a 1a", 8),
        ("09 f9 32 1b", -3),
        ("37 32 1b", 3),
        ("35 37 1c", -2),
        ("37 33 1d", 1),
        ("37 33 1e", 21),
        ("37 1f", -7),
        ("37 20", -8),
        ("34 31 21", 5),
        ("34 31 22", 5),
        ("34 23 c8 01", 204),
        ("31 34 24", 16),
        ("31 08 40 24", 0),
        ("09 ff 08 3c 25", 15),
        ("31 08 40 25", 0),
        ("09 f0 32 26", -4),
        ("09 f0 08 50 26", -1),
        ("37 33 27", 4),
        ("31 31 29", 1),
        ("09 ff 31 2a", 0),
        ("32 31 2b", 1),
        ("09 ff 31 2c", 1),
        ("09 ff 31 2d", 1),
        ("31 31 2e", 0),
        ("31 31 28 01 00 32", 1),
        ("31 30 28 01 00 32", 2),
        ("31 2f 01 00 32", 1),
        ("92 1f 08", 0x3008),
        ("31 96", 1),
    ],
)
def test_each_operation(program, expected):
    """Values have 64 bits; comparisons and some of the arithmetic are signed."""
    assert value(program) == expected % (1 << 64)


def test_a_rule_for_a_register_starts_with_the_cfa():
    """It lies on the stack already."""
    assert value("23 10", 0x100) == 0x110
    assert value("", 0x100) == 0x100


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("", id="no value"),
        pytest.param("70 00", id="a register that is not known"),
        pytest.param("77 00 06", id="memory that was not copied"),
        pytest.param("13", id="nothing to drop"),
        pytest.param("31 22", id="one operand of two"),
        pytest.param("31 16", id="nothing to swap with"),
        pytest.param("31 32 17", id="nothing to rotate with"),
        pytest.param("31 15 01", id="nothing to pick"),
        pytest.param("31 30 1b", id="division by zero"),
        pytest.param("31 30 1d", id="remainder of zero"),
        pytest.param("0e 01 02", id="a constant that is cut short"),
        pytest.param("77 80", id="an offset that is cut short"),
        pytest.param("10" + "ff" * 10 + "01", id="a number of 77 bits"),
        pytest.param("2f fd ff", id="a loop"),
        pytest.param("2f 00 80", id="before the beginning"),
        pytest.param("31 " * 33, id="too many values"),
        pytest.param("96 " * 65, id="too many steps"),
        pytest.param("03 00 00 00 00 00 00 00 00", id="an address of the file"),
        pytest.param("31 9f", id="no place"),
        pytest.param("31 ff", id="unknown"),
    ],
)
def test_what_cannot_be_had_is_nothing(program):
    """An expression ends with a value of 64 bits or without one, and it ends."""
    assert value(program) is None


@given(st.binary(max_size=64), st.lists(st.integers(0, (1 << 64) - 1), max_size=3))
def test_no_program_harms(program, initial):
    """Whatever the bytes: a value of 64 bits, or none."""
    found = evaluate(program, REGISTERS, read, *initial)

    assert found is None or 0 <= found < 1 << 64


@pytest.mark.parametrize(
    ("data", "unsigned", "signed"),
    [
        ("02", 2, 2),
        ("7f", 127, -1),
        ("80 01", 128, 128),
        ("ff 7e", 0x3F7F, -129),
        ("e5 8e 26", 624485, 624485),
        ("ff ff ff ff ff ff ff ff ff 01", (1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_numbers_of_variable_length(data, unsigned, signed):
    """Seven bits a byte, the last without the eighth; the sign is the highest bit of all."""
    data = bytes.fromhex("00" + data + "00")

    assert uleb128(data, 1) == (unsigned, len(data) - 1)
    assert sleb128(data, 1) == (signed, len(data) - 1)
