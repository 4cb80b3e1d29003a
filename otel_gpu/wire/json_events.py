"""Events of the records whose bodies are JSON."""

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import ValidationError

from otel_gpu import wire
from otel_gpu.wire import bodies
from otel_gpu.wire.blocks import MemoryMap
from otel_gpu.wire.device_bodies import DEVICES
from otel_gpu.wire.device_faults import DEVICE_FAULT, DeviceFault
from otel_gpu.wire.events import Capture, Event, Probes
from otel_gpu.wire.fabric_bodies import FABRIC
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.json_body import BodyType
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
_T = TypeVar("_T")


def _read(record: bytes, body_type: BodyType[_T]) -> tuple[int, int, int, _T]:
    _, _, _, ktime_ns, program_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(record)
    try:
        body = body_type.parse(record[_HEADER_BYTES:])
    except ValidationError as error:
        raise RejectedError(BAD_BODY) from error
    except ValueError as error:
        raise RejectedError(BAD_JSON) from error
    return ktime_ns, program_ktime_ns, pid, body


def _document(
    event: Callable[[int, _T], Event], body_type: BodyType[_T]
) -> Callable[[bytes], Event]:
    def decode_kind(record: bytes) -> Event:
        ktime_ns, _, _, info = _read(record, body_type)
        return event(ktime_ns, info)

    return decode_kind


def _decode_stack(record: bytes) -> Stack:
    ktime_ns, _, _, body = _read(record, bodies.KERNEL_STACK)
    # Thousands of stacks are kept, of some hundred functions.
    return Stack(ktime_ns, body.kernel_stack, tuple(map(sys.intern, body.functions)))


def _decode_user_stack(record: bytes) -> UserStack:
    ktime_ns, _, _, body = _read(record, bodies.USER_STACK)
    frames = tuple(map(Frame._make, body.frames))
    return UserStack(
        ktime_ns=ktime_ns,
        stack=body.stack,
        frames=frames,
        complete=body.complete,
        native=body.native,
        python=body.python,
    )


def _decode_function(record: bytes) -> FunctionSeen:
    ktime_ns, program_ktime_ns, pid, body = _read(record, bodies.FUNCTION)
    return FunctionSeen(ktime_ns, program_ktime_ns, pid=pid, function=body.function, name=body.name)


def _decode_resource(record: bytes) -> ResourceSeen:
    ktime_ns, _, _, body = _read(record, bodies.RESOURCE)
    return ResourceSeen(ktime_ns, body["resource"], body)


def _decode_culprit(record: bytes) -> CulpritSeen:
    ktime_ns, _, pid, body = _read(record, bodies.PROCESS)
    return CulpritSeen(ktime_ns, pid, body)


def _decode_memory_map(record: bytes) -> MemoryMap:
    ktime_ns, program_ktime_ns, pid, body = _read(record, bodies.MEMORY_MAP)
    if "device" not in body:
        raise RejectedError(BAD_BODY)
    return MemoryMap(ktime_ns, program_ktime_ns, pid=pid, device=body["device"], info=body)


def _decode_device_fault(record: bytes) -> DeviceFault:
    ktime_ns, program_ktime_ns, pid, body = _read(record, DEVICE_FAULT)
    return DeviceFault(
        ktime_ns=ktime_ns,
        program_ktime_ns=program_ktime_ns,
        pid=pid,
        reported_by=body.reported_by,
        xid=body.xid,
        bus_id=body.bus_id,
        reported_pid=body.pid,
        reported_name=body.name,
        times=body.times,
        message=body.message,
    )


OF_JSON: Mapping[int, Callable[[bytes], Event]] = {
    wire.RECORD_STACK: _decode_stack,
    wire.RECORD_USER_STACK: _decode_user_stack,
    wire.RECORD_FUNCTION: _decode_function,
    wire.RECORD_RESOURCE: _decode_resource,
    wire.RECORD_CULPRIT: _decode_culprit,
    wire.RECORD_PRESSURE: _document(Pressure, bodies.PRESSURE),
    wire.RECORD_DEVICES: _document(Devices, DEVICES),
    wire.RECORD_DEVICE_FAULT: _decode_device_fault,
    wire.RECORD_FABRIC: _document(FabricRead, FABRIC),
    wire.RECORD_MEMORY_MAP: _decode_memory_map,
    wire.RECORD_CAPTURE: _document(Capture, bodies.CAPTURE),
    wire.RECORD_PROCESS: lambda record: ProcessSeen(*_read(record, bodies.PROCESS)),
    wire.RECORD_PROBES: _document(Probes, bodies.PROBES),
    wire.RECORD_STATUS: _document(Status, bodies.STATUS),
}
"""Makes an event of a record, by its kind."""
