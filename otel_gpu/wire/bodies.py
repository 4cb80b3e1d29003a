"""
JSON bodies of the records that the agent makes, checked before anyone trusts them.

A recording may come from anywhere, so a body is checked here once, and the rooms
after this one may rely on it: a field that is present has the type below, every
number fits 64 bits and is finite, every count a signed 64, every string can be written as UTF-8. Fields may
be missing, except those named in ``_REQUIRED``; unknown fields are let through.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from otel_gpu import wire
from otel_gpu.wire.device_bodies import SHAPE as DEVICES_SHAPE
from otel_gpu.wire.device_bodies import check_devices
from otel_gpu.wire.device_faults import SHAPE as DEVICE_FAULT_SHAPE
from otel_gpu.wire.device_faults import check_device_fault
from otel_gpu.wire.fabric_bodies import SHAPE as FABRIC_SHAPE
from otel_gpu.wire.fabric_bodies import check_fabric
from otel_gpu.wire.frames import CUT, KERNEL, NATIVE, PYTHON, Frame

_MAX_DEPTH = 16
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1

# Shapes: a type, a tuple of types, [shape of each item], {field: shape}, or
# (Mapping, shape) for a mapping whose every value has one shape.
_OPTIONAL_TEXT = (str, type(None))
_OPTIONAL_INT = (int, type(None))
_SHAPES: Mapping[int, Mapping[str, Any]] = {
    wire.RECORD_CAPTURE: {
        "agent": {"version": str, "pid": int},
        "host": {
            "name": str,
            "id": _OPTIONAL_TEXT,
            "arch": str,
            "os_version": _OPTIONAL_TEXT,
            "boot_id": _OPTIONAL_TEXT,
            "cpus": _OPTIONAL_INT,
        },
        "mode": str,
        "layout": {
            "durations": {"kind": str, "scale": int, "offset": int, "bounds_ns": [int]},
            "sizes": {"kind": str, "scale": int, "offset": int, "bounds_bytes": [int]},
        },
        "settings": dict,
    },
    wire.RECORD_PROCESS: {
        "start_boot_ns": _OPTIONAL_INT,
        "boot_offset_ns": _OPTIONAL_INT,
        "ppid": _OPTIONAL_INT,
        "vpid": _OPTIONAL_INT,
        "exe": _OPTIONAL_TEXT,
        "command_args": [str],
        "comm": str,
        "owner": _OPTIONAL_TEXT,
        "cgroups": [str],
        "env": (Mapping, str),
        "otel_context": (dict, type(None)),
        "mountinfo_container_id": _OPTIONAL_TEXT,
    },
    wire.RECORD_PROBES: {
        "library": str,
        "device": int,
        "inode": int,
        "build_id": _OPTIONAL_TEXT,
        "symbols": int,
        "exported": int,
        "failed": [str],
        "preload": int,
        "sites": [{"offset": int, "instruction": str, "class": str, "symbols": [str]}],
    },
    wire.RECORD_STATUS: {
        "cpu_ns": int,
        "rss_bytes": int,
        "rejected": (Mapping, int),
        "dropped": (Mapping, int),
        "stacks": (Mapping, int),
        "blocks": (Mapping, int),
        "steps": (Mapping, int),
        "devices": (Mapping, int),
        "preload": (Mapping, int),
        "files": (Mapping, int),
        "preload_calls": int,
        "errors": (Mapping, int),
        "skipped": (Mapping, int),
        "off": (Mapping, int),
        "unknown_interpreters": (Mapping, int),
        "still_running": int,
        "missed_starts": [{"pid": int, "name": str, "reason": str, "file": str}],
        "unread": [{"pid": int, "uid": int, "name": str, "what": str, "reason": str}],
        "over_share": [{"bound": str, "pid": int, "name": str, "user": str, "count": int}],
    },
    wire.RECORD_STACK: {"kernel_stack": int, "functions": [str]},
    wire.RECORD_PRESSURE: {
        "psi": (Mapping, dict),
        "load1": float,
        "cpus": int,
        "swap_in_pages": int,
        "swap_out_pages": int,
        "cgroups": (Mapping, dict),
    },
    wire.RECORD_DEVICES: DEVICES_SHAPE,
    wire.RECORD_DEVICE_FAULT: DEVICE_FAULT_SHAPE,
    wire.RECORD_FABRIC: FABRIC_SHAPE,
    wire.RECORD_RESOURCE: {
        "resource": int,
        "kind": str,
        "name": str,
        "file_system": str,
        "mount": str,
        "source": str,
        "peers": [int],
        "retransmits": int,
    },
    wire.RECORD_MEMORY_MAP: {
        "device": int,
        "segments": [[int]],
        "blocks": [[int]],
        "left_out": int,
        "smallest_bytes": int,
    },
    wire.RECORD_CULPRIT: {
        "comm": str,
        "command_args": [str],
        "exe": _OPTIONAL_TEXT,
        "owner": _OPTIONAL_TEXT,
        "cgroups": [str],
        "start_boot_ns": _OPTIONAL_INT,
    },
    wire.RECORD_FUNCTION: {"function": int, "name": str},
    wire.RECORD_USER_STACK: {"stack": int, "native": str, "python": str, "frames": [list]},
}
_REQUIRED: Mapping[int, tuple[str, ...]] = {
    # Other tools do not say which host it was.
    wire.RECORD_CAPTURE: ("layout",),
    wire.RECORD_PROCESS: (),
    wire.RECORD_PROBES: ("library",),
    wire.RECORD_STATUS: (),
    wire.RECORD_STACK: ("kernel_stack", "functions"),
    wire.RECORD_PRESSURE: (),
    wire.RECORD_DEVICES: (),
    wire.RECORD_DEVICE_FAULT: ("told_by", "xid", "bus_id"),
    wire.RECORD_FABRIC: (),
    wire.RECORD_RESOURCE: ("resource", "kind"),
    wire.RECORD_CULPRIT: (),
    wire.RECORD_FUNCTION: ("function", "name"),
    wire.RECORD_MEMORY_MAP: ("device", "segments", "blocks", "left_out", "smallest_bytes"),
    wire.RECORD_USER_STACK: ("stack", "complete", "native", "python", "frames"),
}
_BOUNDS_FIELDS = {"durations": "bounds_ns", "sizes": "bounds_bytes"}
# Those of OTel's exponential histograms, and of any duration or size in 64 bits.
# Fields of a status that are counts by name.
_COUNTS = (
    *("rejected", "dropped", "stacks", "blocks", "steps", "errors", "skipped", "off"),
    *("devices", "preload", "files"),
)
_SCALES = range(-10, 21)
_OFFSETS = range(-(1 << 27), 1 << 27)
# Of a user stack: 256 frames and one that says how many are left out, texts of 512
# characters and a sign that something was cut.
MAX_FRAMES = 257
MAX_FRAME_TEXT = 513
_MAX_LINE = (1 << 31) - 1
_FRAME_KINDS = frozenset({PYTHON, NATIVE, KERNEL, CUT})
_FRAME_FIELDS = len(Frame._fields)
_CONTAINERS = frozenset({dict, list})
_UINT32_MAX = (1 << 32) - 1
RESOURCE_KINDS = frozenset({"file", "device", "tcp", "udp", "unix", "pipe", "eventfd", "other"})
_MAX_PEERS = 64
_SEGMENT_NUMBERS = 2  # address, size
_BLOCK_NUMBERS = 3  # address, size, stack
_NATIVE_METHODS = frozenset({"eh_frame", "frame_pointer", "none"})
_PYTHON_STATUSES = frozenset({"ok", "none", "no_thread", "cut", "broken"})


def parse_body(kind: int, encoded: bytes) -> dict[str, Any]:
    """
    Parse and check the body of a record of ``kind``.

    Raises:
        ValueError: It is not JSON, or nests too deep.
        TypeError: It is JSON, but not the body that this kind of record has.
    """
    try:
        body: dict[str, Any] = json.loads(
            encoded.decode("utf-8"),
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    # Only an escape can smuggle half of a surrogate pair past the decoding above.
    if b"\\u" in encoded:
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    if _is_deeper(body, _MAX_DEPTH):
        raise ValueError("nested too deep")
    _check(body, _SHAPES[kind], "body")
    for name in _REQUIRED[kind]:
        if name not in body:
            raise TypeError(f"body lacks {name}")
    if check := _CHECKS.get(kind):
        check(body)
    return body


def _parse_int(text: str) -> int:
    # int() of a very long text is slow before it is refused.
    value = int(text) if len(text) <= len(str(_INT64_MIN)) else _UINT64_MAX + 1
    if not _INT64_MIN <= value <= _UINT64_MAX:
        raise ValueError("a number does not fit 64 bits")
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _is_deeper(value: object, limit: int) -> bool:
    """Say whether lists and objects are in each other more than so many deep."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[attr-defined]
            if type(inner) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def _check(value: object, shape: Any, where: str) -> None:  # noqa: ANN401 - see Shapes
    match shape:
        case [item] if isinstance(shape, list):
            _check_type(value, list, where)
            for element in value:  # type: ignore[attr-defined]
                _check(element, item, where)
        case dict():
            _check_type(value, dict, where)
            for name, field_shape in shape.items():
                if name in value:  # type: ignore[operator]
                    _check(value[name], field_shape, f"{where}.{name}")  # type: ignore[index]
        case (_, item) if shape[0] is Mapping:
            _check_type(value, dict, where)
            for element in value.values():  # type: ignore[attr-defined]
                _check(element, item, where)
        case _:
            _check_type(value, shape, where)


def _check_type(value: object, expected: Any, where: str) -> None:  # noqa: ANN401 - type(s)
    # To JSON true is no number; to Python it is.
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError(f"{where} has the wrong type")


def _check_counts(body: Mapping[str, Any]) -> None:
    numbers = [body.get("cpu_ns", 0), body.get("rss_bytes", 0)]
    for name in _COUNTS:
        numbers += body.get(name, {}).values()
    if not all(0 <= number <= _INT64_MAX for number in numbers):
        raise TypeError("body counts: expected numbers from 0 to 2^63 - 1")


def _check_user_stack(body: Mapping[str, Any]) -> None:
    good = (
        0 < body["stack"] <= _UINT64_MAX
        and isinstance(body["complete"], bool)
        and body["native"] in _NATIVE_METHODS
        and body["python"] in _PYTHON_STATUSES
        and len(body["frames"]) <= MAX_FRAMES
    )
    if not good or not all(map(_is_frame, body["frames"])):
        raise TypeError("body is an unknown kind of stack")


def _check_function(body: Mapping[str, Any]) -> None:
    if not 0 < body["function"] <= _UINT64_MAX or not 0 < len(body["name"]) <= MAX_FRAME_TEXT:
        raise TypeError("body is not a kernel's name")


def _check_resource(body: Mapping[str, Any]) -> None:
    good = (
        0 < body["resource"] <= _UINT32_MAX
        and body["kind"] in RESOURCE_KINDS
        and all(isinstance(body.get(name, False), bool) for name in ("is_remote", "is_incoming"))
        and 0 <= body.get("retransmits", 0) <= _INT64_MAX
        and len(body.get("peers", ())) <= _MAX_PEERS
        and all(0 < peer <= _UINT32_MAX for peer in body.get("peers", ()))
    )
    if not good:
        raise TypeError("body is an unknown kind of resource")


def _check_memory_map(body: Mapping[str, Any]) -> None:
    segments, blocks = body["segments"], body["blocks"]
    counts = (body["left_out"], body["smallest_bytes"], *(row[1] for row in blocks if row[1:]))
    good = (
        -(1 << 31) <= body["device"] < 1 << 31
        and all(len(segment) == _SEGMENT_NUMBERS for segment in segments)
        and all(len(block) == _BLOCK_NUMBERS for block in blocks)
        and all(0 <= number <= _INT64_MAX for number in counts)
        and all(0 <= size_bytes <= _INT64_MAX for _, size_bytes in segments)
        and all(min(row) >= 0 for row in itertools.chain(segments, blocks))
    )
    if not good:
        raise TypeError("body is not a map of memory that this version knows")


def _is_frame(frame: list[Any]) -> bool:
    # Of a stack that was not met before there are dozens; and to Python, true is a number.
    if len(frame) != _FRAME_FIELDS:
        return False
    kind, function, file, line, module, address = frame
    return (
        type(kind) is type(function) is type(file) is type(module) is str
        and type(line) is type(address) is int
        and kind in _FRAME_KINDS
        and max(len(function), len(file), len(module)) <= MAX_FRAME_TEXT
        and 0 <= line <= _MAX_LINE
        and 0 <= address <= _UINT64_MAX
    )


def _check_layouts(body: Mapping[str, Any]) -> None:
    for name, bounds_field in _BOUNDS_FIELDS.items():
        _check_layout(body["layout"].get(name), bounds_field)


def _check_layout(layout: Any, bounds_field: str) -> None:  # noqa: ANN401 - any JSON value
    match layout:
        case {"kind": "exponential", "scale": scale, "offset": offset}:
            good = scale in _SCALES and offset in _OFFSETS
        case {"kind": "explicit"} if bounds_field in layout:
            bounds = layout[bounds_field]
            rising = all(low < high for low, high in itertools.pairwise(bounds))
            good = len(bounds) <= wire.MAX_BOUNDS and rising and all(b >= 0 for b in bounds)
        case _:
            good = False
    if not good:
        raise TypeError("body.layout is not one that this version knows")


_CHECKS: Mapping[int, Callable[[Mapping[str, Any]], None]] = {
    wire.RECORD_CAPTURE: _check_layouts,
    wire.RECORD_DEVICES: check_devices,
    wire.RECORD_DEVICE_FAULT: check_device_fault,
    wire.RECORD_FABRIC: check_fabric,
    wire.RECORD_RESOURCE: _check_resource,
    wire.RECORD_STATUS: _check_counts,
    wire.RECORD_MEMORY_MAP: _check_memory_map,
    wire.RECORD_USER_STACK: _check_user_stack,
}
