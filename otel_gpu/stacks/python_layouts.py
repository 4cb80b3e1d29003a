"""Where each version of CPython keeps its frames and code objects."""

# Some facts about layouts
# ------------------------
#
# A walk of Python frames follows pointers through structures that are CPython's own affair:
# they change with every minor version, and stay as they are from its first release
# candidate on, through all of its bug fixes. So a layout is chosen by the version that the
# interpreter states about itself, and never by what seems to fit.
#
# Since 3.13 the interpreter also says where things are: _PyRuntime begins with a table of
# offsets that its own compiler filled in, for debuggers. Before, they are in the table
# below, which tools/python_layouts.c prints from the headers of a version, and which a test
# compares with them.
#
# A build with Py_DEBUG has the same layout. One with Py_TRACE_REFS has not, and says so
# nowhere, which is why no layout is used before python_memory.py has seen it work.
# Free-threaded builds keep code in copies for each thread, and text in another form: their
# frames are not walked.

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
# Frames with this owner, or a higher one, have no Python code; 255 is one that no frame has.
_SHIM: Final = 3
_NO_SHIM: Final = 255
_MAX_FRAME_BYTES: Final = 256
_MAX_CODE_BYTES: Final = 512
_MAX_OFFSET: Final = 1 << 20


class Layout(NamedTuple):
    """
    The fields of ``struct interpreter`` that say how its memory is laid out, in its order.

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


UNKNOWN: Final = Layout(*[0] * len(Layout._fields))
"""Frames of an interpreter with this layout are not walked."""

# Of each field: where 3.10, 3.11 and 3.12 have it, and what _Py_DebugOffsets calls it. What a
# version lacks is 0 or empty.
_FIELDS: Final[Mapping[str, tuple[int, int, int, str]]] = {
    "runtime_interpreters": (32, 40, 40, "runtime.interpreters_head"),
    "interpreter_next": (0, 0, 0, "interpreter.next"),
    "interpreter_threads": (8, 16, 72, "interpreter.threads_head"),
    "thread_next": (8, 8, 8, "thread.next"),
    "thread_id": (176, 152, 136, "thread.thread_id"),
    "thread_frame": (24, 56, 56, "thread.current_frame"),
    "c_frame_frame": (0, 8, 0, ""),
    "frame_code": (32, 32, 0, "frame.executable"),
    "frame_previous": (24, 48, 8, "frame.previous"),
    "frame_instruction": (96, 56, 56, "frame.instr_ptr"),
    "frame_owner": (0, 68, 70, "frame.owner"),
    "shim_owner": (_NO_SHIM, _NO_SHIM, _SHIM, ""),
    "code_first_line": (40, 72, 68, "code.firstlineno"),
    "code_file": (104, 112, 112, "code.filename"),
    "code_name": (112, 128, 128, "code.qualname"),
    "code_line_table": (120, 136, 136, "code.linetable"),
    "code_instructions": (0, 184, 192, "code.co_code_adaptive"),
    "text_length": (16, 16, 16, "text.length"),
    "text_state": (32, 32, 32, "text.state"),
    "text_ascii": (48, 48, 40, "text.ascii_size"),
    "text_compact": (72, 72, 56, ""),
    "bytes_length": (16, 16, 16, "bytes.ob_size"),
    "bytes_data": (32, 32, 32, "bytes.ob_sval"),
}

# The structures of _Py_DebugOffsets with their fields, in its order, as far as we need it.
# Each field is 64 bits wide; before them are the cookie, the version and free_threaded.
_THREAD_FIELDS: Final = ("size", "prev", "next", "interp", "current_frame", "thread_id")
_CODE_FIELDS: Final = (
    *("size", "filename", "name", "qualname", "linetable", "firstlineno", "argcount"),
    *("localsplusnames", "localspluskinds", "co_code_adaptive"),
)
_SIZED: Final = ("size", "data", "length")
_OFFSETS_OF_3_13: Final = {
    "runtime": ("size", "finalizing", "interpreters_head"),
    "interpreter": (
        *("size", "id", "next", "threads_head", "gc", "imports_modules", "sysdict", "builtins"),
        *("ceval_gil", "gil", "gil_enabled", "gil_locked", "gil_holder"),
    ),
    "thread": (*_THREAD_FIELDS, "native_thread_id", "datastack_chunk", "status"),
    "frame": ("size", "previous", "executable", "instr_ptr", "localsplus", "owner"),
    "code": _CODE_FIELDS,
    "object": ("size", "ob_type"),
    "type": ("size", "tp_name", "tp_repr", "tp_flags"),
    "tuple": _SIZED,
    "list": _SIZED,
    "dict": ("size", "ma_keys", "ma_values"),
    "float": ("size", "ob_fval"),
    "long": ("size", "lv_tag", "ob_digit"),
    "bytes": ("size", "ob_size", "ob_sval"),
    "text": ("size", "state", "length", "ascii_size"),
}
_OFFSETS: Final[Mapping[int, Mapping[str, tuple[str, ...]]]] = {
    0x030D: _OFFSETS_OF_3_13,
    0x030E: {
        "runtime": _OFFSETS_OF_3_13["runtime"],
        "interpreter": (
            *("size", "id", "next", "threads_head", "threads_main", "gc", "imports_modules"),
            *("sysdict", "builtins", "ceval_gil", "gil", "gil_enabled", "gil_locked"),
            *("gil_holder", "code_object_generation", "tlbc_generation"),
        ),
        "thread": _OFFSETS_OF_3_13["thread"],
        "frame": (*_OFFSETS_OF_3_13["frame"], "stackpointer", "tlbc_index"),
        "code": (*_CODE_FIELDS, "co_tlbc"),
        "object": _OFFSETS_OF_3_13["object"],
        "type": _OFFSETS_OF_3_13["type"],
        "tuple": _SIZED,
        "list": _SIZED,
        "set": ("size", "used", "table", "mask"),
        "dict": _OFFSETS_OF_3_13["dict"],
        "float": _OFFSETS_OF_3_13["float"],
        "long": _OFFSETS_OF_3_13["long"],
        "bytes": _OFFSETS_OF_3_13["bytes"],
        "text": _OFFSETS_OF_3_13["text"],
    },
}
_OFFSETS_HEADER: Final = struct.Struct("<8sQQ")
OFFSETS_BYTES: Final = 1024
"""As many bytes from the beginning of ``_PyRuntime`` on hold the table of any version."""


def layout_of(version_hex: int, runtime: bytes) -> Layout:
    """
    Return the layout of an interpreter.

    Args:
        version_hex: Its version as in ``PY_VERSION_HEX``. Without the last two bytes (of a
            3.10, which has no symbol that tells), it is taken for a final release.
        runtime: The first ``OFFSETS_BYTES`` of its ``_PyRuntime``, in memory or in its file.

    Raises:
        ValueError: It is of a version or kind that we do not know; the text says which.
    """
    version, level = version_hex >> 16, version_hex >> 4 & 0xF
    name = f"Python {version >> 8}.{version & 0xFF}"
    if not _FIRST <= version <= _LAST:
        raise ValueError(f"{name} is not one of 3.10 to 3.14")
    if version_hex & 0xFFFF and level < _RELEASE_CANDIDATE:
        raise ValueError(f"this {name} is older than its first release candidate")
    if version < _FIRST_WITH_OFFSETS:
        column = version - _FIRST
        return _complete(version, {field: int(places[column]) for field, places in _FIELDS.items()})
    return _complete(version, _read_offsets(version_hex, name, runtime))


def _read_offsets(version_hex: int, name: str, runtime: bytes) -> dict[str, int]:
    structures = _OFFSETS[version_hex >> 16]
    needed_bytes = _OFFSETS_HEADER.size + 8 * sum(map(len, structures.values()))
    if len(runtime) < needed_bytes:
        raise ValueError(f"the runtime state of this {name} cannot be read")
    cookie, stated_hex, free_threaded = _OFFSETS_HEADER.unpack_from(runtime)
    if cookie != _COOKIE or stated_hex != version_hex:
        raise ValueError(f"the runtime state of this {name} begins with no table of offsets")
    if free_threaded:
        raise ValueError(f"this {name} is free-threaded")
    words = iter(memoryview(runtime)[_OFFSETS_HEADER.size : needed_bytes].cast("Q"))
    offset = {
        f"{structure}.{field}": next(words)
        for structure, fields in structures.items()
        for field in fields
    }
    offsets = {field: offset.get(name, 0) for field, (*_, name) in _FIELDS.items()}
    text_compact = offsets["text_ascii"] + _UTF8_AND_ITS_LENGTH_BYTES
    return offsets | {"shim_owner": _SHIM, "text_compact": text_compact}


def _complete(version: int, offsets: Mapping[str, int]) -> Layout:
    frame = ("frame_code", "frame_previous", "frame_instruction", "frame_owner")
    frame_bytes = max(map(offsets.__getitem__, frame)) + _POINTER_BYTES
    code = ("code_first_line", "code_file", "code_name", "code_line_table")
    code_bytes = max(map(offsets.__getitem__, code)) + _POINTER_BYTES
    if (
        frame_bytes > _MAX_FRAME_BYTES
        or code_bytes > _MAX_CODE_BYTES
        or max(offsets.values()) > _MAX_OFFSET
    ):
        raise ValueError("the interpreter states offsets that cannot be")
    sizes = {"version": version, "frame_bytes": frame_bytes, "code_bytes": code_bytes}
    return Layout(**offsets, **sizes)
