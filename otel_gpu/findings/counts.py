"""What the kernel's counters add up to in a window: calls per API, memory, time slots."""

# The kernel counts since a process began, and is read once a second. What happened in
# a window is therefore the difference of two readings: the last one before the window,
# and the first one at or after its end. The counts of a window cover up to a second more
# at each of its ends, so that nothing in it is left out.

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import add
from typing import Any

from otel_gpu import wire
from otel_gpu.decode.events import Aggregate, SeriesKey
from otel_gpu.enrich.activities import AggregatesActivity, ProcessImage, Series
from otel_gpu.enrich.percentiles import bucket_middles_ns, percentile_ns
from otel_gpu.findings.document import Api, Balance, ImageKey, Window, key_of
from otel_gpu.findings.slots import Slots, Totals

MAX_SERIES = 16_384
"""Series remembered, also of processes that ended; more than the kernel holds at a time."""

_COUNTED = frozenset({wire.METRIC_CALL_DURATION, wire.METRIC_RUN_QUEUE})


_OF_MEMORY = (wire.FAMILY_ALLOCATE, wire.FAMILY_FREE, wire.FAMILY_UNMAP)


class Counts:
    """Takes snapshots, and tells what was counted between the ends of a window."""

    def __init__(self, window: Window = Window(), slots: Slots | None = None) -> None:  # noqa: B008 -- immutable
        self._window = window
        self._slots = slots
        self._series: dict[SeriesKey, Series] = {}
        self._base: dict[SeriesKey, Series] = {}
        self._has_begun = window.start_unix_ns is None
        self._has_ended = False
        self._before_unix_ns: int | None = None
        self._processes: dict[ImageKey, ProcessImage] = {}
        self._readings = 0
        self.left_out = 0
        self.start_unix_ns: int | None = None
        self.end_unix_ns: int | None = None

    def observe(self, activity: AggregatesActivity) -> None:
        """Take one snapshot."""
        if self._has_ended:
            return
        now_unix_ns = activity.unix_ns
        if not self._has_begun and now_unix_ns > (self._window.start_unix_ns or 0):
            self._has_begun = True
            self._base = dict(self._series)
            self.start_unix_ns = self._before_unix_ns
        for series in activity.series:
            if series.key.metric in _COUNTED:
                self._observe_series(series, now_unix_ns)
        self._before_unix_ns = self.end_unix_ns = now_unix_ns
        self._readings += self._has_begun
        end_unix_ns = self._window.end_unix_ns
        self._has_ended = end_unix_ns is not None and now_unix_ns >= end_unix_ns

    def interval_ns(self) -> int:
        """How long it was from one reading to the next, on average; 0 without any."""
        if self.end_unix_ns is None or not self._readings or self._slots is None:
            return 0
        since_unix_ns = (
            self._slots.origin_unix_ns if self.start_unix_ns is None else (self.start_unix_ns)
        )
        return max(0, self.end_unix_ns - since_unix_ns) // self._readings

    def in_window(self, unix_ns: int) -> AggregatesActivity:
        """What was counted in the window, as if it had been read at a moment."""
        series = tuple(
            series._replace(aggregate=counted) for _, series, counted in self._differences()
        )
        return AggregatesActivity(unix_ns, series)

    @property
    def size(self) -> int:
        """How many series are remembered."""
        return len(self._series)

    def forget(self, images: AbstractSet[ImageKey]) -> None:
        """Remember nothing more of some images, which ended."""
        for key in [key for key in self._series if (key.pid, key.image_ktime_ns) in images]:
            del self._series[key]
        for image in images:
            self._processes.pop(image, None)

    def sum_up(self, into: Mapping[ImageKey, ProcessImage | None]) -> set[ImageKey]:
        """
        Add the figures of images that ended to those of others; None: they are let go.

        Returns:
            The images of which anything was counted in the window.
        """
        seen: set[ImageKey] = set()
        for key in [key for key in self._series if (key.pid, key.image_ktime_ns) in into]:
            series, base = self._series.pop(key), self._base.pop(key, None)
            image = (key.pid, key.image_ktime_ns)
            self._processes.pop(image, None)
            counted = self._counted(series, base)
            whole = into[image]
            if counted is None or whole is None:
                continue
            seen.add(image)
            # Of all dimensions, those that a report tells apart.
            name = SeriesKey(
                whole.image_ktime_ns,
                whole.pid,
                int(key.status != 0),
                -1,
                key.metric,
                key.api,
                0,
                key.nested,
            )
            known = self._series.get(name)
            # Where the longest of the window is not known, that of the series is taken.
            counted = counted._replace(max=counted.max or series.aggregate.max)
            if known is not None:
                counted = _plus(known.aggregate, counted)
            self._series[name] = Series(whole, name, series.api, None, counted)
            self._processes[key_of(whole)] = whole
        return seen

    def call_ns(self) -> dict[ImageKey, int]:
        """Time inside the calls of the window, also inside other calls, by image."""
        sums: dict[ImageKey, int] = {}
        for key, _, counted in self._differences():
            if key.metric == wire.METRIC_CALL_DURATION:
                image = (key.pid, key.image_ktime_ns)
                sums[image] = sums.get(image, 0) + counted.sum
        return sums

    def processes(self) -> list[ProcessImage]:
        """The images that something was counted of in the window, by pid."""
        seen = {(key.pid, key.image_ktime_ns) for key, _, _ in self._differences()}
        return [image for key, image in sorted(self._processes.items()) if key in seen]

    def callers(self) -> set[ImageKey]:
        """The images that made a CUDA call, before the window or in it."""
        return {
            (key.pid, key.image_ktime_ns)
            for key in self._series
            if key.metric == wire.METRIC_CALL_DURATION
        }

    def api_rows(self, durations: Mapping[str, Any]) -> list[Api]:
        """
        Rows by total time, the longest first.

        Args:
            durations: ``layout.durations`` of the capture.
        """
        middles_ns = bucket_middles_ns(durations)
        parts: dict[tuple[ImageKey, int], list[tuple[Series, Aggregate]]] = {}
        for key, series, counted in self._differences():
            if key.metric == wire.METRIC_CALL_DURATION and counted.counted:
                image = (key.pid, key.image_ktime_ns)
                parts.setdefault((image, key.api), []).append((series, counted))
        rows = [
            _api_row(self._processes[image], merged, middles_ns)
            for (image, _), merged in parts.items()
        ]
        return sorted(rows, key=lambda row: (-row.sum_ns, row.process.pid, row.api))

    def balances(self) -> list[Balance]:
        """Allocations against frees, per process that made any."""
        totals: dict[ImageKey, list[int]] = {}
        for key, series, counted in self._differences():
            family = series.api.family if series.api else wire.FAMILY_OTHER
            if key.nested or key.status or family not in _OF_MEMORY:
                continue
            sums = totals.setdefault((key.pid, key.image_ktime_ns), [0, 0, 0, 0])
            at = 0 if family == wire.FAMILY_ALLOCATE else 2
            # Memory that an unmapping frees was released before, which is counted.
            sums[at] += counted.counted if family != wire.FAMILY_UNMAP else 0
            sums[at + 1] += counted.size_bytes
        return [
            Balance(self._processes[image], *sums)
            for image, sums in sorted(totals.items())
            if any(sums)
        ]

    def unplaced_calls(self) -> int:
        """How many calls of the window are in no bucket: their percentiles are not known."""
        return sum(
            counted.unplaced
            for key, _, counted in self._differences()
            if key.metric == wire.METRIC_CALL_DURATION
        )

    def _observe_series(self, series: Series, now_unix_ns: int) -> None:
        key = series.key
        before = self._series.get(key)
        if before is None and len(self._series) >= MAX_SERIES:
            self.left_out += 1
            return
        self._series[key] = series
        image = (key.pid, key.image_ktime_ns)
        # The latest knows its names best.
        self._processes[image] = series.process
        if before is not None and before.aggregate.sum == series.aggregate.sum:
            # Nothing was added: no call takes no time.
            return
        if self._slots is None or not self._has_begun:
            return
        totals = _totals(series, before)
        if totals is not None:
            since_unix_ns = self._before_unix_ns
            if since_unix_ns is None:
                since_unix_ns = max(series.process.start_unix_ns, self._slots.origin_unix_ns)
            self._slots.spread(image, min(since_unix_ns, now_unix_ns), now_unix_ns, totals)

    def _differences(self) -> Iterator[tuple[SeriesKey, Series, Aggregate]]:
        for key, series in self._series.items():
            counted = self._counted(series, self._base.get(key))
            if counted is not None:
                yield key, series, counted

    def _counted(self, series: Series, base: Series | None) -> Aggregate | None:
        """Return what a series counted in the window; None: nothing."""
        if not self._has_begun:
            return None
        if base is None:
            return series.aggregate
        if base.aggregate is series.aggregate:
            return None
        return _subtract(series.aggregate, base.aggregate)


def _subtract(now: Aggregate, base: Aggregate) -> Aggregate:
    return Aggregate(
        max(0, now.sum - base.sum),
        now.min,
        # 0: the largest of the window is not known.
        now.max if now.max != base.max else 0,
        max(0, now.size_bytes - base.size_bytes),
        tuple(max(0, b - a) for a, b in zip(base.buckets, now.buckets, strict=True)),
        max(0, now.unplaced - base.unplaced),
    )


def _plus(one: Aggregate, other: Aggregate) -> Aggregate:
    return Aggregate(
        one.sum + other.sum,
        min(one.min, other.min),
        max(one.max, other.max),
        one.size_bytes + other.size_bytes,
        tuple(map(add, one.buckets, other.buckets)),
        one.unplaced + other.unplaced,
    )


def _totals(series: Series, before: Series | None) -> Totals | None:
    key, now = series.key, series.aggregate
    # A damaged counter may run backwards.
    sum_ns = max(0, now.sum - (before.aggregate.sum if before else 0))
    if key.metric == wire.METRIC_RUN_QUEUE:
        return Totals(run_queue_ns=sum_ns)
    if key.nested or series.api is None:
        return None
    calls = max(0, now.counted - (before.aggregate.counted if before else 0))
    family = series.api.family
    allocates = family in (wire.FAMILY_ALLOCATE, wire.FAMILY_FREE)
    return Totals(
        calls=calls,
        call_ns=sum_ns,
        synchronize_ns=sum_ns if family == wire.FAMILY_SYNCHRONIZE else 0,
        allocate_calls=calls if allocates else 0,
        allocate_ns=sum_ns if allocates else 0,
    )


def _api_row(
    process: ProcessImage, parts: Sequence[tuple[Series, Aggregate]], middles_ns: Sequence[float]
) -> Api:
    api = parts[0][0].api
    assert api is not None  # noqa: S101 -- only call durations are merged here
    buckets = [sum(counts) for counts in zip(*(part.buckets for _, part in parts), strict=True)]
    max_ns: float = max(part.max for _, part in parts)
    if any(part.max == 0 for _, part in parts):
        # The largest of these calls lies in the last bucket that has any.
        last = max((index for index, count in enumerate(buckets) if count), default=-1)
        largest = max(series.aggregate.max for series, _ in parts)
        max_ns = max(max_ns, min(middles_ns[last], largest))
    min_ns = min(part.min for _, part in parts)

    def percentile(share: float) -> float:
        if not any(buckets):
            return math.nan
        return percentile_ns(share, buckets, middles_ns, min_ns, round(max_ns))

    return Api(
        process,
        api.name,
        api.layer_name,
        sum(part.counted for _, part in parts),
        sum(part.counted for series, part in parts if series.key.status != 0),
        percentile(0.50),
        percentile(0.99),
        max_ns,
        sum(part.sum for _, part in parts),
        sum(part.size_bytes for _, part in parts),
    )
