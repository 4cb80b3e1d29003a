"""Which line an instruction belongs to."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.python.line_tables import decode
from tests.pythons.interpreters import ONE_OF_EACH, interpreter

DUMP = Path(__file__).resolve().parents[3] / "pythons" / "dump_lines.py"
VERSIONS = [0x030A, 0x030B, 0x030C, 0x030D, 0x030E]


def line_at(version, first_line, table, offset):
    return decode(version, first_line, table).line_at(offset)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_instruction_of_the_standard_library_has_the_line_that_python_says(name):
    """Of thousands of real code objects, no instruction's line differs."""
    python = interpreter(name)
    version = python.minor[0] << 8 | python.minor[1]
    dump = subprocess.run([*python.command, DUMP], check=True, capture_output=True, text=True)
    code_objects = instructions = 0
    for row in map(json.loads, dump.stdout.splitlines()):
        first_line, table, ranges, code_bytes = row
        lines = decode(version, first_line, bytes.fromhex(table))
        expected = [line for size, line in ranges for _ in range(0, size, 2)]
        actual = [lines.line_at(offset) for offset in range(0, code_bytes, 2)]

        assert actual == expected, row
        assert lines.line_at(code_bytes) == 0
        code_objects += 1
        instructions += len(expected)

    assert code_objects > 10_000
    assert instructions > 400_000


# A call in line 11, and one in a loop: its head in line 12, its body in line 13.
PAIRS = bytes([6, 1, 6, 1, 6, 1, 4, 255])


def test_a_table_of_3_10_says_lines_in_pairs():
    """Each pair is a length in bytes and a difference of lines."""
    assert [line_at(0x030A, 10, PAIRS, offset) for offset in range(0, 24, 2)] == [
        *(11, 11, 11),
        *(12, 12, 12),
        *(13, 13, 13),
        *(12, 12),
        0,
    ]


def test_instructions_without_a_line_have_none():
    """-128 is no difference of lines in 3.10, and kind 15 has none since 3.11."""
    assert [line_at(0x030A, 10, bytes([2, 1, 2, 0x80, 2, 1]), at) for at in (0, 2, 4)] == [
        11,
        0,
        12,
    ]
    table = bytes([0x80 | 13 << 3, 2, 0x80 | 15 << 3, 0x80 | 13 << 3, 2])
    assert [line_at(0x030B, 10, table, at) for at in (0, 2, 4)] == [11, 0, 12]


def test_a_range_may_be_longer_than_a_byte_can_say():
    """3.10 then writes two, the second without a difference."""
    assert [
        line_at(0x030A, 1, bytes([254, 1, 20, 0, 2, 1]), at) for at in (252, 254, 272, 274)
    ] == [
        *(2, 2, 2),
        3,
    ]


def test_a_table_since_3_11_has_entries_of_many_kinds():
    """Columns are skipped, differences of lines may be far and backwards."""
    table = bytes(
        [
            *(0x80 | 14 << 3 | 1, 2 << 1, 0, 1, 1),  # two lines on, for two units
            *(0x80 | 3 << 3 | 0, 0x21),  # the same line
            *(0x80 | 11 << 3 | 7, 0, 9),  # one line on, for eight units
            *(0x80 | 13 << 3 | 0, 0x40 | (401 & 63), 401 >> 6),  # 200 lines back
        ]
    )

    lines = decode(0x030B, 300, table)

    assert list(lines.ends) == [6, 22, 24]
    assert list(lines.lines) == [302, 303, 103]
    assert lines.line_at(-2) == 300


def test_a_table_that_is_cut_keeps_the_lines_before():
    """Of an entry whose difference of lines is cut, nothing is said."""
    whole = bytes([0x80 | 13 << 3, 2, 0x80 | 13 << 3, 0x40 | 4, 1])

    assert [line_at(0x030B, 1, whole[:size], 0) for size in range(6)] == [0, 0, 2, 2, 2, 2]
    assert [line_at(0x030B, 1, whole[:size], 2) for size in range(6)] == [0, 0, 0, 0, 0, 36]


@pytest.mark.parametrize(
    ("version", "table"),
    [
        (0x030A, bytes([2, 0x81])),
        (0x030B, bytes([0x80 | 13 << 3, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x3F])),
        (0x030B, bytes([0x80 | 13 << 3, 0x7E, 0x7F, 0x7F, 0x7F, 0x7F, 0x3F])),
        (0x030B, bytes([0x80 | 13 << 3, *[0x7F] * 100])),
        (0x030B, bytes([0x05, 0x05])),
    ],
)
def test_lines_that_cannot_be_are_unknown(version, table):
    """A line below 1, beyond 31 bits or of no number is none."""
    assert line_at(version, 5, table, 0) == 0


@given(
    st.sampled_from(VERSIONS),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(max_size=400),
    st.integers(-(1 << 31), 1 << 32),
)
def test_no_table_does_harm(version, first_line, table, offset):
    """Whatever the bytes, there is a line or there is none."""
    assert 0 <= line_at(version, first_line, table, offset) < 1 << 31


@given(st.sampled_from(VERSIONS), st.binary(max_size=60), st.integers(0, 60), st.integers(0, 40))
def test_what_comes_before_a_cut_does_not_change(version, table, size, unit):
    """A line that a cut table knows is that of the whole one."""
    cut = line_at(version, 50, table[:size], 2 * unit)

    assert cut in (0, line_at(version, 50, table, 2 * unit))
