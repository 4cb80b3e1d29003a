"""
The series of an import: what rows and the table of aggregates add up to, as it grows.

A call that has a row is in a bucket, by its duration. Of the others only count, sum,
minimum and maximum are known, by minute: they are in no bucket. Within their minute they
are taken to come evenly, from the process's first call that has a row to its last.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.decode.events import Aggregate, Aggregates, CudaCall, Fork, SeriesKey, Stall
from otel_gpu.importers.ingero.truths import BUCKET_NS, Hidden
from otel_gpu.probe_table import API_BY_NUMBER

READING_NS = 1_000_000_000
"""At least so much time is between two readings."""

_NO_DEVICE = -1


class Part(NamedTuple):
    """
    What was counted in a minute and has no rows, with whose it is.

    ``api`` is 0 for time off the CPU. ``nested`` is what it is taken to be: of calls that
    have no rows it is not known whether they were made inside other calls.
    """

    start_unix_ns: int
    pid: int
    api: int
    nested: int
    hidden: Hidden


class SeriesBook:
    """
    Keeps the series, and reads them out.

    Args:
        bounds_ns: Of the buckets.
        parts: What has no rows.
        span_of: Says when a process was seen to make its first and its last call.
        image_of: Says when the present image of a process began.
    """

    def __init__(
        self,
        bounds_ns: tuple[int, ...],
        parts: Iterable[Part],
        span_of: Callable[[int], tuple[int, int]],
        image_of: Callable[[int], int],
    ) -> None:
        self._bounds_ns = bounds_ns
        self._image_of = image_of
        spread = (_spread(part, span_of(part.pid)) for part in parts)
        self._waiting = sorted(spread, reverse=True)
        self._growing: list[_Growing] = []
        self._series: dict[SeriesKey, _Counting] = {}
        self._changed: dict[SeriesKey, None] = {}
        self._read_unix_ns = 0

    def add(self, event: CudaCall | Stall | Fork) -> None:
        """Count an event that has a row."""
        match event:
            case CudaCall():
                key = _call_key(event)
            case Stall():
                key = _thread_key(event, wire.METRIC_OFF_CPU)
            case Fork():
                # Of forks only the count means something.
                self._at(_thread_key(event, wire.METRIC_FORK)).place(0, 0, 0)
                return
        duration_ns = event.end_ktime_ns - event.start_ktime_ns
        size_bytes = event.size_bytes if isinstance(event, CudaCall) and not event.status else 0
        bucket = min(bisect_left(self._bounds_ns, duration_ns), wire.MAX_BUCKETS - 1)
        self._at(key).place(bucket, duration_ns, size_bytes)

    def read_until(self, unix_ns: int) -> Iterator[Aggregates]:
        """Yield a reading if it is time for one, before what happens at a moment is added."""
        if not self._read_unix_ns:
            self._read_unix_ns = unix_ns
        if unix_ns - self._read_unix_ns >= READING_NS:
            yield from self.read(unix_ns)

    def read(self, unix_ns: int) -> Iterator[Aggregates]:
        """Yield a reading of all series that changed, if any did."""
        self._read_unix_ns = unix_ns
        while self._waiting and self._waiting[-1].start_unix_ns <= unix_ns:
            self._growing.append(self._waiting.pop())
        for part in self._growing:
            self._grow(part, unix_ns)
        self._growing = [part for part in self._growing if part.end_unix_ns > unix_ns]
        if self._changed:
            changed, self._changed = self._changed, {}
            series = tuple((key, self._series[key].aggregate()) for key in changed)
            yield Aggregates(unix_ns, series)

    def end_unix_ns(self) -> int:
        """When the last of what has no rows is over; 0: there is none."""
        return max((part.end_unix_ns for part in (*self._waiting, *self._growing)), default=0)

    def _at(self, key: SeriesKey) -> "_Counting":
        self._changed[key] = None
        counting = self._series.get(key)
        if counting is None:
            counting = self._series[key] = _Counting()
        return counting

    def _grow(self, growing: "_Growing", unix_ns: int) -> None:
        part = growing.part
        count, sum_ns, size_bytes = growing.advance(unix_ns)
        if not count and not sum_ns:
            return
        image = self._image_of(part.pid)
        key = SeriesKey(
            image,
            part.pid,
            0,
            _NO_DEVICE,
            wire.METRIC_CALL_DURATION if part.api else wire.METRIC_OFF_CPU,
            part.api,
            wire.COPY_NONE,
            part.nested,
        )
        self._at(key).hide(count, sum_ns, size_bytes, part.hidden)


class _Growing:
    """A part, and how much of it has come so far."""

    __slots__ = ("_done", "end_unix_ns", "part", "start_unix_ns")

    def __init__(self, part: Part, start_unix_ns: int, end_unix_ns: int) -> None:
        self.part = part
        self.start_unix_ns = start_unix_ns
        self.end_unix_ns = end_unix_ns
        self._done = (0, 0, 0)

    def __lt__(self, other: "_Growing") -> bool:
        return self.start_unix_ns < other.start_unix_ns

    def advance(self, unix_ns: int) -> tuple[int, int, int]:
        """Return count, nanoseconds and bytes since this was last asked."""
        hidden = self.part.hidden
        whole = (hidden.count, hidden.sum_ns, hidden.size_bytes)
        passed_ns = unix_ns - self.start_unix_ns
        length_ns = self.end_unix_ns - self.start_unix_ns
        done = whole
        if passed_ns < length_ns:
            count, sum_ns, size_bytes = (amount * passed_ns // length_ns for amount in whole)
            done = (count, sum_ns, size_bytes)
        count, sum_ns, size_bytes = (a - b for a, b in zip(done, self._done, strict=True))
        self._done = done
        return count, sum_ns, size_bytes


class _Counting:
    """One series in the making."""

    __slots__ = ("buckets", "max", "min", "size_bytes", "sum", "unplaced")

    def __init__(self) -> None:
        self.sum = self.max = self.size_bytes = self.unplaced = 0
        self.min: int | None = None
        self.buckets = [0] * wire.MAX_BUCKETS

    def place(self, bucket: int, duration_ns: int, size_bytes: int) -> None:
        self.buckets[bucket] += 1
        self.sum += duration_ns
        self.size_bytes += size_bytes
        self._reach(duration_ns, duration_ns)

    def hide(self, count: int, sum_ns: int, size_bytes: int, hidden: Hidden) -> None:
        self.unplaced += count
        self.sum += sum_ns
        self.size_bytes += size_bytes
        self._reach(hidden.min_ns, hidden.max_ns)

    def aggregate(self) -> Aggregate:
        least = 0 if self.min is None else self.min
        buckets = tuple(self.buckets)
        return Aggregate(self.sum, least, self.max, self.size_bytes, buckets, self.unplaced)

    def _reach(self, least: int, most: int) -> None:
        self.min = least if self.min is None else min(self.min, least)
        self.max = max(self.max, most)


def is_taken_to_be_nested(api: int, others: Iterable[int]) -> int:
    """
    Return whether calls without rows are counted as made inside others: 1 or 0.

    Calls of the driver are, where the process also makes calls of the same kind of the
    runtime, which makes them. What is asked for is then not counted twice.

    Args:
        api: Number of their API.
        others: Numbers of all APIs that the process calls.
    """
    called = API_BY_NUMBER[api]
    if called.layer != wire.LAYER_DRIVER:
        return 0
    return int(
        any(
            API_BY_NUMBER[other].layer == wire.LAYER_RUNTIME
            and API_BY_NUMBER[other].family == called.family
            for other in others
        )
    )


def _spread(part: Part, span: tuple[int, int]) -> _Growing:
    start, end = part.start_unix_ns, part.start_unix_ns + BUCKET_NS
    first, last = span
    if first < end and last > start:
        start, end = max(start, first), min(end, last)
    return _Growing(part, start, max(end, start + 1))


def _call_key(event: CudaCall) -> SeriesKey:
    return SeriesKey(
        event.image_ktime_ns,
        event.pid,
        event.status,
        _NO_DEVICE,
        wire.METRIC_CALL_DURATION,
        event.api,
        event.copy_kind,
        int(event.parent_start_ktime_ns > 0),
    )


def _thread_key(event: Stall | Fork, metric: int) -> SeriesKey:
    # 0 is no type of switch: it is not known which it was.
    return SeriesKey(event.image_ktime_ns, event.pid, 0, _NO_DEVICE, metric, 0, wire.COPY_NONE, 0)
