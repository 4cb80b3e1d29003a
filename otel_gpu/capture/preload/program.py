"""One preloaded program: the series that it counts itself, read periodically."""

import operator
import os
from collections.abc import Iterable
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.preload.cpu_times import PreloadTimes
from otel_gpu.capture.preload.shared_memory import (
    PreloadError,
    PreloadReading,
    losses_of,
    read_header,
    read_memory,
)
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import Entry
from otel_gpu.wire.probe_table import API_BY_NUMBER

# A memory that is older than its program by more than this was made before an exec or a fork.
_BEGINNING_NS: Final = 10_000_000
# Larger values are impossible. Sums of smaller ones overflow nowhere.
_MOST: Final = 1 << 62
_MOST_CALLS: Final = 1 << 54
# A program that overwrites a part of its memory by accident spoils some series, not most of them.
_LEAST_NONSENSE: Final = 16
_SLOT_HEAD: Final = wire.PRELOAD_SLOT.before("places")
_METRIC: Final = wire.PRELOAD_KEY.fields.index("metric")
_EXTREMES: Final = tuple(map(wire.AGGREGATE.fields.index, ("min_complement", "max")))

Value = tuple[int, ...]


class PreloadedProgram:
    """
    The shared memory of one program.

    Args:
        fd: The memory, open for reading and writing; this object closes it.
        address: Of the memory in the process.
        process: The program.
        uid: The program's user.

    Attributes:
        series: Packed ``wire.AGGREGATE`` by the kernel side's keys of series.
        calls: How many calls the program has counted since it was watched.
        is_asked: Whether the settings were written.

    Raises:
        PreloadError: The memory cannot be read.
    """

    def __init__(self, fd: int, address: int, process: ProcessKey, uid: int) -> None:
        self.fd = fd
        self.uid = uid
        self._address = address
        self._process = process
        self._names: dict[bytes, bytes] = {}
        self._values: dict[bytes, Value] = {}
        self._before: dict[bytes, Value] = {}
        self._lost = (0,) * wire.PRELOAD_LOSSES
        self._latest: PreloadReading | None = None
        if read_header(self._pread)["start_ktime_ns"] < process[1] - _BEGINNING_NS:
            self._latest = read_memory(self._pread)
            self._before = {
                key: wire.AGGREGATE.unpack(value) for key, value in self._latest.series.items()
            }
            self._lost = self._latest.lost
        self._times = PreloadTimes(self._latest if self._before else None)
        self.series: dict[bytes, bytes] = {}
        self.calls = 0
        self.is_asked = False

    @property
    def is_closed(self) -> bool:
        """Whether the memory is closed; ``series`` stays."""
        return self.fd < 0

    def _pread(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self.fd, size_bytes, offset)

    def read(self) -> tuple[list[int], int]:
        """
        Update the series.

        Returns:
            New losses by ``enum preload_loss``, and how many series were invalid or too many.

        Raises:
            PreloadError: The program has overwritten the memory, or most of the series are invalid.
        """
        self._latest = reading = read_memory(self._pread)
        impossible = 0
        for key, packed in reading.series.items():
            value = wire.AGGREGATE.unpack(packed)
            if before := self._before.get(key):
                value = _less(value, before)
            name = self._name_of(key)
            last = self._values.get(name)
            if value == last:
                continue
            if _is_impossible(value) or (last and any(map(operator.lt, value, last))):
                impossible += 1
                continue
            self.calls += _calls(key, value) - (_calls(key, last) if last else 0)
            self._values[name] = value
            self.series[name] = wire.AGGREGATE.pack(*value)
        nonsense = reading.nonsense + impossible
        if nonsense > max(_LEAST_NONSENSE, len(reading.series) - impossible):
            raise PreloadError(f"{nonsense:,} of its series make no sense")
        lost = [max(0, now - then) for now, then in zip(reading.lost, self._lost, strict=True)]
        self._lost = tuple(map(max, reading.lost, self._lost))
        return lost, reading.left_out + impossible

    def sees_all(self) -> bool:
        """Whether the preload library sees all calls: no library binds to CUDA without it."""
        if self.is_closed:
            return False
        return not losses_of(read_header(self._pread))[wire.PRELOAD_LOST_BOUND_PAST]

    def divide_times(
        self, entries: Iterable[Entry], booked_ktime_ns: tuple[int, int], *, is_new: bool
    ) -> list[Entry]:
        """
        Divide the CPU time of this program; see ``PreloadTimes``.

        ``is_new``: read the state of threads first; otherwise use that of the latest reading.

        Raises:
            PreloadError: The program has overwritten the memory.
        """
        if is_new and not self.is_closed:
            self._latest = read_memory(self._pread, with_series=False)
        if self._latest is None:
            return list(entries)
        return self._times.divide(entries, self._latest, booked_ktime_ns)

    def open_calls(self, slot: int) -> list[int]:
        """Return the start times of a thread's open calls; ``slot`` is the address of its slot."""
        offset = slot - self._address
        if self.is_closed or not wire.PRELOAD_SLOTS_OFFSET <= offset < wire.PRELOAD_BYTES:
            return []
        head = os.pread(self.fd, _SLOT_HEAD.size, offset)
        if len(head) < _SLOT_HEAD.size:
            return []
        published = _SLOT_HEAD.named(head)
        calls = wire.PRELOAD_OPEN_CALL.all_named(published["calls"])
        starts = [call["start_ktime_ns"] for call in calls]
        return starts[: min(published["depth"], wire.MAX_DEPTH)]

    def calls_inside(self) -> int:
        """Return how many counted calls were open at the latest reading."""
        threads = () if self.is_closed or self._latest is None else self._latest.threads
        open_apis = (thread.innermost_api for thread in threads)
        return sum(API_BY_NUMBER[api].preload for api in open_apis if api)

    def close(self) -> None:
        """Close the memory; repeated calls have no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _name_of(self, key: bytes) -> bytes:
        if key not in self._names:
            pid, program_ktime_ns = self._process
            fields = wire.PRELOAD_KEY.named(key)
            name = wire.AGGREGATE_KEY.build(program_ktime_ns=program_ktime_ns, pid=pid, **fields)
            self._names[key] = name
        return self._names[key]


def add(one: bytes, other: bytes) -> bytes:
    """Return the sum of two packed ``wire.AGGREGATE``."""
    values, others = wire.AGGREGATE.unpack(one), wire.AGGREGATE.unpack(other)
    return wire.AGGREGATE.pack(
        *(
            max(pair) if field in _EXTREMES else sum(pair)
            for field, pair in enumerate(zip(values, others, strict=True))
        )
    )


def _is_impossible(value: Value) -> bool:
    total = value[: _EXTREMES[0]] + value[_EXTREMES[1] + 1 : -wire.MAX_BUCKETS]
    return max(total) > _MOST or max(value[-wire.MAX_BUCKETS :]) > _MOST_CALLS


def _calls(key: bytes, value: Value) -> int:
    is_call = wire.PRELOAD_KEY.unpack(key)[_METRIC] == wire.METRIC_CALL_DURATION
    return sum(value[-wire.MAX_BUCKETS :]) if is_call else 0


def _less(value: Value, before: Value) -> Value:
    # Extremes cannot be subtracted, so they can be from before.
    return tuple(
        now if field in _EXTREMES else max(0, now - then)
        for field, (now, then) in enumerate(zip(value, before, strict=True))
    )
