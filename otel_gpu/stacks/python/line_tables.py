"""Lines of instructions: the line tables of CPython's code objects."""

# Some facts about line tables
# ----------------------------
#
# A line table is a list of ranges of instructions, in order and without holes; each has its length and
# the distance of its line from the previous one. So it can only be read from the beginning, and cutting
# its end only loses the last lines.
#
# 3.10 writes a range as two bytes: its length in bytes, and the difference of lines; -128: these
# instructions have no line.
#
# Since 3.11 an entry begins with a byte whose highest bit is set, and ends before the next
# such byte:
#
#      1 | kind (4 bits) | length - 1 (3 bits), in code units of two bytes
#
#      kind 0-9     the same line; columns follow
#      kind 10-12   the line (kind - 10) further; columns follow
#      kind 13      the difference of lines follows; no columns
#      kind 14      the difference of lines follows, then end line and columns
#      kind 15      no line
#
# A difference is a number of any size, six bits to a byte, the lowest first; bit 6: more follow; the
# lowest bit of the number is its sign.

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

_FIRST_WITH_LOCATIONS: Final = 0x030B
_UNKNOWN: Final = 0
_MAX_LINE: Final = (1 << 31) - 1
_NO_LINE_DIFFERENCE: Final = -128
_UNIT_BYTES: Final = 2
_ENTRY, _MORE, _SIX_BITS = 0x80, 0x40, 0x3F
_MAX_DIFFERENCE_BYTES: Final = 6
_ONE_LINE, _NO_COLUMNS, _LONG, _NO_LINE = 10, 13, 14, 15


class LineTable(NamedTuple):
    """
    A decoded line table: ``lines[i]`` applies to offsets below ``ends[i]``, in bytes.

    Adjacent ranges of one line are merged; 0 means no line.
    """

    first_line: int
    ends: "array[int]"
    lines: "array[int]"

    def line_at(self, offset: int) -> int:
        """
        Return the line of an instruction by its offset in bytes; 0: none.

        Before the first instruction, a frame is at the first line of its code.
        """
        if offset < 0:
            return self.first_line
        position = bisect_right(self.ends, offset)
        return self.lines[position] if position < len(self.lines) else _UNKNOWN


def decode(version: int, first_line: int, line_table: bytes) -> LineTable:
    """
    Decode ``co_linetable``; a damaged or cut one up to that point.

    ``version`` is that of the interpreter, major << 8 | minor.
    """
    read = _read_locations if version >= _FIRST_WITH_LOCATIONS else _read_pairs
    lines = LineTable(_checked(first_line), array("I"), array("i"))
    end, line = 0, first_line
    for size_bytes, difference in read(line_table):
        end += size_bytes
        line += difference or 0
        shown = _UNKNOWN if difference is None else _checked(line)
        if not size_bytes:
            continue
        if lines.lines and lines.lines[-1] == shown:
            lines.ends[-1] = end
        else:
            lines.ends.append(end)
            lines.lines.append(shown)
    return lines


# Each yields ranges of instructions: size in bytes, and difference of lines (None: no line).


def _read_pairs(table: bytes) -> Iterator[tuple[int, int | None]]:
    for size_bytes, difference in struct.iter_unpack("Bb", table[: len(table) & ~1]):
        yield size_bytes, None if difference == _NO_LINE_DIFFERENCE else difference


def _read_locations(table: bytes) -> Iterator[tuple[int, int | None]]:
    position = 0
    while position < len(table) and table[position] & _ENTRY:
        kind = table[position] >> 3 & 0xF
        size_bytes = ((table[position] & 7) + 1) * _UNIT_BYTES
        position += 1
        if kind in (_NO_COLUMNS, _LONG):
            difference = _difference(table, position)
            if difference is None:
                return
            yield size_bytes, difference
        elif kind == _NO_LINE:
            yield size_bytes, None
        else:
            yield size_bytes, max(kind - _ONE_LINE, 0)
        while position < len(table) and not table[position] & _ENTRY:
            position += 1


def _difference(table: bytes, position: int) -> int | None:
    # None: cut, or longer than for any line.
    number = 0
    for digit, byte in enumerate(table[position : position + _MAX_DIFFERENCE_BYTES]):
        if byte & _ENTRY:
            return None
        number |= (byte & _SIX_BITS) << 6 * digit
        if not byte & _MORE:
            return -(number >> 1) if number & 1 else number >> 1
    return None


def _checked(line: int) -> int:
    return line if 0 < line <= _MAX_LINE else _UNKNOWN
