"""LEB128: the variable-length integers of DWARF."""

from typing import Final

_MAX_BITS: Final = 64


def uleb128(data: bytes, at: int) -> tuple[int, int]:
    """
    Return an unsigned integer and the position after it.

    Raises:
        IndexError: The data ends too early.
        ValueError: It has more than 64 bits.
    """
    byte = data[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift >= _MAX_BITS:
            raise ValueError("a number of more than 64 bits")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def sleb128(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed integer and the position after it; raises as ``uleb128``."""
    value, end = uleb128(data, at)
    sign = 1 << 7 * (end - at) - 1
    return (value ^ sign) - sign, end
