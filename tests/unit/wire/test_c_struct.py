"""How structures of the wire are declared, packed and unpacked."""

import struct

import pytest

from otel_gpu.wire.c_struct import CStruct

PLACE = CStruct("kind:H flags:H 4x address:Q")
WAIT = CStruct("parts:3I name:8s file.length:I 4x table:32s", PLACE)


def test_a_structure_that_begins_with_another_has_its_fields_first():
    """Every record begins with the same header."""
    assert WAIT.format == "<HH4xQ3I8sI4x32s"
    assert WAIT.size == struct.calcsize(WAIT.format)
    assert WAIT.fields == (
        *("kind", "flags", "address", "parts_0", "parts_1", "parts_2"),
        *("name", "file.length", "table"),
    )


def test_values_are_packed_and_read_by_name():
    """What is not said is 0 or empty; what follows the structure is left alone."""
    packed = WAIT.build(address=5, parts_1=7, name=b"ab")

    values = WAIT.named(packed + b"more")

    assert (values["address"], values["parts_1"], values["name"]) == (5, 7, b"ab".ljust(8, b"\0"))
    assert (values["kind"], values["parts_0"], values["table"]) == (0, 0, bytes(32))


def test_a_value_of_no_field_is_refused():
    """A misspelt name would be a zero on the wire."""
    with pytest.raises(TypeError, match="adress: not fields"):
        PLACE.build(adress=5)


@pytest.mark.parametrize(
    ("field", "offset"), [("kind", 0), ("address", 8), ("parts_2", 24), ("table", 44)]
)
def test_a_field_is_where_its_offset_says(field, offset):
    """One value can be read without all others."""
    assert WAIT.offset_of(field) == offset


def test_a_structure_can_be_cut_before_a_field():
    """Records end where their last array does."""
    cut = WAIT.before("table")

    assert cut.fields == WAIT.fields[:-1]
    assert cut.size == WAIT.size - 32
