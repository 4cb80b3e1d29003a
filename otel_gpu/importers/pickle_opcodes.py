"""
The opcodes of a pickle that plain containers need; a pickle with another opcode is refused.

Pickles are programs. These opcodes make lists, dictionaries, tuples, text, numbers and references
to them. None of them imports, calls or builds anything.
"""

from collections.abc import Mapping
from typing import Final

MARK: Final = ord("(")
EMPTY_TUPLE: Final = ord(")")
STOP: Final = ord(".")
BINBYTES: Final = ord("B")
SHORT_BINBYTES: Final = ord("C")
BINFLOAT: Final = ord("G")
BININT: Final = ord("J")
BININT1: Final = ord("K")
BININT2: Final = ord("M")
NONE: Final = ord("N")
BINUNICODE: Final = ord("X")
EMPTY_LIST: Final = ord("]")
APPEND: Final = ord("a")
DICT: Final = ord("d")
APPENDS: Final = ord("e")
BINGET: Final = ord("h")
LONG_BINGET: Final = ord("j")
LIST: Final = ord("l")
BINPUT: Final = ord("q")
LONG_BINPUT: Final = ord("r")
SETITEM: Final = ord("s")
TUPLE: Final = ord("t")
SETITEMS: Final = ord("u")
EMPTY_DICT: Final = ord("}")
PROTO: Final = 0x80
TUPLE1: Final = 0x85
TUPLE2: Final = 0x86
TUPLE3: Final = 0x87
NEWTRUE: Final = 0x88
NEWFALSE: Final = 0x89
LONG1: Final = 0x8A
LONG4: Final = 0x8B
SHORT_BINUNICODE: Final = 0x8C
BINUNICODE8: Final = 0x8D
MEMOIZE: Final = 0x94
FRAME: Final = 0x95

_REFUSED: Mapping[int, str] = {
    ord("0"): "POP",
    ord("1"): "POP_MARK",
    ord("2"): "DUP",
    ord("F"): "FLOAT",
    ord("I"): "INT",
    ord("L"): "LONG",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    ord("R"): "REDUCE",
    ord("S"): "STRING",
    ord("T"): "BINSTRING",
    ord("U"): "SHORT_BINSTRING",
    ord("V"): "UNICODE",
    ord("b"): "BUILD",
    ord("c"): "GLOBAL",
    ord("g"): "GET",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("p"): "PUT",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x8E: "BINBYTES8",
    0x8F: "EMPTY_SET",
    0x90: "ADDITEMS",
    0x91: "FROZENSET",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x96: "BYTEARRAY8",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}


def name_of(opcode: int) -> str:
    """Return the name of a refused opcode."""
    return _REFUSED.get(opcode, f"{opcode:#04x}, which is none")
