"""
An interpreter's memory, read from outside: whether a layout is true of it.

The kernel side walks frames where and when they are used, and trusts its layout. Here the
same walk is made once beforehand, slowly and with doubts. A layout that is wrong for a
build reads pointers where there are none; it does not get from the runtime state to a
thread that the C library knows, on to a whole chain of frames, and to code objects with
names of files, all at once.
"""

import platform
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple

from otel_gpu.stacks.python.layouts import InterpreterLayout

Read = Callable[[int, int], bytes]
"""(address, size in bytes) -> what is there; shorter or empty where it cannot be read."""

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
# References carry flags in their low bits since 3.14.
_NO_TAGS: Final = ~7
_UNIT_BYTES: Final = 2
# Of every object's type, and of a type's name, in every build but those with Py_TRACE_REFS.
_TYPE, _TYPE_NAME = 8, 24
_C_FRAMES: Final = (0x030B, 0x030C)
_FIRST_WITH_ENTRIES, _FIRST_WITH_SHIMS = _C_FRAMES
_KIND_SHIFT, _KIND_MASK = 2, 7
_COMPACT, _ASCII = 1 << 5, 1 << 6
ENCODINGS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
"""Of texts, by bytes of a character."""
_POINTER_BYTES: Final = 8
_MODULE: Final = "<module>"
# What a thread pointer points to begins with itself there; its ABI wants it so.
_POINTS_TO_ITSELF: Final = platform.machine() == "x86_64"


class PythonFrame(NamedTuple):
    """
    A frame of Python code, as ``struct python_frame`` has it.

    ``code`` is the address of the code object here, ``offset`` that of the current
    instruction, in bytes, and negative before the first.
    """

    code: int
    offset: int
    is_entry: bool


class PythonCode(NamedTuple):
    """What a code object says about itself; of long texts the beginning."""

    file: str
    name: str
    first_line: int


class PythonMemory:
    """
    Reads the frames of an interpreter whose threads stand still.

    Nothing that is there is believed: walks are bounded, and what does not add up raises
    ValueError. ``runtime`` is the address of ``_PyRuntime``.
    """

    def __init__(self, layout: InterpreterLayout, runtime: int, read: Read) -> None:
        self._layout = layout
        self._runtime = runtime
        self._read = read
        self._types: dict[int, bytes] = {}

    def threads(self) -> Iterator[tuple[int, int]]:
        """
        Yield (``pthread_self``, innermost frame) of each thread state.

        The frame is 0 where the thread runs no Python code.
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


class LayoutCheck(NamedTuple):
    """
    Whether a layout is true of an interpreter.

    ``early``: it does not run Python code yet, or cannot be read; look again later. ``bad``
    may be bad luck, as it goes on while it is read. ``reason`` is empty when it is ``good``.
    """

    kind: Literal["good", "early", "bad"]
    reason: str = ""


def check(layout: InterpreterLayout, runtime: int, read: Read) -> LayoutCheck:
    """
    Return whether a layout is true of a running interpreter, by the address of ``_PyRuntime``.

    It is when at least one thread's frames can be followed from the innermost to the
    outermost one, and each makes sense. One frame alone says little: were ``previous`` to
    be found elsewhere, every stack could look like that.
    """
    memory = PythonMemory(layout, runtime, read)
    if len(read(runtime + layout.runtime_interpreters, _POINTER_BYTES)) != _POINTER_BYTES:
        return LayoutCheck("early", "its memory cannot be read")
    failures: list[str] = []
    try:
        for thread_id, frame in memory.threads():
            if thread_id and frame:
                try:
                    if _has_sound_frames(memory, read, thread_id, frame):
                        return LayoutCheck("good")
                except ValueError as error:
                    failures.append(str(error))
            if len(failures) == _MAX_FAILED_THREADS:
                break
    except ValueError as error:
        failures.append(str(error))
    if failures:
        return LayoutCheck("bad", f"its frames cannot be followed: {failures[0]}")
    return LayoutCheck("early", "no thread of it runs enough Python code yet")


def _has_sound_frames(memory: PythonMemory, read: Read, thread_id: int, frame: int) -> bool:
    # False: too few to tell. ValueError: what is wrong.
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
    # What is called was put on the stack by an instruction before the call.
    if any(caller.offset <= 0 for caller in frames[1:]):
        raise ValueError("a caller is at its first instruction")
    return len(frames) > 1 or codes[frames[0].code].name == _MODULE
