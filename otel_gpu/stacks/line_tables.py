"""Which line an instruction belongs to: the line tables of CPython's code objects."""

# Some facts about line tables
# ----------------------------
#
# A line table is a list of ranges of instructions, in order and without holes; each says
# how long it is and how far its line is from the one before. So it can only be read from
# the beginning, and what is cut off its end takes only the last lines away.
#
# 3.10 writes a range as two bytes: its length in bytes, and the difference of lines, where
# -128 says that these instructions belong to no line.
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
# A difference is a number of any size, six bits to a byte, the lowest first; bit 6 says
# that more follow, and the lowest bit of the number is its sign.

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

_FIRST_WITH_LOCATIONS: Final = 0x030B
_UNKNOWN: Final = 0
_MAX_LINE: Final = (1 << 31) - 1
_NO_LINE_DIFFERENCE: Final = -128
_UNIT_BYTES: Final = 2
_ENTRY: Final = 0x80
_MORE: Final = 0x40
_SIX_BITS: Final = 0x3F
_MAX_DIFFERENCE_BYTES: Final = 6
_ONE_LINE: Final = 10
_NO_COLUMNS: Final = 13
_LONG: Final = 14
_NO_LINE: Final = 15


class Lines(NamedTuple):
    """
    A line table, decoded: ``lines[i]`` holds for offsets below ``ends[i]``, in bytes.

    Neighbours of one line are one range; 0 is no line.
    """

    first_line: int
    ends: "array[int]"
    lines: "array[int]"

    def line_at(self, offset: int) -> int:
        """
        Return the line of an instruction, by its distance from the first one in bytes.

        Before the first, a frame is at the line that its code begins with. 0: there is none.
        """
        if offset < 0:
            return self.first_line
        position = bisect_right(self.ends, offset)
        return self.lines[position] if position < len(self.lines) else _UNKNOWN


def decode(version: int, first_line: int, line_table: bytes) -> Lines:
    """
    Decode ``co_linetable``; of one that is damaged or cut, what comes before that.

    ``version`` is that of the interpreter, major << 8 | minor.
    """
    lines = Lines(_checked(first_line), array("I"), array("i"))
    if version >= _FIRST_WITH_LOCATIONS:
        _decode_locations(first_line, line_table, lines)
    else:
        _decode_pairs(first_line, line_table, lines)
    return lines


def _decode_pairs(line: int, table: bytes, lines: Lines) -> None:
    end = 0
    for position in range(0, len(table) - 1, 2):
        end += table[position]
        difference = table[position + 1]
        difference -= (difference & 0x80) << 1
        if difference == _NO_LINE_DIFFERENCE:
            _append(lines, end, _UNKNOWN)
        else:
            line += difference
            _append(lines, end, _checked(line))


def _decode_locations(line: int, table: bytes, lines: Lines) -> None:
    end = 0
    position = 0
    while position < len(table) and table[position] & _ENTRY:
        entry = table[position]
        kind = entry >> 3 & 0xF
        position += 1
        if kind in (_NO_COLUMNS, _LONG):
            difference = _difference(table, position)
            if difference is None:
                return
            line += difference
        elif kind >= _ONE_LINE and kind != _NO_LINE:
            line += kind - _ONE_LINE
        end += ((entry & 7) + 1) * _UNIT_BYTES
        _append(lines, end, _UNKNOWN if kind == _NO_LINE else _checked(line))
        while position < len(table) and not table[position] & _ENTRY:
            position += 1


def _difference(table: bytes, position: int) -> int | None:
    # None: it is cut, or longer than that of any line.
    number = 0
    for digit, byte in enumerate(table[position : position + _MAX_DIFFERENCE_BYTES]):
        if byte & _ENTRY:
            return None
        number |= (byte & _SIX_BITS) << 6 * digit
        if not byte & _MORE:
            return -(number >> 1) if number & 1 else number >> 1
    return None


def _append(lines: Lines, end: int, line: int) -> None:
    previous_end = lines.ends[-1] if lines.ends else 0
    if end == previous_end:
        return
    if lines.lines and lines.lines[-1] == line:
        lines.ends[-1] = end
    else:
        lines.ends.append(end)
        lines.lines.append(line)


def _checked(line: int) -> int:
    return line if 0 < line <= _MAX_LINE else _UNKNOWN
