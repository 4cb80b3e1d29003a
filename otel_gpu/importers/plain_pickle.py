"""
A reader of untrusted pickles that contain only plain containers.

It does not use ``pickle``: a pickle is a program, and that module runs it. Even if all names are
refused, a few bytes can make it take gigabytes, through the number of a memo entry or through
references to references. Here nothing can be called, text and numbers are short, memo entries
are numbered in order, and the size of all objects is counted while it grows.
"""

# How a large file stays small
# ----------------------------
#
# A snapshot is millions of small dictionaries of a few kinds. A full dictionary is passed to its
# maker, and the maker's result replaces it on the stack and in the memo. A million events
# become columns of numbers, and their dictionaries are freed.
#
# A replaced dictionary cannot be filled again, nor be used twice unless its maker allows it. So
# no event is visited more often than it was written, and code that walks the result needs no
# limit of visits.

import struct
from collections.abc import Callable
from struct import unpack_from
from typing import Any, BinaryIO, Final, NoReturn, Protocol

from otel_gpu.importers.pickle_opcodes import (
    APPEND,
    APPENDS,
    BINBYTES,
    BINFLOAT,
    BINGET,
    BININT,
    BININT1,
    BININT2,
    BINPUT,
    BINUNICODE,
    BINUNICODE8,
    DICT,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    FRAME,
    LIST,
    LONG1,
    LONG4,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    MEMOIZE,
    NEWFALSE,
    NEWTRUE,
    NONE,
    PROTO,
    SETITEM,
    SETITEMS,
    SHORT_BINBYTES,
    SHORT_BINUNICODE,
    STOP,
    TUPLE,
    TUPLE1,
    TUPLE2,
    TUPLE3,
    name_of,
)

MAX_TEXT_BYTES: Final = 64 << 10
MAX_INTEGER_BYTES: Final = 8
MAX_STACK: Final = 4 << 20
MAX_MEMO: Final = 16 << 20
MAX_HELD: Final = 8 << 20
"""Items of containers, and containers by their weight, in the result."""

_DICT_WEIGHT = 8
# Bytes of a text that count as one item.
_TEXT_BYTES = 32
_MAX_KEYS = 64
_MAX_KEY = 256
_MAX_KINDS = 1_000
_TEXT = frozenset({str})
# The longest opcode; near the end of the buffer, more is read first.
_MARGIN_BYTES = MAX_TEXT_BYTES + 16
_READ_BYTES = 256 << 10
_PROTOCOLS = range(2, 6)


class UnreadableError(Exception):
    """A file that cannot be read; ``at`` is the offset in bytes."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.at = at


Make = Callable[[list[object]], tuple[object, bool]]
"""Takes the values of a dictionary; returns its replacement, and whether it can be used again."""


class Makers(Protocol):
    """Replaces dictionaries when they are full."""

    def maker(self, keys: tuple[str, ...]) -> Make | None:
        """Return the maker for dictionaries with these keys; None: they are not replaced."""

    def bind(self, replace: Callable[[list[object], object], None]) -> None:
        """Set the function that replaces a list in the memo."""


class NoMakers:
    """Replaces no dictionary."""

    def maker(self, keys: tuple[str, ...]) -> Make | None:  # noqa: ARG002 -- as the protocol has it
        """Return None."""
        return None

    def bind(self, replace: Callable[[list[object], object], None]) -> None:
        """Do nothing."""


class _Used:
    # Marks a memo entry that must not be referred to again.
    pass


_USED: Final = _Used()
_PLAIN: Final = object()


def read_plain(stream: BinaryIO, makers: Makers) -> object:
    """
    Read the one object of a pickle.

    Raises:
        UnreadableError: It is not a pickle, is cut, is too large, or contains other objects.
    """
    return _Reader(stream, makers).read()


class _Reader:
    def __init__(self, stream: BinaryIO, makers: Makers) -> None:
        self._stream = stream
        self._makers = makers
        self._memo: list[object] = []
        # Positions of containers in the memo that can still be replaced.
        self._places: dict[int, int] = {}
        self._known: dict[tuple[str, ...], Any] = {}
        # The size that was freed since it was last read.
        self._released = 0
        makers.bind(self._replace)

    def read(self) -> object:
        data = self._stream.read(_READ_BYTES)
        if len(data) < 2 or data[0] != PROTO:  # noqa: PLR2004 -- the opcode and its number
            raise UnreadableError("it is not a pickle", 0)
        stack: list[object] = []
        marks: list[int] = []
        offset, held = 0, 0
        while True:
            more = self._stream.read(_READ_BYTES)
            end = len(data) if not more else max(0, len(data) - _MARGIN_BYTES)
            at, held, is_done = self._run(
                data, end, offset=offset, stack=stack, marks=marks, held=held
            )
            if is_done:
                if len(stack) != 1 or marks:
                    raise UnreadableError("it contains more than one object", offset + at)
                return stack[0]
            _check(len(stack), memo=len(self._memo), held=held, at=offset + at)
            if not more:
                raise UnreadableError("the file is cut: the pickle is incomplete", offset + at)
            data = data[at:] + more
            offset += at

    def _run(  # noqa: C901, PLR0912, PLR0915 -- one loop: a call for each opcode would cost as much again
        self, data: bytes, end: int, offset: int, stack: list[object], marks: list[int], held: int
    ) -> tuple[int, int, bool]:
        memo, places = self._memo, self._places
        push, remember = stack.append, memo.append
        at = start = 0
        try:
            # The most frequent first.
            while at < end:
                start = at
                code = data[at]
                at += 1
                if code == BINGET:
                    push(memo[data[at]])
                    at += 1
                elif code == LONG_BINGET:
                    push(memo[unpack_from("<I", data, at)[0]])
                    at += 4
                elif code == MEMOIZE:
                    top = stack[-1]
                    if type(top) is dict or type(top) is list:
                        places[id(top)] = len(memo)
                    remember(top)
                elif code == LONG1:
                    size = data[at]
                    if size > MAX_INTEGER_BYTES:
                        _refuse(f"a number of {size} bytes")
                    at += 1 + size
                    push(int.from_bytes(data[at - size : at], "little", signed=True))
                elif code == BININT:
                    push(unpack_from("<i", data, at)[0])
                    at += 4
                elif code == BININT1:
                    push(data[at])
                    at += 1
                elif code == BININT2:
                    push(data[at] | data[at + 1] << 8)
                    at += 2
                elif code == MARK:
                    marks.append(len(stack))
                elif code == EMPTY_DICT:
                    push({})
                    held += _DICT_WEIGHT
                elif code == SETITEMS:
                    mark = marks.pop()
                    keys, values = stack[mark::2], stack[mark + 1 :: 2]
                    del stack[mark:]
                    held += self._fill(stack, keys, values)
                elif code == EMPTY_LIST:
                    push([])
                    held += 1
                elif code == APPENDS:
                    mark = marks.pop()
                    items = stack[mark:]
                    del stack[mark:]
                    _list_of(stack).extend(items)
                    held += len(items)
                elif code == APPEND:
                    item = stack.pop()
                    _list_of(stack).append(item)
                    held += 1
                elif code == SHORT_BINUNICODE:
                    size = data[at]
                    at += 1 + size
                    push(data[at - size : at].decode("utf-8", "surrogatepass"))
                    held += 1 + size // _TEXT_BYTES
                elif code in (BINUNICODE, BINBYTES):
                    size = unpack_from("<I", data, at)[0]
                    if size > MAX_TEXT_BYTES:
                        _refuse(f"a text of {size:,} bytes")
                    at += 4 + size
                    text = data[at - size : at]
                    push(text.decode("utf-8", "surrogatepass") if code == BINUNICODE else text)
                    held += 1 + size // _TEXT_BYTES
                elif code in (BINPUT, LONG_BINPUT):
                    wide = code == LONG_BINPUT
                    number = unpack_from("<I", data, at)[0] if wide else data[at]
                    at += 4 if wide else 1
                    if number != len(memo):
                        _refuse(f"memo entry {number:,} is out of order")
                    top = stack[-1]
                    if type(top) is dict or type(top) is list:
                        places[id(top)] = number
                    remember(top)
                elif code == NONE:
                    push(None)
                elif code in (NEWTRUE, NEWFALSE):
                    push(code == NEWTRUE)
                elif code == SETITEM:
                    value, key = stack.pop(), stack.pop()
                    held += self._fill(stack, [key], [value])
                elif code in (TUPLE1, TUPLE2, TUPLE3):
                    size = code - TUPLE1 + 1
                    found = tuple(stack[-size:])
                    if len(found) < size:
                        _refuse("a tuple of more than is there")
                    del stack[-size:]
                    push(found)
                    held += 1 + size
                elif code == EMPTY_TUPLE:
                    push(())
                elif code in (TUPLE, LIST):
                    mark = marks.pop()
                    items = stack[mark:]
                    del stack[mark:]
                    push(tuple(items) if code == TUPLE else items)
                    held += 1 + len(items)
                elif code == DICT:
                    mark = marks.pop()
                    keys, values = stack[mark::2], stack[mark + 1 :: 2]
                    del stack[mark:]
                    push({})
                    held += _DICT_WEIGHT + self._fill(stack, keys, values)
                elif code == BINFLOAT:
                    push(unpack_from(">d", data, at)[0])
                    at += 8
                    held += 1
                elif code == SHORT_BINBYTES:
                    size = data[at]
                    at += 1 + size
                    push(data[at - size : at])
                    held += 1
                elif code == BINUNICODE8:
                    size = unpack_from("<Q", data, at)[0]
                    if size > MAX_TEXT_BYTES:
                        _refuse(f"a text of {size:,} bytes")
                    at += 8 + size
                    push(data[at - size : at].decode("utf-8", "surrogatepass"))
                    held += 1 + size // _TEXT_BYTES
                elif code == LONG4:
                    size = unpack_from("<I", data, at)[0]
                    if size > MAX_INTEGER_BYTES:
                        _refuse(f"a number of {size:,} bytes")
                    at += 4 + size
                    push(int.from_bytes(data[at - size : at], "little", signed=True))
                elif code == FRAME:
                    # The length of a frame; all of it is read anyway.
                    at += 8
                elif code == STOP:
                    return at, held, True
                elif code == PROTO:
                    if data[at] not in _PROTOCOLS or start + offset:
                        _refuse(f"protocol {data[at]}, where 2 to 5 can be read")
                    at += 1
                else:
                    _refuse(f"opcode {name_of(code)}: only plain containers are read")
        except UnreadableError as error:
            raise UnreadableError(str(error), offset + start) from None
        except UnicodeDecodeError:
            raise UnreadableError("text that is not UTF-8", offset + start) from None
        except (IndexError, struct.error):
            # At the end of the file the operand is missing, elsewhere the object on the stack.
            message = "the file is cut, or refers to a missing object"
            raise UnreadableError(message, offset + start) from None
        return at, held, False

    def _fill(self, stack: list[Any], keys: list[Any], values: list[Any]) -> int:
        # Fill the dictionary on top of the stack; return the added size.
        target = stack[-1]
        if type(target) is not dict:
            raise UnreadableError("items: expected an incomplete dictionary")
        if len(keys) != len(values):
            raise UnreadableError("a key without a value")
        # Before they are hashed: a tuple's hash visits all objects that it refers to.
        if not _TEXT.issuperset(map(type, keys)):
            raise UnreadableError("a key that is not text")
        name = tuple(keys)
        make = self._known.get(name) or self._learn(name)
        if make is _PLAIN or target:
            before = len(target)
            target.update(zip(keys, values, strict=True))
            return len(target) - before
        made, is_shared = make(values)
        stack[-1] = made
        place = self._places.pop(id(target), None)
        if place is not None:
            self._memo[place] = made if is_shared else _USED
        released, self._released = self._released, 0
        return -_DICT_WEIGHT - released

    def _learn(self, keys: tuple[str, ...]) -> Any:  # noqa: ANN401 -- a maker, or _PLAIN
        # No snapshot has long keys, and each comparison of them would cost time.
        if len(keys) > _MAX_KEYS or max(map(len, keys), default=0) > _MAX_KEY:
            return _PLAIN
        maker = self._makers.maker(keys)
        if maker is not None and len(set(keys)) < len(keys):
            raise UnreadableError("a duplicate key")
        if len(self._known) < _MAX_KINDS:
            self._known[keys] = maker or _PLAIN
        return maker or _PLAIN

    def _replace(self, items: list[Any], value: object) -> None:
        self._released += len(items)
        place = self._places.pop(id(items), None)
        if place is not None:
            self._memo[place] = value
            self._released += 1
        # It can be on the stack, or twice in the memo.
        items[:] = [value]


def _refuse(message: str) -> NoReturn:
    raise UnreadableError(message)


def _list_of(stack: list[object]) -> list[object]:
    target: object = stack[-1]
    if type(target) is not list:
        raise UnreadableError("items: expected an incomplete list")
    return target


def _check(stack: int, memo: int, held: int, at: int) -> None:
    for what, size, most in (
        ("nesting", stack, MAX_STACK), ("memo", memo, MAX_MEMO), ("what it holds", held, MAX_HELD)
    ):  # fmt: skip
        if size > most:
            raise UnreadableError(f"{what} is too large: more than {most:,}", at)
