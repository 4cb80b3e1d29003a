"""Layouts of frames and code objects in each version of CPython."""

# Some facts about layouts
# ------------------------
#
# A walk of Python frames follows pointers through internal structures of CPython. They change with
# every minor version, and are stable from its first release candidate on. So the layout is chosen by
# the version that the interpreter reports, and never by what seems to fit.
#
# Since 3.13, _PyRuntime begins with a table of offsets for debuggers (_Py_DebugOffsets), which its
# compiler filled in. For older versions they are in the table below. tools/python_layouts.c prints
# its columns from the headers of a version, and a test compares them.
#
# A build with Py_DEBUG has the same layout. One with Py_TRACE_REFS has another one, which nothing in
# memory shows. So a layout is only used after interpreter_memory.py has verified it. Free-threaded
# builds keep copies of code for each thread, and other texts: their frames are not walked.

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

_RELEASE_CANDIDATE: Final = 0xC
_FIRST: Final = 0x030A
_LAST: Final = 0x030E
_FIRST_WITH_OFFSETS: Final = 0x030D
_COOKIE: Final = b"xdebugpy"
_POINTER_BYTES: Final = 8
_UTF8_AND_ITS_LENGTH_BYTES: Final = 16
# Frames with this owner, or a higher one, have no Python code; no frame has 255.
_SHIM: Final = 3
_NO_SHIM: Final = 255
_MAX_FRAME_BYTES: Final = 256
_MAX_CODE_BYTES: Final = 512
_MAX_OFFSET: Final = 1 << 20


class InterpreterLayout(NamedTuple):
    """
    The layout fields of ``struct interpreter``, in their order.

    ``version`` is major << 8 | minor; all others are explained there.
    """

    version: int
    runtime_interpreters: int
    interpreter_next: int
    interpreter_threads: int
    thread_next: int
    thread_id: int
    thread_frame: int
    c_frame_frame: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int
    frame_bytes: int
    shim_owner: int
    code_first_line: int
    code_file: int
    code_name: int
    code_line_table: int
    code_instructions: int
    code_bytes: int
    text_length: int
    text_state: int
    text_ascii: int
    text_compact: int
    bytes_length: int
    bytes_data: int


UNKNOWN: Final = InterpreterLayout(*[0] * len(InterpreterLayout._fields))
"""Frames of an interpreter with this layout are not walked."""

# For each field: its offset in 3.10, 3.11 and 3.12, and the word of the table in _PyRuntime that
# contains it in 3.13 and 3.14, counted from the first structure. 0: the version lacks it.
_FIELDS: Final[Mapping[str, tuple[int, int, int, int, int]]] = {
    "runtime_interpreters": (32, 40, 40, 2, 2),
    "interpreter_next": (0, 0, 0, 5, 5),
    "interpreter_threads": (8, 16, 72, 6, 6),
    "thread_next": (8, 8, 8, 18, 21),
    "thread_id": (176, 152, 136, 21, 24),
    "thread_frame": (24, 56, 56, 20, 23),
    "c_frame_frame": (0, 8, 0, 0, 0),
    "frame_code": (32, 32, 0, 27, 30),
    "frame_previous": (24, 48, 8, 26, 29),
    "frame_instruction": (96, 56, 56, 28, 31),
    "frame_owner": (0, 68, 70, 30, 33),
    "shim_owner": (_NO_SHIM, _NO_SHIM, _SHIM, 0, 0),
    "code_first_line": (40, 72, 68, 36, 41),
    "code_file": (104, 112, 112, 32, 37),
    "code_name": (112, 128, 128, 34, 39),
    "code_line_table": (120, 136, 136, 35, 40),
    "code_instructions": (0, 184, 192, 40, 45),
    "text_length": (16, 16, 16, 66, 76),
    "text_state": (32, 32, 32, 65, 75),
    "text_ascii": (48, 48, 40, 67, 77),
    "text_compact": (72, 72, 56, 0, 0),
    "bytes_length": (16, 16, 16, 62, 72),
    "bytes_data": (32, 32, 32, 63, 73),
}
# The cookie, the version and free_threaded; all are 64 bits wide.
_OFFSETS_HEADER: Final = struct.Struct("<8sQQ")
OFFSETS_BYTES: Final = 1024
"""Bytes from the start of ``_PyRuntime`` that contain the table of any version."""


def layout_of(version_hex: int, runtime: bytes) -> InterpreterLayout:
    """
    Return the layout of an interpreter by its version, as in ``PY_VERSION_HEX``.

    Without the last two bytes (3.10 has no symbol for them), a final release is assumed.
    ``runtime`` is the first ``OFFSETS_BYTES`` of its ``_PyRuntime``, in memory or in its file.

    Raises:
        ValueError: The version or kind is unsupported; the text has it.
    """
    version, level = version_hex >> 16, version_hex >> 4 & 0xF
    name = f"Python {version >> 8}.{version & 0xFF}"
    if not _FIRST <= version <= _LAST:
        raise ValueError(f"{name} is not one of 3.10 to 3.14")
    if version_hex & 0xFFFF and level < _RELEASE_CANDIDATE:
        raise ValueError(f"this {name} is older than its first release candidate")
    places = {field: columns[version - _FIRST] for field, columns in _FIELDS.items()}
    if version < _FIRST_WITH_OFFSETS:
        return _complete(version, places)
    return _complete(version, _read_offsets(version_hex, name, runtime=runtime, places=places))


def _read_offsets(
    version_hex: int, name: str, runtime: bytes, places: Mapping[str, int]
) -> dict[str, int]:
    needed_bytes = _OFFSETS_HEADER.size + 8 * (max(places.values()) + 1)
    if len(runtime) < needed_bytes:
        raise ValueError(f"the runtime state of this {name} cannot be read")
    cookie, stated_hex, free_threaded = _OFFSETS_HEADER.unpack_from(runtime)
    if cookie != _COOKIE or stated_hex != version_hex:
        raise ValueError(f"the runtime state of this {name} has no table of offsets")
    if free_threaded:
        raise ValueError(f"this {name} is free-threaded")
    words = memoryview(runtime)[_OFFSETS_HEADER.size : needed_bytes].cast("Q")
    offsets = {field: words[place] if place else 0 for field, place in places.items()}
    text_compact = offsets["text_ascii"] + _UTF8_AND_ITS_LENGTH_BYTES
    return offsets | {"shim_owner": _SHIM, "text_compact": text_compact}


def _complete(version: int, offsets: Mapping[str, int]) -> InterpreterLayout:
    frame = ("frame_code", "frame_previous", "frame_instruction", "frame_owner")
    frame_bytes = max(map(offsets.__getitem__, frame)) + _POINTER_BYTES
    code = ("code_first_line", "code_file", "code_name", "code_line_table")
    code_bytes = max(map(offsets.__getitem__, code)) + _POINTER_BYTES
    too_large = frame_bytes > _MAX_FRAME_BYTES or code_bytes > _MAX_CODE_BYTES
    if too_large or max(offsets.values()) > _MAX_OFFSET:
        raise ValueError("the interpreter states impossible offsets")
    sizes = {"version": version, "frame_bytes": frame_bytes, "code_bytes": code_bytes}
    return InterpreterLayout(**offsets, **sizes)
