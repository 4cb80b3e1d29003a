"""Events of the records whose bodies are JSON."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.wire.blocks import MemoryMap
from otel_gpu.wire.bodies import parse_body
from otel_gpu.wire.device_faults import device_fault_of
from otel_gpu.wire.events import Capture, Event, Probes
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.readings import Devices, FabricRead, Pressure, Status
from otel_gpu.wire.rejections import BAD_BODY, BAD_JSON, RejectedError
from otel_gpu.wire.symbol_records import (
    CulpritSeen,
    FunctionSeen,
    ProcessSeen,
    ResourceSeen,
    Stack,
    UserStack,
)

_HEADER_BYTES = wire.RECORD_HEADER.size


def _parse(record: bytes) -> tuple[int, int, int, Mapping[str, Any]]:
    kind, _, _, ktime_ns, program_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(record)
    try:
        body = parse_body(kind, record[_HEADER_BYTES:])
    except ValueError as error:
        raise RejectedError(BAD_JSON) from error
    except TypeError as error:
        raise RejectedError(BAD_BODY) from error
    return ktime_ns, program_ktime_ns, pid, body


def _with_info(event: Callable[[int, Mapping[str, Any]], Event]) -> Callable[[bytes], Event]:
    def decode_kind(record: bytes) -> Event:
        ktime_ns, _, _, info = _parse(record)
        return event(ktime_ns, info)

    return decode_kind


def _decode_stack(record: bytes) -> Stack:
    ktime_ns, _, _, body = _parse(record)
    # Thousands of stacks are kept, of some hundred functions.
    return Stack(ktime_ns, body["kernel_stack"], tuple(map(sys.intern, body["functions"])))


def _decode_user_stack(record: bytes) -> UserStack:
    ktime_ns, _, _, body = _parse(record)
    frames = tuple(Frame._make(frame) for frame in body["frames"])
    return UserStack(
        ktime_ns, body["stack"], frames, body["complete"], body["native"], body["python"]
    )


def _decode_function(record: bytes) -> FunctionSeen:
    ktime_ns, program_ktime_ns, pid, body = _parse(record)
    return FunctionSeen(ktime_ns, program_ktime_ns, pid, body["function"], body["name"])


def _decode_resource(record: bytes) -> ResourceSeen:
    ktime_ns, _, _, body = _parse(record)
    return ResourceSeen(ktime_ns, body["resource"], body)


def _decode_culprit(record: bytes) -> CulpritSeen:
    ktime_ns, _, pid, body = _parse(record)
    return CulpritSeen(ktime_ns, pid, body)


def _decode_memory_map(record: bytes) -> MemoryMap:
    ktime_ns, program_ktime_ns, pid, body = _parse(record)
    return MemoryMap(ktime_ns, program_ktime_ns, pid, body["device"], body)


OF_JSON: Mapping[int, Callable[[bytes], Event]] = {
    wire.RECORD_STACK: _decode_stack,
    wire.RECORD_USER_STACK: _decode_user_stack,
    wire.RECORD_FUNCTION: _decode_function,
    wire.RECORD_RESOURCE: _decode_resource,
    wire.RECORD_CULPRIT: _decode_culprit,
    wire.RECORD_PRESSURE: _with_info(Pressure),
    wire.RECORD_DEVICES: _with_info(Devices),
    wire.RECORD_DEVICE_FAULT: lambda record: device_fault_of(*_parse(record)),
    wire.RECORD_FABRIC: _with_info(FabricRead),
    wire.RECORD_MEMORY_MAP: _decode_memory_map,
    wire.RECORD_CAPTURE: _with_info(Capture),
    wire.RECORD_PROCESS: lambda record: ProcessSeen(*_parse(record)),
    wire.RECORD_PROBES: _with_info(Probes),
    wire.RECORD_STATUS: _with_info(Status),
}
"""What makes an event of a record, by its kind."""
