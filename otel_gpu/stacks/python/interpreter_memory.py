"""
Reads an interpreter's memory from outside, to verify its layout.

The kernel side walks frames with a layout that it trusts. Here the same walk is made once before,
slowly and with checks. With a wrong layout, it reads pointers where there are none: it does not reach a
thread that the C library knows, a whole chain of frames, and code objects with file names.
"""

import platform
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from otel_gpu.stacks.python.layouts import InterpreterLayout

Read = Callable[[int, int], bytes]
"""(address, size in bytes) -> the bytes; fewer or none where memory is not readable."""

_MAX_INTERPRETERS: Final = 8
_MAX_THREADS: Final = 512
_MAX_FRAMES: Final = 20_000
_MAX_CHECKED_FRAMES: Final = 256
_MAX_FAILED_THREADS: Final = 8
_MAX_TEXT_CHARACTERS: Final = 1 << 24
_READ_CHARACTERS: Final = 4096
_MAX_TABLE_BYTES: Final = 1 << 20
_MAX_CODE_BYTES: Final = 1 << 24
_LINES: Final = range(1 << 24)
_ADDRESSES: Final = range(0x1000, 1 << 56)
# References have flags in their low bits since 3.14.
_NO_TAGS: Final = ~7
_UNIT_BYTES: Final = 2
# Offsets of an object's type, and of a type's name, except in builds with Py_TRACE_REFS.
_TYPE, _TYPE_NAME = 8, 24
_C_FRAMES: Final = (0x030B, 0x030C)
_FIRST_WITH_ENTRIES, _FIRST_WITH_SHIMS = _C_FRAMES
_KIND_SHIFT, _KIND_MASK = 2, 7
_COMPACT, _ASCII = 1 << 5, 1 << 6
ENCODINGS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
"""Encodings of texts, by bytes of a character."""
_POINTER_BYTES: Final = 8
_MODULE: Final = "<module>"
# By the ABI, the memory at a thread pointer starts with that pointer.
_POINTS_TO_ITSELF: Final = platform.machine() == "x86_64"


class PythonFrame(NamedTuple):
    """
    A frame of Python code, as in ``struct python_frame``.

    ``code`` is the address of the code object, ``offset`` that of the current instruction in bytes,
    negative before the first.
    """

    code: int
    offset: int
    is_entry: bool


class PythonCode(NamedTuple):
    """Names and lines of a code object; long texts are cut."""

    file: str
    name: str
    first_line: int


class PythonMemory:
    """
    Reads the frames of an interpreter whose threads are stopped.

    Memory is untrusted: walks are bounded, and inconsistent values raise ValueError. ``runtime`` is the
    address of ``_PyRuntime``.
    """

    def __init__(self, layout: InterpreterLayout, runtime: int, read: Read) -> None:
        self._layout = layout
        self._runtime = runtime
        self._read = read
        self._types: dict[int, bytes] = {}

    def threads(self) -> Iterator[tuple[int, int]]:
        """
        Yield (``pthread_self``, innermost frame) of each thread state.

        The frame is 0 if the thread runs no Python code.
        """
        layout = self._layout
        interpreter = self._pointer(self._runtime + layout.runtime_interpreters)
        seen = 0
        for _ in range(_MAX_INTERPRETERS):
            if not interpreter:
                return
            state = self._pointer(interpreter + layout.interpreter_threads)
            while state and seen < _MAX_THREADS:
                seen += 1
                frame = self._pointer(state + layout.thread_frame)
                if layout.version in _C_FRAMES and frame:
                    frame = self._pointer(frame + layout.c_frame_frame)
                yield self._number(state + layout.thread_id), frame
                state = self._pointer(state + layout.thread_next)
            interpreter = self._pointer(interpreter + layout.interpreter_next)

    def frames(self, frame: int) -> Iterator[PythonFrame]:
        """Yield the frames from an innermost one on."""
        layout = self._layout
        pending: PythonFrame | None = None
        for _ in range(_MAX_FRAMES):
            if not frame:
                break
            owner = self._bytes(frame + layout.frame_owner, 1)[0]
            is_shim = layout.version >= _FIRST_WITH_SHIMS and owner >= layout.shim_owner
            if pending is not None:
                yield pending._replace(is_entry=pending.is_entry or is_shim)
            pending = None if is_shim else self._frame(frame, owner)
            frame = self._pointer(frame + layout.frame_previous)
        if pending is not None:
            yield pending

    def code(self, address: int) -> PythonCode:
        """Read a code object."""
        layout = self._layout
        self._require_type(address, b"code")
        first_line = self._number(address + layout.code_first_line, 4, signed=True)
        if first_line not in _LINES:
            raise ValueError("a code object has no first line")
        file, name = (self._pointer(address + at) for at in (layout.code_file, layout.code_name))
        return PythonCode(self._text(file), self._text(name), first_line)

    def line_table(self, address: int) -> bytes:
        """Read the line table of a code object."""
        layout = self._layout
        table = self._pointer(address + layout.code_line_table)
        self._require_type(table, b"bytes")
        size_bytes = self._number(table + layout.bytes_length)
        if size_bytes > _MAX_TABLE_BYTES:
            raise ValueError("a line table is too long")
        return self._bytes(table + layout.bytes_data, size_bytes)

    def _frame(self, frame: int, owner: int) -> PythonFrame:
        layout = self._layout
        code = self._pointer(frame + layout.frame_code) & _NO_TAGS
        if layout.version < _FIRST_WITH_ENTRIES:
            offset = self._number(frame + layout.frame_instruction, 4, signed=True) * _UNIT_BYTES
        else:
            instruction = self._pointer(frame + layout.frame_instruction)
            offset = instruction - code - layout.code_instructions
        if not -_UNIT_BYTES <= offset < _MAX_CODE_BYTES or offset % _UNIT_BYTES:
            raise ValueError("the current instruction is not in its code")
        is_entry = layout.version < _FIRST_WITH_ENTRIES or (
            layout.version < _FIRST_WITH_SHIMS and owner == 1
        )
        return PythonFrame(code, offset, is_entry)

    def _text(self, address: int) -> str:
        layout = self._layout
        self._require_type(address, b"str")
        length = self._number(address + layout.text_length)
        state = self._number(address + layout.text_state, 4)
        kind = state >> _KIND_SHIFT & _KIND_MASK
        if length > _MAX_TEXT_CHARACTERS or kind not in ENCODINGS or not state & _COMPACT:
            raise ValueError("a string of unknown kind")
        start = layout.text_ascii if state & _ASCII else layout.text_compact
        raw = self._bytes(address + start, min(length, _READ_CHARACTERS) * kind)
        return raw.decode(ENCODINGS[kind], "surrogatepass")

    def _require_type(self, address: int, name: bytes) -> None:
        kind = self._pointer(address + _TYPE)
        if self._types.get(kind) == name:
            return
        terminated = name + b"\0"
        if self._bytes(self._pointer(kind + _TYPE_NAME), len(terminated)) != terminated:
            raise ValueError(f"expected an object of type {name.decode()}")
        self._types[kind] = name

    def _pointer(self, address: int) -> int:
        pointer = self._number(address)
        if pointer and pointer not in _ADDRESSES:
            raise ValueError("a null or unmapped pointer")
        return pointer

    def _number(
        self, address: int, size_bytes: int = _POINTER_BYTES, *, signed: bool = False
    ) -> int:
        return int.from_bytes(self._bytes(address, size_bytes), "little", signed=signed)

    def _bytes(self, address: int, size_bytes: int) -> bytes:
        if address not in _ADDRESSES:
            raise ValueError("a null or unmapped pointer")
        found = self._read(address, size_bytes) if size_bytes else b""
        if len(found) != size_bytes:
            raise ValueError("memory cannot be read")
        return found


class LayoutVerdict(StrEnum):
    """Whether Python frames of a program can be read."""

    GOOD = "good"
    EARLY = "early"
    """It runs no Python code yet, or is not readable; check again later."""
    BAD = "bad"
    """This can be an accident, as the interpreter runs during the read."""
    UNKNOWN = "unknown"
    """Its version has no known layout."""


class LayoutCheck(NamedTuple):
    """The result of checking a layout against an interpreter; ``reason`` is empty if it is good."""

    kind: LayoutVerdict
    reason: str = ""


def check(layout: InterpreterLayout, runtime: int, read: Read) -> LayoutCheck:
    """
    Check a layout against a running interpreter, by the address of ``_PyRuntime``.

    It is good if at least one thread has a chain of valid frames from the innermost to the outermost. A
    single frame proves little: with a wrong offset of ``previous``, every stack could look like that.
    """
    memory = PythonMemory(layout, runtime, read)
    if len(read(runtime + layout.runtime_interpreters, _POINTER_BYTES)) != _POINTER_BYTES:
        return LayoutCheck(LayoutVerdict.EARLY, "its memory cannot be read")
    failures: list[str] = []
    try:
        for thread_id, frame in memory.threads():
            if thread_id and frame:
                try:
                    if _has_sound_frames(memory, read, thread_id=thread_id, frame=frame):
                        return LayoutCheck(LayoutVerdict.GOOD)
                except ValueError as error:
                    failures.append(str(error))
            if len(failures) == _MAX_FAILED_THREADS:
                break
    except ValueError as error:
        failures.append(str(error))
    if failures:
        return LayoutCheck(LayoutVerdict.BAD, f"its frames cannot be followed: {failures[0]}")
    return LayoutCheck(LayoutVerdict.EARLY, "no thread of it runs enough Python code yet")


def _has_sound_frames(memory: PythonMemory, read: Read, thread_id: int, frame: int) -> bool:
    # False: too few to decide. ValueError: a contradiction.
    itself = read(thread_id, _POINTER_BYTES) if thread_id in _ADDRESSES else b""
    says = thread_id if not _POINTS_TO_ITSELF else int.from_bytes(itself, "little")
    if len(itself) != _POINTER_BYTES or says != thread_id:
        raise ValueError("a thread state belongs to no thread")
    frames = list(islice(memory.frames(frame), _MAX_CHECKED_FRAMES))
    codes = {address: memory.code(address) for address in {each.code for each in frames}}
    for address in codes:
        memory.line_table(address)
    if not any(code.file and code.file.isprintable() for code in codes.values()):
        raise ValueError("no code comes from a file")
    if len(frames) < _MAX_CHECKED_FRAMES and not frames[-1].is_entry:
        raise ValueError("the outermost frame has no caller")
    # An instruction before the call pushed the callee.
    if any(caller.offset <= 0 for caller in frames[1:]):
        raise ValueError("a caller is at its first instruction")
    return len(frames) > 1 or codes[frames[0].code].name == _MODULE
