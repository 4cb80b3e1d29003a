"""
Baselines: what is usual for each series, from the histograms that the kernel side keeps.

A series here is one API of one process image with one kind of copy, or the gaps of a
process image. Results that failed do not count, devices are not told apart.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.capture.layout import DURATION_OFFSET, DURATION_SCALE
from otel_gpu.decode.events import Aggregate, SeriesKey
from otel_gpu.enrich.activities import AggregatesActivity, CaptureActivity, Series
from otel_gpu.enrich.percentiles import bucket_middles_ns, percentile_ns
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.explain.settings import Settings

_DEFAULT_LAYOUT: Mapping[str, Any] = {
    "kind": "exponential",
    "scale": DURATION_SCALE,
    "offset": DURATION_OFFSET,
}
# No API has this number: it stands for the gaps.
_GAPS = 0
_WINDOW_CALLS = 10
_RISING_WINDOWS = 3
_RISING_FACTOR = 2
_MAX_WINDOWS = 16
# Of chosen calls, six groups of five in a row: that they rise by chance is one in 720.
_GROUP_CALLS = 5
_GROUPS = 6
_GROUPS_FACTOR = 1.5


class Baseline(NamedTuple):
    """Which series a call or a gap is compared with."""

    pid: int
    image_ktime_ns: int
    api: int
    copy_kind: int


def of_calls(pid: int, image_ktime_ns: int, api: int, copy_kind: int) -> Baseline:
    """Return the baseline of the calls of one API."""
    return Baseline(pid, image_ktime_ns, api, copy_kind)


def of_gaps(pid: int, image_ktime_ns: int) -> Baseline:
    """Return the baseline of the gaps of a process."""
    return Baseline(pid, image_ktime_ns, _GAPS, wire.COPY_NONE)


class Baselines:
    """
    Takes histograms in and says medians.

    Cumulative values replace what was known, so its size follows the number of series.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._middles_ns = bucket_middles_ns(_DEFAULT_LAYOUT)
        self._aggregates: OrderedDict[Baseline, dict[SeriesKey, Aggregate]] = OrderedDict()
        self._medians: dict[Baseline, int | None] = {}
        self._allocators: OrderedDict[Baseline, _Windows] = OrderedDict()
        # The APIs of each image of which a chosen call was seen.
        self._seen: OrderedDict[tuple[int, int], set[int]] = OrderedDict()
        self._of_image: dict[tuple[int, int], set[Baseline]] = {}
        self._has_all = True

    def learn_layout(self, capture: CaptureActivity) -> None:
        """Take in where the buckets of this capture begin and end, and whether all is in them."""
        self._has_all = not capture.lacks("distributions")
        layout = capture.info.get("layout")
        durations = layout.get("durations") if isinstance(layout, Mapping) else None
        if isinstance(durations, Mapping):
            try:
                self._middles_ns = bucket_middles_ns(durations)
            except (KeyError, TypeError, ValueError, IndexError, OverflowError):
                # A layout of a later version: the medians are unknown then.
                self._middles_ns = ()
            self._medians.clear()

    def observe(self, activity: AggregatesActivity) -> None:
        """Take in a reading of the histograms."""
        touched: dict[Baseline, Series] = {}
        for series in activity.series:
            key = series.key
            if key.metric == wire.METRIC_CALL_DURATION and not key.status:
                baseline = of_calls(key.pid, key.image_ktime_ns, key.api, key.copy_kind)
            elif key.metric == wire.METRIC_LAUNCH_GAP:
                baseline = of_gaps(key.pid, key.image_ktime_ns)
            else:
                continue
            known = self._aggregates.get(baseline)
            if known is None:
                known = self._aggregates[baseline] = {}
                self._of_image.setdefault(baseline[:2], set()).add(baseline)
                if len(self._aggregates) > self._settings.max_series:
                    self._drop(next(iter(self._aggregates)))
            known[key] = series.aggregate
            self._medians.pop(baseline, None)
            touched[baseline] = series
        for baseline, series in touched.items():
            # A trend of what another tool kept can be one of what it kept, and not of calls.
            if self._has_all and series.api is not None and series.api.family in ALLOCATOR_FAMILIES:
                self._observe_allocator(baseline)

    def median_ns(self, baseline: Baseline) -> int | None:
        """
        Return the median of a series; None while it has too few calls.

        Of allocators that get slower it is the median of the time when they were not.
        """
        if baseline not in self._aggregates:
            return None
        if baseline not in self._medians:
            if len(self._medians) > self._settings.max_series:
                self._medians.clear()
            self._medians[baseline] = self._find_median_ns(baseline)
        return self._medians[baseline]

    def is_first(self, pid: int, image_ktime_ns: int, api: int) -> bool:
        """
        Say whether a chosen call is the first one of its API in its process image.

        To be asked once per chosen call, in their order. A call that was too fast to be
        chosen is known only from the next reading of the histograms on.
        """
        image = (pid, image_ktime_ns)
        seen = self._seen.get(image)
        if seen is None:
            seen = self._seen[image] = set()
        self._seen.move_to_end(image)
        if api in seen:
            return False
        seen.add(api)
        if len(self._seen) > self._settings.max_processes:
            self._seen.popitem(last=False)
        if (pid, image_ktime_ns) not in self._of_image:
            return True
        counted = 0
        for copy_kind in (*range(wire.COPY_DEFAULT + 1), wire.COPY_NONE):
            aggregates = self._aggregates.get(of_calls(pid, image_ktime_ns, api, copy_kind), {})
            counted += sum(aggregate.counted for aggregate in aggregates.values())
        # The reading may have come between the call's return and its record.
        return counted <= 1

    def follow_allocator(self, baseline: Baseline, duration_ns: int) -> None:
        """
        Take in one chosen call of an allocator.

        Chosen calls tell of a trend earlier than the histograms, which are read seldom.
        """
        if self._has_all:
            self._windows_of(baseline).durations_ns.append(duration_ns)

    def is_rising(self, baseline: Baseline) -> bool:
        """Say whether the calls of an allocator get slower and slower."""
        windows = self._allocators.get(baseline)
        return windows is not None and (windows.is_rising() or windows.has_rising_calls())

    def forget(self, image: tuple[int, int]) -> None:
        """Let go of an image that ended: its pid and its ktime."""
        for baseline in tuple(self._of_image.get(image, ())):
            self._drop(baseline)
        self._seen.pop(image, None)

    def _drop(self, baseline: Baseline) -> None:
        self._aggregates.pop(baseline, None)
        self._medians.pop(baseline, None)
        self._allocators.pop(baseline, None)
        of_image = self._of_image.get(baseline[:2], set())
        of_image.discard(baseline)
        if not of_image:
            self._of_image.pop(baseline[:2], None)

    def _find_median_ns(self, baseline: Baseline) -> int | None:
        aggregates = self._aggregates.get(baseline)
        if not aggregates or not self._middles_ns:
            return None
        buckets = _sum_buckets(aggregates.values())
        if sum(buckets) < max(1, self._settings.minimum_calls):
            return None
        median_ns = self._median_of(
            buckets,
            min(aggregate.min for aggregate in aggregates.values()),
            max(aggregate.max for aggregate in aggregates.values()),
        )
        if not self._has_all:
            # Slow calls are kept more often than others. No more than half of all calls can take
            # twice the mean, and the mean is of all.
            counted = sum(aggregate.counted for aggregate in aggregates.values())
            total_ns = sum(aggregate.sum for aggregate in aggregates.values())
            median_ns = min(median_ns, 2 * total_ns // counted)
        windows = self._allocators.get(baseline)
        if windows is not None and windows.is_rising():
            return min(median_ns, windows.first_ns)
        return median_ns

    def _median_of(self, buckets: Sequence[int], min_ns: int, max_ns: int) -> int:
        return int(percentile_ns(0.5, buckets, self._middles_ns, min_ns, max_ns))

    def _windows_of(self, baseline: Baseline) -> "_Windows":
        windows = self._allocators.get(baseline)
        if windows is None:
            windows = self._allocators[baseline] = _Windows()
            self._of_image.setdefault(baseline[:2], set()).add(baseline)
            if len(self._allocators) > self._settings.max_series:
                self._allocators.popitem(last=False)
        return windows

    def _observe_allocator(self, baseline: Baseline) -> None:
        windows = self._windows_of(baseline)
        aggregates = self._aggregates[baseline]
        buckets = _sum_buckets(aggregates.values())
        window = windows.take(buckets)
        if window is not None and self._middles_ns:
            max_ns = max(aggregate.max for aggregate in aggregates.values())
            windows.medians_ns.append(self._median_of(window, 0, max_ns))
            if len(windows.medians_ns) == 1:
                windows.first_ns = windows.medians_ns[0]


class _Windows:
    """How long an allocator's calls took: medians by window, and the latest chosen ones."""

    def __init__(self) -> None:
        self._begin: Sequence[int] = ()
        self.first_ns = 0
        self.medians_ns: deque[int] = deque(maxlen=_MAX_WINDOWS)
        self.durations_ns: deque[int] = deque(maxlen=_GROUPS * _GROUP_CALLS)

    def take(self, buckets: Sequence[int]) -> Sequence[int] | None:
        """Return the window's own counts once it has enough of them, and begin the next."""
        begin = self._begin or (0,) * len(buckets)
        window = [max(0, now - before) for now, before in zip(buckets, begin, strict=False)]
        if sum(window) < _WINDOW_CALLS:
            return None
        self._begin = tuple(buckets)
        return window

    def is_rising(self) -> bool:
        medians_ns = self.medians_ns
        return (
            len(medians_ns) >= _RISING_WINDOWS
            and medians_ns[-1] >= _RISING_FACTOR * self.first_ns
            # One slow window is no trend.
            and medians_ns[-2] > self.first_ns
        )

    def has_rising_calls(self) -> bool:
        if len(self.durations_ns) < _GROUPS * _GROUP_CALLS:
            return False
        durations_ns = list(self.durations_ns)
        medians_ns = [
            sorted(durations_ns[begin : begin + _GROUP_CALLS])[_GROUP_CALLS // 2]
            for begin in range(0, len(durations_ns), _GROUP_CALLS)
        ]
        pairs = itertools.pairwise(medians_ns)
        return (
            all(earlier < later for earlier, later in pairs)
            and medians_ns[-1] >= _GROUPS_FACTOR * medians_ns[0]
        )


def _sum_buckets(aggregates: Iterable[Aggregate]) -> Sequence[int]:
    each = list(aggregates)
    if len(each) == 1:
        return each[0].buckets
    return [sum(counts) for counts in zip(*(a.buckets for a in each), strict=False)]
