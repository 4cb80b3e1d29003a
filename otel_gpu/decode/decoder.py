"""
Records to events: bytes in, immutable tuples out, order kept.

One function per kind of record, found in one table. ``struct`` and not NumPy does
the unpacking: docs/decisions/0010-struct-not-numpy.md holds the figures.
"""

import functools
import operator
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.c_struct import CStruct
from otel_gpu.decode import events
from otel_gpu.decode.blocks import (
    BlockStack,
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryMap,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.decode.bodies import parse_body
from otel_gpu.decode.events import Aggregate, CudaCall, Event, SeriesKey
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
_GRID = wire.CUDA_CALL_RECORD.fields.index("grid_0")
_BEFORE_GRID, _GRID_SIZES = slice(3, _GRID), slice(_GRID, _GRID + 3)
_BLOCK_SIZES, _BEHIND_BLOCK = slice(_GRID + 3, _GRID + 6), slice(_GRID + 6, -1)
# What a record's first values say about itself: kind, flags, size.
_KIND_AND_SIZE = struct.Struct("<HHI")
_SERIES = struct.Struct(wire.AGGREGATE_KEY.format + wire.AGGREGATE.format.removeprefix("<"))
_TIMES_ENTRY = struct.Struct(wire.TIMES_KEY.format + wire.TIMES.format.removeprefix("<"))
# Of wire version 1.
_SHORT_TIMES_ENTRY = struct.Struct("<QIiiBBBxQQ")
_TOTALS_ENTRY = CStruct(f"{wire.DEVICE_KEY.text} {wire.MEMORY_TOTALS.text}")
_HOLDERS_ENTRY = CStruct(f"{wire.HOLDER_KEY.text} {wire.HOLDER.text}")
_TIMES_KEY_FIELDS = len(wire.TIMES_KEY.fields)
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
                        *values[_BEFORE_GRID],
                        values[_GRID_SIZES],
                        values[_BLOCK_SIZES],
                        *values[_BEHIND_BLOCK],
                        _decode_name(values[-1]),
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


def _plain(
    event: type[Event], layout: CStruct, *texts: Callable[[bytes], str]
) -> Callable[[bytes], Event]:
    # Of a kind whose values are the event's fields: numbers, and texts at the end.
    first_text = -len(texts) or None

    def decode_kind(record: bytes) -> Event:
        values = _unpack(layout, record)
        # No generator: stalls come in thousands.
        decoded = map(operator.call, texts, values[first_text:])
        return event._make((*values[:first_text], *decoded))

    return decode_kind


def _decode_stall(record: bytes) -> events.Stall:
    *numbers, resource, comm, culprit, waker = _unpack(wire.STALL_RECORD, record)
    names = (_decode_name(comm), _decode_name(culprit), _decode_name(waker))
    return _new_tuple(events.Stall, (*numbers, *names, resource))


def _decode_exit(record: bytes) -> events.Exit:
    *numbers, exit_code, comm = _unpack(wire.EXIT_RECORD, record)
    flags = wire.RECORD_HEADER.unpack_from(record)[1]
    is_known = not flags & wire.EXIT_NOT_SEEN
    return events.Exit._make((*numbers, exit_code if is_known else None, _decode_name(comm)))


def _decode_device(record: bytes) -> events.Device:
    *numbers, has_name, uuid, name = _unpack(wire.DEVICE_RECORD, record)
    return events.Device._make((*numbers, uuid, _decode_text(name) if has_name else ""))


def _decode_clock(record: bytes) -> events.Clock:
    ktime_ns, _, _, _, unix_ns = _unpack(wire.CLOCK_RECORD, record)
    return events.Clock(ktime_ns, unix_ns)


def _decode_counters(record: bytes) -> events.Counters:
    # Recordings of other versions have fewer counters, or more.
    count, rest = divmod(len(record) - _HEADER_BYTES, 8)
    if rest or not count:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    ktime_ns = wire.RECORD_HEADER.unpack_from(record)[3]
    values = struct.unpack_from(f"<{count}Q", record, _HEADER_BYTES)
    if max(values) > _INT64_MAX:
        raise _RejectedError(REJECTED_BAD_BODY)
    return events.Counters(ktime_ns, values)


def _decode_aggregates(record: bytes) -> events.Aggregates:
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
    return events.Aggregates(fixed[3], tuple(series))


def _decode_times(record: bytes) -> events.Times:
    fixed_bytes = wire.TIMES_RECORD.size
    if len(record) < fixed_bytes:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    *_, count = fixed = wire.TIMES_RECORD.unpack_from(record)
    size = len(record) - fixed_bytes
    if size == count * _TIMES_ENTRY.size:
        entries = map(_times_entry, _TIMES_ENTRY.iter_unpack(record[fixed_bytes:]))
    elif size == count * _SHORT_TIMES_ENTRY.size:
        entries = map(_short_times_entry, _SHORT_TIMES_ENTRY.iter_unpack(record[fixed_bytes:]))
    else:
        raise _RejectedError(REJECTED_SIZE_MISMATCH)
    times = events.Times(fixed[3], tuple(entries))
    if any(max(entry[1:4]) > _INT64_MAX for entry in times.entries):
        raise _RejectedError(REJECTED_BAD_BODY)
    return times


def _decode_memory(
    event: Callable[[int, tuple[Any, ...]], Event], key: type[Any], value: type[Any], entry: CStruct
) -> Callable[[bytes], Event]:
    # Of two named tuples, one behind the other. A program may report whatever it likes.
    split = len(key._fields)

    def decode_kind(record: bytes) -> Event:
        fixed_bytes = wire.MEMORY_RECORD.size
        if len(record) < fixed_bytes:
            raise _RejectedError(REJECTED_SIZE_MISMATCH)
        *_, count = fixed = wire.MEMORY_RECORD.unpack_from(record)
        if len(record) != fixed_bytes + count * entry.size:
            raise _RejectedError(REJECTED_SIZE_MISMATCH)
        entries = (
            (key._make(values[:split]), value._make(map(_clip, values[split:])))
            for values in entry.iter_unpack(record[fixed_bytes:])
        )
        return event(fixed[3], tuple(entries))

    return decode_kind


def _clip(number: int) -> int:
    return min(number, _INT64_MAX)


def _times_entry(values: tuple[Any, ...]) -> events.TimesEntry:
    key = events.TimesKey._make(values[:_TIMES_KEY_FIELDS])
    time_ns, count, ended_ns, who, end = values[_TIMES_KEY_FIELDS:]
    return events.TimesEntry(key, time_ns, count, ended_ns, _decode_name(who), _decode_name(end))


def _short_times_entry(values: tuple[int, ...]) -> events.TimesEntry:
    *key, time_ns, count = values
    # It was booked when it was over.
    return events.TimesEntry(events.TimesKey(*key), time_ns, count, time_ns)


def _decode_json(record: bytes) -> tuple[int, int, int, Mapping[str, Any]]:
    kind, _, _, ktime_ns, image_ktime_ns, pid, _ = wire.RECORD_HEADER.unpack_from(record)
    try:
        body = parse_body(kind, record[_HEADER_BYTES:])
    except ValueError as error:
        raise _RejectedError(REJECTED_BAD_JSON) from error
    except TypeError as error:
        raise _RejectedError(REJECTED_BAD_BODY) from error
    return ktime_ns, image_ktime_ns, pid, body


def _with_info(event: Callable[[int, Mapping[str, Any]], Event]) -> Callable[[bytes], Event]:
    def decode_kind(record: bytes) -> Event:
        ktime_ns, _, _, info = _decode_json(record)
        return event(ktime_ns, info)

    return decode_kind


def _decode_process(record: bytes) -> events.ProcessSeen:
    return events.ProcessSeen(*_decode_json(record))


def _decode_stack(record: bytes) -> events.Stack:
    ktime_ns, _, _, body = _decode_json(record)
    return events.Stack(ktime_ns, body["kernel_stack"], tuple(body["functions"]))


def _decode_user_stack(record: bytes) -> events.UserStack:
    ktime_ns, _, _, body = _decode_json(record)
    frames = tuple(Frame._make(frame) for frame in body["frames"])
    return events.UserStack(
        ktime_ns, body["stack"], frames, body["complete"], body["native"], body["python"]
    )


def _decode_function(record: bytes) -> events.FunctionSeen:
    ktime_ns, image_ktime_ns, pid, body = _decode_json(record)
    return events.FunctionSeen(ktime_ns, image_ktime_ns, pid, body["function"], body["name"])


def _decode_resource(record: bytes) -> events.ResourceSeen:
    ktime_ns, _, _, body = _decode_json(record)
    return events.ResourceSeen(ktime_ns, body["resource"], body)


def _decode_culprit(record: bytes) -> events.CulpritSeen:
    ktime_ns, _, pid, body = _decode_json(record)
    return events.CulpritSeen(ktime_ns, pid, body)


def _decode_out_of_memory(record: bytes) -> OutOfMemory:
    *numbers, device, source, api, comm = _unpack(wire.OUT_OF_MEMORY_RECORD, record)
    # Thirteen numbers, of which a program may report some as it likes.
    return OutOfMemory._make(
        (
            *numbers[:4],
            *map(_clip, numbers[4:9]),
            *numbers[9:],
            device,
            source,
            api,
            _decode_name(comm),
        )
    )


def _decode_memory_map(record: bytes) -> MemoryMap:
    ktime_ns, image_ktime_ns, pid, body = _decode_json(record)
    return MemoryMap(ktime_ns, image_ktime_ns, pid, body["device"], body)


_DECODERS: Mapping[int, Callable[[bytes], Event]] = {
    wire.RECORD_STALL: _decode_stall,
    wire.RECORD_GAP: _plain(events.Gap, wire.GAP_RECORD, _decode_name),
    wire.RECORD_CPU_SAMPLE: _plain(events.CpuSample, wire.CPU_SAMPLE_RECORD, _decode_name),
    wire.RECORD_STACK: _decode_stack,
    wire.RECORD_USER_STACK: _decode_user_stack,
    wire.RECORD_FUNCTION: _decode_function,
    wire.RECORD_RESOURCE: _decode_resource,
    wire.RECORD_CULPRIT: _decode_culprit,
    wire.RECORD_TIMES: _decode_times,
    wire.RECORD_PRESSURE: _with_info(events.Pressure),
    wire.RECORD_DEVICES: _with_info(events.Devices),
    wire.RECORD_MEMORY: _decode_memory(Memory, DeviceKey, MemoryTotals, _TOTALS_ENTRY),
    wire.RECORD_HOLDERS: _decode_memory(Holders, HolderKey, Holder, _HOLDERS_ENTRY),
    wire.RECORD_BLOCK_STACK: _plain(BlockStack, wire.BLOCK_STACK_RECORD),
    wire.RECORD_OUT_OF_MEMORY: _decode_out_of_memory,
    wire.RECORD_MEMORY_MAP: _decode_memory_map,
    wire.RECORD_FORK: _plain(events.Fork, wire.FORK_RECORD, _decode_name),
    wire.RECORD_EXEC: _plain(events.Exec, wire.EXEC_RECORD, _decode_name, _decode_text),
    wire.RECORD_EXIT: _decode_exit,
    wire.RECORD_LIBRARY: _plain(events.Library, wire.LIBRARY_RECORD, _decode_text),
    wire.RECORD_DEVICE: _decode_device,
    wire.RECORD_CAPTURE: _with_info(events.Capture),
    wire.RECORD_CLOCK: _decode_clock,
    wire.RECORD_PROCESS: _decode_process,
    wire.RECORD_AGGREGATES: _decode_aggregates,
    wire.RECORD_COUNTERS: _decode_counters,
    wire.RECORD_OPEN_CALL: _plain(events.OpenCall, wire.OPEN_CALL_RECORD, _decode_name),
    wire.RECORD_PROBES: _with_info(events.Probes),
    wire.RECORD_STATUS: _with_info(events.Status),
}
