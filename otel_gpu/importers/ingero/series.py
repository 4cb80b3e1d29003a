"""
The series of an import: what rows and the table of aggregates add up to, as it grows.

A call that has a row is in a bucket, by its duration. Of the others only count, sum,
minimum and maximum are known, by minute: they are in no bucket. Within their minute they
are taken to come evenly, from the process's first call that has a row to its last.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.decode.events import CudaCall, Fork, Stall
from otel_gpu.decode.readings import Aggregate, Aggregates, SeriesKey
from otel_gpu.importers.ingero.truths import BUCKET_NS, Hidden
from otel_gpu.probe_table import API_BY_NUMBER

READING_NS = 1_000_000_000
"""At least so much time is between two readings."""


class Part(NamedTuple):
    """
    What was counted in some time and has no rows, with whose it is.

    ``api`` is 0 for time off the CPU. ``nested`` is what it is taken to be: of calls that
    have no rows it is not known whether they were made inside other calls.
    """

    start_unix_ns: int
    end_unix_ns: int
    pid: int
    api: int
    nested: int
    hidden: Hidden

    def until(self, unix_ns: int) -> tuple[int, int, int]:
        """Return calls, nanoseconds and bytes up to a moment."""
        length_ns = self.end_unix_ns - self.start_unix_ns
        passed_ns = min(max(unix_ns - self.start_unix_ns, 0), length_ns)
        calls, sum_ns, size_bytes = (
            amount * passed_ns // length_ns
            for amount in (self.hidden.calls, self.hidden.sum_ns, self.hidden.size_bytes)
        )
        return calls, sum_ns, size_bytes


def spread(start_unix_ns: int, span: tuple[int, int]) -> tuple[int, int]:
    """Return the part of a minute in which a process can have done what was counted in it."""
    start, end = start_unix_ns, start_unix_ns + BUCKET_NS
    first, last = span
    if first < end and last > start:
        start, end = max(start, first), min(end, last)
    return start, max(end, start + 1)


class SeriesBook:
    """
    Keeps the series, and reads them out; ``image_of`` says when a process's present image began.
    """

    def __init__(
        self, bounds_ns: tuple[int, ...], parts: Iterable[Part], image_of: Callable[[int], int]
    ) -> None:
        self._bounds_ns = bounds_ns
        self._image_of = image_of
        self._waiting = sorted(parts, key=lambda part: part.start_unix_ns, reverse=True)
        self._growing: list[Part] = []
        self._series: dict[SeriesKey, _Counting] = {}
        self._changed: dict[SeriesKey, None] = {}
        self._read_unix_ns = self._grown_unix_ns = 0

    def add(self, event: CudaCall | Stall | Fork) -> None:
        """Count an event that has a row."""
        image, pid, size_bytes = event.image_ktime_ns, event.pid, 0
        match event:
            case CudaCall():
                nested = int(event.parent_start_ktime_ns > 0)
                about = (event.api, nested, event.status, event.copy_kind)
                key = _key(image, pid, wire.METRIC_CALL_DURATION, *about)
                size_bytes = 0 if event.status else event.size_bytes
            case Stall():
                key = _key(image, pid, wire.METRIC_OFF_CPU)
            case Fork():
                key = _key(image, pid, wire.METRIC_FORK)
        # Of a fork only the count means something: it takes no time.
        duration_ns = event.end_ktime_ns - event.start_ktime_ns
        counting = self._at(key)
        bucket = min(bisect_left(self._bounds_ns, duration_ns), wire.MAX_BUCKETS - 1)
        counting.buckets[bucket] += 1
        counting.add(duration_ns, size_bytes, duration_ns, duration_ns)

    def read_until(self, unix_ns: int) -> Iterator[Aggregates]:
        """Yield a reading if it is time for one, before what happens at a moment is added."""
        if not self._read_unix_ns:
            self._read_unix_ns = unix_ns
        if unix_ns - self._read_unix_ns >= READING_NS:
            yield from self.read(unix_ns)

    def read(self, unix_ns: int) -> Iterator[Aggregates]:
        """Yield a reading of all series that changed, if any did."""
        while self._waiting and self._waiting[-1].start_unix_ns <= unix_ns:
            self._growing.append(self._waiting.pop())
        for part in self._growing:
            self._grow(part, unix_ns)
        self._growing = [part for part in self._growing if part.end_unix_ns > unix_ns]
        self._read_unix_ns = self._grown_unix_ns = unix_ns
        if self._changed:
            changed, self._changed = self._changed, {}
            yield Aggregates(unix_ns, tuple((key, self._series[key].read()) for key in changed))

    def end_unix_ns(self) -> int:
        """When the last of what has no rows is over; 0: there is none."""
        return max((part.end_unix_ns for part in (*self._waiting, *self._growing)), default=0)

    def _at(self, key: SeriesKey) -> "_Counting":
        self._changed[key] = None
        counting = self._series.get(key)
        if counting is None:
            counting = self._series[key] = _Counting()
        return counting

    def _grow(self, part: Part, unix_ns: int) -> None:
        before, now = part.until(self._grown_unix_ns), part.until(unix_ns)
        calls, sum_ns, size_bytes = (b - a for a, b in zip(before, now, strict=True))
        if calls or sum_ns:
            metric = wire.METRIC_CALL_DURATION if part.api else wire.METRIC_OFF_CPU
            key = _key(self._image_of(part.pid), part.pid, metric, part.api, part.nested)
            counting = self._at(key)
            counting.unplaced += calls
            counting.add(sum_ns, size_bytes, part.hidden.min_ns, part.hidden.max_ns)


@dataclass(slots=True)
class _Counting:
    # One series in the making.
    sum: int = 0
    min: int = 1 << 64
    max: int = 0
    size_bytes: int = 0
    unplaced: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * wire.MAX_BUCKETS)

    def add(self, sum_ns: int, size_bytes: int, least_ns: int, most_ns: int) -> None:
        self.sum += sum_ns
        self.size_bytes += size_bytes
        self.min = min(self.min, least_ns)
        self.max = max(self.max, most_ns)

    def read(self) -> Aggregate:
        buckets = tuple(self.buckets)
        return Aggregate(self.sum, self.min, self.max, self.size_bytes, buckets, self.unplaced)


def is_taken_to_be_nested(api: int, others: Iterable[int]) -> int:
    """
    Return whether calls without rows are counted as made inside others: 1 or 0.

    Calls of the driver are, where the process also makes calls of the same kind of the
    runtime, which makes them. What is asked for is then not counted twice. APIs are numbers, and
    ``others`` those of all that the process calls.
    """
    called = API_BY_NUMBER[api]
    kinds = {(API_BY_NUMBER[other].layer, API_BY_NUMBER[other].family) for other in others}
    is_driver = called.layer == wire.LAYER_DRIVER
    return int(is_driver and (wire.LAYER_RUNTIME, called.family) in kinds)


def _key(
    image_ns: int,
    pid: int,
    metric: int,
    api: int = 0,
    nested: int = 0,
    status: int = 0,
    copy_kind: int = wire.COPY_NONE,
) -> SeriesKey:
    # No device is known. Of a switch, 0 is no type: it is not known which it was.
    return SeriesKey(image_ns, pid, status, -1, metric, api, copy_kind, nested)
