"""
Records to events: bytes in, immutable tuples out, order kept.

One function per kind of record, found in one table. ``struct`` and not NumPy does
the unpacking: docs/decisions/0010-struct-not-numpy.md holds the figures.
"""

import operator
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.faults import Faults
from otel_gpu.limits.caches import remembered
from otel_gpu.wire import events, readings
from otel_gpu.wire.blocks import (
    BlockStack,
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.wire.c_struct import CStruct
from otel_gpu.wire.communicators import CommunicatorKey, Communicators, communicator_of
from otel_gpu.wire.events import CudaCall, Event
from otel_gpu.wire.json_body import INT64_MAX
from otel_gpu.wire.json_events import OF_JSON
from otel_gpu.wire.marks import range_of, step_of
from otel_gpu.wire.readings import Aggregate, SeriesKey
from otel_gpu.wire.rejections import (
    BAD_BODY,
    SHORT,
    SIZE_MISMATCH,
    UNKNOWN_KIND,
    PartlyRejectedError,
    RejectedError,
)

_U64_MASK = (1 << 64) - 1
# OTLP counts in signed 64 bits. A forged recording can contain more.
_NO_HIGH_BYTES = bytes(wire.MAX_BUCKETS)
# Distinct thread names whose text is cached: a lookup costs less than decoding.
_REMEMBERED_NAMES = 4096

_HEADER_BYTES = wire.RECORD_HEADER.size
_CALL_BYTES = wire.CUDA_CALL_RECORD.size
_GRID = wire.CUDA_CALL_RECORD.fields.index("grid_0")
_BEFORE_GRID, _GRID_SIZES = slice(3, _GRID), slice(_GRID, _GRID + 3)
_BLOCK_SIZES, _BEHIND_BLOCK = slice(_GRID + 3, _GRID + 6), slice(_GRID + 6, -1)
# Kind, flags and size: the first fields of each record.
_KIND_AND_SIZE = struct.Struct("<HHI")
_SERIES = struct.Struct(wire.AGGREGATE_KEY.format + wire.AGGREGATE.format.removeprefix("<"))
_TIMES_ENTRY = struct.Struct(wire.TIMES_KEY.format + wire.TIMES.format.removeprefix("<"))
# Of wire version 1.
_SHORT_TIMES_ENTRY = struct.Struct("<QIiiBBBxQQ")
_TOTALS_ENTRY = CStruct(f"{wire.DEVICE_KEY.text} {wire.MEMORY_TOTALS.text}")
_HOLDERS_ENTRY = CStruct(f"{wire.HOLDER_KEY.text} {wire.HOLDER.text}")
_COMMUNICATOR_ENTRY = CStruct(f"{wire.COMMUNICATOR_KEY.text} {wire.COMMUNICATOR.text}")
_TIMES_KEY_FIELDS = len(wire.TIMES_KEY.fields)
# The highest byte of the first bucket, in a series. Buckets below 2**56 can be added up.
_HIGHEST_BYTE = _SERIES.size - 8 * wire.MAX_BUCKETS + 7

_unpack_call = wire.CUDA_CALL_RECORD.unpack
_new_tuple = tuple.__new__


def decode(
    records: Iterable[bytes], rejected: Counter[str], faults: Faults | None = None
) -> Iterator[Event]:
    """
    Decode records in order, skipping the ones that cannot be understood.

    ``rejected`` counts by reason: shorter than a header (``short``); length, ``size`` field and
    kind disagree (``size_mismatch``); ``unknown_kind``; the body is not JSON (``bad_json``), or not
    that of the kind (``bad_body``). A reading loses only its impossible entries, and each of
    them is counted.

    Text from the kernel ends at its first NUL; bytes that are not UTF-8 are replaced.

    An error of ours in one record is counted in ``faults``; without ``faults`` it is raised.
    """
    for record in records:
        # Most records are calls, and no other kind has their size.
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
        except RejectedError as error:
            rejected[str(error)] += 1
        except PartlyRejectedError as error:
            rejected[str(error)] += error.entries
            yield error.event
        except Exception as error:
            if faults is None:
                raise
            faults.add("decode", error)


def _decode_record(record: bytes) -> Event:
    if len(record) < _HEADER_BYTES:
        raise RejectedError(SHORT)
    kind, _, size = _KIND_AND_SIZE.unpack_from(record)
    if size != len(record):
        raise RejectedError(SIZE_MISMATCH)
    if kind == wire.RECORD_CUDA_CALL:
        # ``decode`` took those of the right size.
        raise RejectedError(SIZE_MISMATCH)
    decode_kind = _DECODERS.get(kind)
    if decode_kind is None:
        raise RejectedError(UNKNOWN_KIND)
    return decode_kind(record)


def _unpack(layout: CStruct, record: bytes) -> tuple[Any, ...]:
    # Without kind, flags and size.
    if len(record) != layout.size:
        raise RejectedError(SIZE_MISMATCH)
    return layout.unpack(record)[3:]


@remembered("names", _REMEMBERED_NAMES, 200)
def _decode_name(raw: bytes) -> str:
    return _decode_text(raw)


def _decode_text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _plain(
    event: type[Event], layout: CStruct, *texts: Callable[[bytes], str]
) -> Callable[[bytes], Event]:
    # For a kind whose values are the event's fields: numbers, then texts.
    first_text = -len(texts) or None

    def decode_kind(record: bytes) -> Event:
        values = _unpack(layout, record)
        # No generator: there are thousands of stalls.
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


def _decode_counters(record: bytes) -> readings.Counters:
    # Recordings of other versions have fewer or more counters.
    count, rest = divmod(len(record) - _HEADER_BYTES, 8)
    if rest or not count:
        raise RejectedError(SIZE_MISMATCH)
    ktime_ns = wire.RECORD_HEADER.unpack_from(record)[3]
    values = struct.unpack_from(f"<{count}Q", record, _HEADER_BYTES)
    if max(values) > INT64_MAX:
        raise RejectedError(BAD_BODY)
    return readings.Counters(ktime_ns, values)


def _decode_aggregates(record: bytes) -> readings.Aggregates:
    fixed_bytes = wire.AGGREGATES_RECORD.size
    if len(record) < fixed_bytes:
        raise RejectedError(SIZE_MISMATCH)
    *_, count = fixed = wire.AGGREGATES_RECORD.unpack_from(record)
    if len(record) != fixed_bytes + count * _SERIES.size:
        raise RejectedError(SIZE_MISMATCH)
    series = []
    for position in range(fixed_bytes, len(record), _SERIES.size):
        values = _SERIES.unpack_from(record, position)
        total, min_complement, highest, size_bytes = values[8:12]
        high_bytes = record[position + _HIGHEST_BYTE : position + _SERIES.size : 8]
        if max(total, highest, size_bytes) > INT64_MAX or high_bytes != _NO_HIGH_BYTES:
            continue
        # Zeroed memory: a minimum was not written yet.
        lowest = ~min_complement & _U64_MASK if min_complement else 0
        series.append(
            (
                _new_tuple(SeriesKey, values[:8]),
                _new_tuple(Aggregate, (total, lowest, highest, size_bytes, values[12:])),
            )
        )
    _check_entries(event := readings.Aggregates(fixed[3], tuple(series)), len(series), count)
    return event


def _decode_times(record: bytes) -> readings.Times:
    fixed_bytes = wire.TIMES_RECORD.size
    if len(record) < fixed_bytes:
        raise RejectedError(SIZE_MISMATCH)
    *_, count = fixed = wire.TIMES_RECORD.unpack_from(record)
    size = len(record) - fixed_bytes
    if size == count * _TIMES_ENTRY.size:
        entries = map(_times_entry, _TIMES_ENTRY.iter_unpack(record[fixed_bytes:]))
    elif size == count * _SHORT_TIMES_ENTRY.size:
        entries = map(_short_times_entry, _SHORT_TIMES_ENTRY.iter_unpack(record[fixed_bytes:]))
    else:
        raise RejectedError(SIZE_MISMATCH)
    good = tuple(entry for entry in entries if max(entry[1:4]) <= INT64_MAX)
    _check_entries(event := readings.Times(fixed[3], good), len(good), count)
    return event


def _check_entries(event: Event, good: int, count: int) -> None:
    if count and not good:
        raise RejectedError(BAD_BODY)
    if good < count:
        raise PartlyRejectedError(event, count - good)


def _decode_entries(
    event: Callable[[int, tuple[Any, ...]], Event],
    key: type[Any],
    value: Callable[[tuple[Any, ...]], object],
    entry: CStruct,
) -> Callable[[bytes], Event]:
    # An entry is a key structure followed by a value structure.
    split = len(key._fields)

    def decode_kind(record: bytes) -> Event:
        fixed_bytes = wire.MEMORY_RECORD.size
        if len(record) < fixed_bytes:
            raise RejectedError(SIZE_MISMATCH)
        *_, count = fixed = wire.MEMORY_RECORD.unpack_from(record)
        if len(record) != fixed_bytes + count * entry.size:
            raise RejectedError(SIZE_MISMATCH)
        entries = (
            (key._make(values[:split]), value(values[split:]))
            for values in entry.iter_unpack(record[fixed_bytes:])
        )
        return event(fixed[3], tuple(entries))

    return decode_kind


def _clipped(kind: type[Any]) -> Callable[[tuple[int, ...]], object]:
    # A program can report any number.
    return lambda values: kind._make(min(number, INT64_MAX) for number in values)


def _times_entry(values: tuple[Any, ...]) -> readings.TimesEntry:
    key = readings.TimesKey._make(values[:_TIMES_KEY_FIELDS])
    time_ns, count, ended_ns, who, end = values[_TIMES_KEY_FIELDS:]
    return readings.TimesEntry(key, time_ns, count, ended_ns, _decode_name(who), _decode_name(end))


def _short_times_entry(values: tuple[int, ...]) -> readings.TimesEntry:
    *key, time_ns, count = values
    # Version 1 adds a time when the wait ends.
    return readings.TimesEntry(readings.TimesKey(*key), time_ns, count, time_ns)


def _decode_out_of_memory(record: bytes) -> OutOfMemory:
    *numbers, device, source, api, comm = _unpack(wire.OUT_OF_MEMORY_RECORD, record)
    # A program can report any number.
    return OutOfMemory._make(
        (
            *numbers[:4],
            *(min(number, INT64_MAX) for number in numbers[4:9]),
            *numbers[9:],
            device,
            source,
            api,
            _decode_name(comm),
        )
    )


_DECODERS: Mapping[int, Callable[[bytes], Event]] = {
    **OF_JSON,
    wire.RECORD_STALL: _decode_stall,
    wire.RECORD_GAP: _plain(events.Gap, wire.GAP_RECORD, _decode_name),
    wire.RECORD_CPU_SAMPLE: _plain(events.CpuSample, wire.CPU_SAMPLE_RECORD, _decode_name),
    wire.RECORD_TIMES: _decode_times,
    wire.RECORD_THREAD_CONTEXT: _plain(events.ThreadContext, wire.THREAD_CONTEXT_RECORD),
    wire.RECORD_STEP: lambda record: step_of(_unpack(wire.STEP_RECORD, record)),
    wire.RECORD_RANGE: lambda record: range_of(_unpack(wire.RANGE_RECORD, record)),
    wire.RECORD_MEMORY: _decode_entries(
        Memory, key=DeviceKey, value=_clipped(MemoryTotals), entry=_TOTALS_ENTRY
    ),
    wire.RECORD_HOLDERS: _decode_entries(
        Holders, key=HolderKey, value=_clipped(Holder), entry=_HOLDERS_ENTRY
    ),
    wire.RECORD_COMMUNICATORS: _decode_entries(
        Communicators, key=CommunicatorKey, value=communicator_of, entry=_COMMUNICATOR_ENTRY
    ),
    wire.RECORD_BLOCK_STACK: _plain(BlockStack, wire.BLOCK_STACK_RECORD),
    wire.RECORD_OUT_OF_MEMORY: _decode_out_of_memory,
    wire.RECORD_FORK: _plain(events.Fork, wire.FORK_RECORD, _decode_name),
    wire.RECORD_EXEC: _plain(events.Exec, wire.EXEC_RECORD, _decode_name, _decode_text),
    wire.RECORD_EXIT: _decode_exit,
    wire.RECORD_LIBRARY: _plain(events.Library, wire.LIBRARY_RECORD, _decode_text),
    wire.RECORD_DEVICE: _decode_device,
    wire.RECORD_CLOCK: _decode_clock,
    wire.RECORD_AGGREGATES: _decode_aggregates,
    wire.RECORD_COUNTERS: _decode_counters,
    wire.RECORD_OPEN_CALL: _plain(events.OpenCall, wire.OPEN_CALL_RECORD, _decode_name),
}
