"""
Records to events: bytes in, immutable tuples out, order kept.

One function per kind of record, found in one table. ``struct`` and not NumPy does
the unpacking: docs/decisions/0010-struct-not-numpy.md holds the figures.
"""

import functools
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.c_struct import CStruct
from otel_gpu.decode.bodies import parse_body
from otel_gpu.decode.events import (
    Aggregate,
    Aggregates,
    Capture,
    Clock,
    Counters,
    CudaCall,
    Device,
    Event,
    Exec,
    Exit,
    Fork,
    Gap,
    Library,
    OpenCall,
    Pressure,
    Probes,
    ProcessSeen,
    SeriesKey,
    Stack,
    Stall,
    Status,
    Times,
    TimesKey,
    UserStack,
)
from otel_gpu.faults import Faults
from otel_gpu.stacks.frames import Frame

REJECTED_SHORT = "short"
REJECTED_SIZE_MISMATCH = "size_mismatch"
REJECTED_UNKNOWN_KIND = "unknown_kind"
REJECTED_BAD_JSON = "bad_json"
REJECTED_BAD_BODY = "bad_body"

_U64_MASK = (1 << 64) - 1
# OTLP counts in signed 64 bits. No host gets there; a recording may say it did.
_INT64_MAX = (1 << 63) - 1
_NO_HIGH_BYTES = bytes(wire.MAX_BUCKETS)
# Distinct thread names that are remembered as text; a name costs a lookup, not a decode.
_REMEMBERED_NAMES = 4096

_HEADER_BYTES = wire.RECORD_HEADER.size
_CALL_BYTES = wire.CUDA_CALL_RECORD.size
# What a record's first values say about itself: kind, flags, size.
_KIND_AND_SIZE = struct.Struct("<HHI")
_SERIES = struct.Struct(wire.AGGREGATE_KEY.format + wire.AGGREGATE.format.removeprefix("<"))
_TIMES_ENTRY = struct.Struct(wire.TIMES_KEY.format + wire.TIMES.format.removeprefix("<"))
# Of the first bucket, in a series. Buckets below 2**56 fit even when they are added up.
_HIGHEST_BYTE = _SERIES.size - 8 * wire.MAX_BUCKETS + 7

_unpack_call = wire.CUDA_CALL_RECORD.unpack
_new_tuple = tuple.__new__


class _RejectedError(Exception):
    """Carries a reason from the function of a kind to the counter."""


def decode(
    records: Iterable[bytes], rejected: Counter[str], faults: Faults | None = None
) -> Iterator[Event]:
    """
    Decode records in order, skipping the ones that cannot be understood.

    A record is rejected when it is shorter than a header (``short``), when its
    length, its ``size`` field and its kind disagree (``size_mismatch``), when its
    kind is unknown (``unknown_kind``), when its body is not JSON (``bad_json``) or
    not what the kind holds (``bad_body``). Rejections are data about us, not about
    the traced program, so they are counted and the stream goes on.

    Text from the kernel ends at its first NUL; bytes that are not UTF-8 are replaced.

    An error of our own about one record is counted in ``faults``; without any, it is raised.
    """
    for record in records:
        # Calls are most of what arrives, and their size is theirs alone.
        if len(record) == _CALL_BYTES:
            values = _unpack_call(record)
            if values[0] == wire.RECORD_CUDA_CALL and values[2] == _CALL_BYTES:
                yield _new_tuple(
                    CudaCall,
                    (
                        *values[3:23],
                        values[23:26],
                        values[26:29],
                        *values[29:34],
                        _decode_name(values[34]),
                    ),
                )
                continue
        try:
            yield _decode_record(record)
        except _RejectedError as error:
            rejected[str(error)] += 1
        except Exception as error:
            if faults is None:
                raise
            faults.add("decode", error)


def _decode_record(record: bytes) -> Event:
    if len(record) < _HEADER_BYTES:
        raise _RejectedError(REJECTED_SHORT)
    kind, _, size = _KIND_AND_SIZE.unpack_from(record)
    if size != len(record):
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    if kind == wire.RECORD_CUDA_CALL:
        # The right size was taken before.
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    decode_kind = _DECODERS.get(kind)
    if decode_kind is None:
        raise _RejectedError(REJECTED_UNKNOWN_KIND)
    return decode_kind(record)


def _unpack(layout: CStruct, record: bytes) -> tuple[Any, ...]:
    # What follows kind, flags and size.
    if len(record) != layout.size:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    return layout.unpack(record)[3:]


@functools.lru_cache(maxsize=_REMEMBERED_NAMES)
def _decode_name(raw: bytes) -> str:
    return _decode_text(raw)


def _decode_text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _decode_stall(record: bytes) -> Stall:
    *numbers, comm, culprit_comm, waker_comm = _unpack(wire.STALL_RECORD, record)
    return Stall._make(
        (*numbers, _decode_name(comm), _decode_name(culprit_comm), _decode_name(waker_comm))
    )


def _decode_gap(record: bytes) -> Gap:
    *numbers, comm = _unpack(wire.GAP_RECORD, record)
    return Gap._make((*numbers, _decode_name(comm)))


def _decode_fork(record: bytes) -> Fork:
    *numbers, comm = _unpack(wire.FORK_RECORD, record)
    return Fork._make((*numbers, _decode_name(comm)))


def _decode_exec(record: bytes) -> Exec:
    *numbers, comm, path = _unpack(wire.EXEC_RECORD, record)
    return Exec._make((*numbers, _decode_name(comm), _decode_text(path)))


def _decode_exit(record: bytes) -> Exit:
    *numbers, exit_code, comm = _unpack(wire.EXIT_RECORD, record)
    flags = wire.RECORD_HEADER.unpack_from(record)[1]
    is_known = not flags & wire.EXIT_NOT_SEEN
    return Exit._make((*numbers, exit_code if is_known else None, _decode_name(comm)))


def _decode_library(record: bytes) -> Library:
    *numbers, path = _unpack(wire.LIBRARY_RECORD, record)
    return Library._make((*numbers, _decode_text(path)))


def _decode_device(record: bytes) -> Device:
    *numbers, has_name, uuid, name = _unpack(wire.DEVICE_RECORD, record)
    return Device._make((*numbers, uuid, _decode_text(name) if has_name else ""))


def _decode_clock(record: bytes) -> Clock:
    ktime_ns, _, _, _, unix_ns = _unpack(wire.CLOCK_RECORD, record)
    return Clock(ktime_ns, unix_ns)


def _decode_counters(record: bytes) -> Counters:
    # Recordings of other versions have fewer counters, or more.
    count, rest = divmod(len(record) - _HEADER_BYTES, 8)
    if rest or not count:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    ktime_ns = wire.RECORD_HEADER.unpack_from(record)[3]
    values = struct.unpack_from(f"<{count}Q", record, _HEADER_BYTES)
    if max(values) > _INT64_MAX:
        raise _RejectedError(REJECTED_BAD_BODY)
    return Counters(ktime_ns, values)


def _decode_open_call(record: bytes) -> OpenCall:
    *numbers, comm = _unpack(wire.OPEN_CALL_RECORD, record)
    return OpenCall._make((*numbers, _decode_name(comm)))


def _decode_aggregates(record: bytes) -> Aggregates:
    fixed_bytes = wire.AGGREGATES_RECORD.size
    if len(record) < fixed_bytes:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    *_, count = fixed = wire.AGGREGATES_RECORD.unpack_from(record)
    if len(record) != fixed_bytes + count * _SERIES.size:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    series = []
    for position in range(fixed_bytes, len(record), _SERIES.size):
        values = _SERIES.unpack_from(record, position)
        total, min_complement, highest, size_bytes = values[8:12]
        high_bytes = record[position + _HIGHEST_BYTE : position + _SERIES.size : 8]
        if max(total, highest, size_bytes) > _INT64_MAX or high_bytes != _NO_HIGH_BYTES:
            raise _RejectedError(REJECTED_BAD_BODY)
        # Zeroed memory, the complement of no minimum at all, stays "none yet": 0.
        lowest = ~min_complement & _U64_MASK if min_complement else 0
        series.append(
            (
                _new_tuple(SeriesKey, values[:8]),
                _new_tuple(Aggregate, (total, lowest, highest, size_bytes, values[12:], 0)),
            )
        )
    return Aggregates(fixed[3], tuple(series))


def _decode_times(record: bytes) -> Times:
    fixed_bytes = wire.TIMES_RECORD.size
    if len(record) < fixed_bytes:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    *_, count = fixed = wire.TIMES_RECORD.unpack_from(record)
    if len(record) != fixed_bytes + count * _TIMES_ENTRY.size:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    entries = []
    for values in _TIMES_ENTRY.iter_unpack(record[fixed_bytes:]):
        *key, time_ns, number = values
        if max(time_ns, number) > _INT64_MAX:
            raise _RejectedError(REJECTED_BAD_BODY)
        entries.append((TimesKey._make(key), time_ns, number))
    return Times(fixed[3], tuple(entries))


def _decode_json(record: bytes) -> tuple[int, int, int, Mapping[str, Any]]:
    kind, _, _, ktime_ns, image_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(record)
    try:
        body = parse_body(kind, record[_HEADER_BYTES:])
    except ValueError as error:
        raise _RejectedError(REJECTED_BAD_JSON) from error
    except TypeError as error:
        raise _RejectedError(REJECTED_BAD_BODY) from error
    return ktime_ns, image_ktime_ns, pid, body


def _decode_capture(record: bytes) -> Capture:
    ktime_ns, _, _, info = _decode_json(record)
    return Capture(ktime_ns, info)


def _decode_process(record: bytes) -> ProcessSeen:
    return ProcessSeen(*_decode_json(record))


def _decode_probes(record: bytes) -> Probes:
    ktime_ns, _, _, info = _decode_json(record)
    return Probes(ktime_ns, info)


def _decode_status(record: bytes) -> Status:
    ktime_ns, _, _, info = _decode_json(record)
    return Status(ktime_ns, info)


def _decode_pressure(record: bytes) -> Pressure:
    ktime_ns, _, _, info = _decode_json(record)
    return Pressure(ktime_ns, info)


def _decode_stack(record: bytes) -> Stack:
    ktime_ns, _, _, body = _decode_json(record)
    return Stack(ktime_ns, body["kernel_stack"], tuple(body["functions"]))


def _decode_user_stack(record: bytes) -> UserStack:
    ktime_ns, _, _, body = _decode_json(record)
    frames = tuple(Frame._make(frame) for frame in body["frames"])
    return UserStack(
        ktime_ns, body["stack"], frames, body["complete"], body["native"], body["python"]
    )


_DECODERS: Mapping[int, Callable[[bytes], Event]] = {
    wire.RECORD_STALL: _decode_stall,
    wire.RECORD_GAP: _decode_gap,
    wire.RECORD_STACK: _decode_stack,
    wire.RECORD_USER_STACK: _decode_user_stack,
    wire.RECORD_TIMES: _decode_times,
    wire.RECORD_PRESSURE: _decode_pressure,
    wire.RECORD_FORK: _decode_fork,
    wire.RECORD_EXEC: _decode_exec,
    wire.RECORD_EXIT: _decode_exit,
    wire.RECORD_LIBRARY: _decode_library,
    wire.RECORD_DEVICE: _decode_device,
    wire.RECORD_CAPTURE: _decode_capture,
    wire.RECORD_CLOCK: _decode_clock,
    wire.RECORD_PROCESS: _decode_process,
    wire.RECORD_AGGREGATES: _decode_aggregates,
    wire.RECORD_COUNTERS: _decode_counters,
    wire.RECORD_OPEN_CALL: _decode_open_call,
    wire.RECORD_PROBES: _decode_probes,
    wire.RECORD_STATUS: _decode_status,
}
