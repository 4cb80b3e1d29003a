"""
Baselines: what is usual for each series, from the histograms that the kernel side keeps.

A series here is one API of one program with one kind of copy, or the gaps of a program. Failed
calls do not count, and devices are not distinguished.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import AggregatesActivity, CaptureActivity, Series
from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.enrich.percentiles import percentile_ns
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.explain.settings import Settings
from otel_gpu.limits.recent import Recent
from otel_gpu.state.capture_state import CaptureState
from otel_gpu.state.differences import grown
from otel_gpu.wire.readings import Aggregate

_METRICS = frozenset({wire.METRIC_CALL_DURATION, wire.METRIC_LAUNCH_GAP})
# No API has this number: it stands for gaps.
_GAPS = 0
_WINDOW_CALLS = 10
_RISING_WINDOWS = 3
_RISING_FACTOR = 2
_MAX_WINDOWS = 16
# Recorded calls, six groups of five in a row. That six rise by chance is one in 720.
_GROUP_CALLS = 5
_GROUPS = 6
_GROUPS_FACTOR = 1.5
# Of one program, each with its kind of copy; there are fewer.
_MAX_ALLOCATORS = 64


class Baseline(NamedTuple):
    """The series that a call or a gap is compared with."""

    pid: int
    program_ktime_ns: int
    api: int
    copy_kind: int


def of_calls(pid: int, program_ktime_ns: int, api: int, copy_kind: int) -> Baseline:
    """Return the baseline of the calls of one API."""
    return Baseline(pid=pid, program_ktime_ns=program_ktime_ns, api=api, copy_kind=copy_kind)


def of_gaps(pid: int, program_ktime_ns: int) -> Baseline:
    """Return the baseline of the gaps of a process."""
    return Baseline(pid=pid, program_ktime_ns=program_ktime_ns, api=_GAPS, copy_kind=wire.COPY_NONE)


class _Program:
    __slots__ = ("allocators", "medians_ns", "seen")

    def __init__(self) -> None:
        # APIs with a recorded call.
        self.seen: set[int] = set()
        # Valid until the next reading.
        self.medians_ns: dict[Baseline, int] = {}
        self.allocators: dict[Baseline, _Windows] = {}


class Baselines:
    """
    Medians of series, from their histograms; bounded.

    Attributes:
        state: What was read of the programs that run.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.state = CaptureState(metrics=_METRICS, max_series=settings.max_series)
        self._programs: Recent[ProcessKey, _Program] = Recent(
            settings.max_processes, cache="baselines"
        )
        # When the first reading with calls of an API came.
        self._counted_unix_ns: dict[ProcessKey, dict[int, int]] = {}

    def learn_layout(self, capture: CaptureActivity) -> None:
        """Note the bucket bounds of this capture."""
        self.state.observe(capture)
        for program in self._programs.values():
            program.medians_ns.clear()

    def observe(self, activity: AggregatesActivity) -> None:
        """Add a reading of the histograms."""
        self.state.observe(activity)
        for process in {series.process for series in activity.series}:
            self._observe_program(key_of(process))
        for series in activity.series:
            self._note_counted(series, activity.unix_ns)

    def _note_counted(self, series: Series, unix_ns: int) -> None:
        if series.key.metric != wire.METRIC_CALL_DURATION or series.key.status:
            return
        program = key_of(series.process)
        noted = self._counted_unix_ns
        if program in noted or len(noted) < self._settings.max_processes:
            noted.setdefault(program, {}).setdefault(series.key.api, unix_ns)

    def _observe_program(self, key: ProcessKey) -> None:
        program = self._programs.get(key)
        if program is not None:
            program.medians_ns.clear()
        allocators: dict[Baseline, list[Aggregate]] = {}
        for series in self._successes(key):
            if series.api and series.api.family in ALLOCATOR_FAMILIES:
                baseline = of_calls(*key, series.key.api, series.key.copy_kind)
                allocators.setdefault(baseline, []).append(series.aggregate)
        for baseline, aggregates in allocators.items():
            self._observe_allocator(baseline, aggregates)

    def median_ns(self, baseline: Baseline) -> int | None:
        """
        Return the median of a series in nanoseconds; None while it has too few calls.

        For an allocator that gets slower, it is the median from before that.
        """
        medians_ns = self._learn(baseline[:2]).medians_ns
        median_ns = medians_ns.get(baseline)
        if median_ns is None:
            median_ns = self._find_median_ns(baseline)
            # Bounded by the number of series.
            if median_ns is not None:
                medians_ns[baseline] = median_ns
        return median_ns

    def is_first(self, pid: int, program_ktime_ns: int, api: int, end_unix_ns: int) -> bool:
        """
        Return whether a recorded call is the first one of its API in its program.

        Ask once for each recorded call, in their order. A call that was too fast to be recorded is
        known only from the next reading of the histograms on.
        """
        seen = self._learn((pid, program_ktime_ns)).seen
        if api in seen:
            return False
        seen.add(api)
        counted = sum(
            series.aggregate.counted
            for series in self._successes((pid, program_ktime_ns))
            if series.key.metric == wire.METRIC_CALL_DURATION and series.key.api == api
        )
        # A reading can come between the call's return and its record. Other calls in it can be
        # later.
        noted = self._counted_unix_ns.get((pid, program_ktime_ns), {})
        return counted <= 1 or noted.get(api, 0) >= end_unix_ns

    def follow_allocator(self, baseline: Baseline, duration_ns: int) -> None:
        """
        Add one recorded call of an allocator.

        Recorded calls show a trend earlier than the histograms, which are read seldom.
        """
        self._windows_of(baseline).add(duration_ns)

    def is_rising(self, baseline: Baseline) -> bool:
        """Return whether the calls of an allocator get slower and slower."""
        windows = self._learn(baseline[:2]).allocators.get(baseline)
        return windows is not None and (windows.is_rising() or windows.has_rising_calls())

    def forget(self, program: ProcessKey) -> None:
        """Forget a program that ended."""
        self.state.forget(program)
        self._programs.pop(program, None)
        self._counted_unix_ns.pop(program, None)

    def _learn(self, key: ProcessKey) -> _Program:
        program = self._programs.use(key)
        if program is None:
            program = self._programs[key] = _Program()
        return program

    def _successes(self, program: ProcessKey) -> Iterator[Series]:
        account = self.state.accounts.get(program)
        for key, series in account.series.items() if account else ():
            if not key.status:
                yield series

    def _aggregates_of(self, baseline: Baseline) -> list[Aggregate]:
        of_gap = baseline.api == _GAPS
        wanted = (baseline.api, baseline.copy_kind)
        return [
            series.aggregate
            for series in self._successes(baseline[:2])
            if (series.key.metric == wire.METRIC_LAUNCH_GAP) == of_gap
            and (of_gap or (series.key.api, series.key.copy_kind) == wanted)
        ]

    def _find_median_ns(self, baseline: Baseline) -> int | None:
        aggregates, middles_ns = self._aggregates_of(baseline), self.state.middles_ns
        if not aggregates or not middles_ns:
            return None
        buckets = _sum_buckets(aggregates)
        if sum(buckets) < max(1, self._settings.minimum_calls):
            return None
        min_ns = min(aggregate.min for aggregate in aggregates)
        max_ns = max(aggregate.max for aggregate in aggregates)
        median_ns = int(
            percentile_ns(
                share=0.5, buckets=buckets, middles_ns=middles_ns, min_ns=min_ns, max_ns=max_ns
            )
        )
        windows = self._learn(baseline[:2]).allocators.get(baseline)
        if windows is not None and windows.is_rising():
            return min(median_ns, windows.first_ns)
        return median_ns

    def _windows_of(self, baseline: Baseline) -> "_Windows":
        allocators = self._learn(baseline[:2]).allocators
        windows = allocators.get(baseline)
        if windows is None:
            windows = _Windows()
            if len(allocators) < _MAX_ALLOCATORS:
                allocators[baseline] = windows
        return windows

    def _observe_allocator(self, baseline: Baseline, aggregates: Sequence[Aggregate]) -> None:
        windows = self._windows_of(baseline)
        window = windows.take(aggregates)
        if window is not None and self.state.middles_ns:
            max_ns = max(aggregate.max for aggregate in aggregates)
            median_ns = int(
                percentile_ns(
                    share=0.5,
                    buckets=window,
                    middles_ns=self.state.middles_ns,
                    min_ns=0,
                    max_ns=max_ns,
                )
            )
            if not windows.medians_ns:
                windows.first_ns = median_ns
            windows.medians_ns.append(median_ns)
            del windows.medians_ns[:-_MAX_WINDOWS]


class _Windows:
    # Durations of an allocator's calls: medians by window, and the latest recorded ones.

    def __init__(self) -> None:
        self._begin: Sequence[int] = ()
        self._counted = 0
        self.first_ns = 0
        # Lists: most stay nearly empty, and an empty deque takes 600 bytes.
        self.medians_ns: list[int] = []
        self.durations_ns: list[int] = []

    def add(self, duration_ns: int) -> None:
        self.durations_ns.append(duration_ns)
        del self.durations_ns[: -_GROUPS * _GROUP_CALLS]

    def take(self, aggregates: Sequence[Aggregate]) -> Sequence[int] | None:
        # The window's own counts once they are enough, and begin the next window.
        # Nearly always there are too few.
        counted = sum(aggregate.counted for aggregate in aggregates)
        if counted - self._counted < _WINDOW_CALLS:
            return None
        buckets = _sum_buckets(aggregates)
        window = list(map(grown, buckets, self._begin or (0,) * len(buckets)))
        if sum(window) < _WINDOW_CALLS:
            return None
        self._counted, self._begin = counted, buckets
        return window

    def is_rising(self) -> bool:
        medians_ns = self.medians_ns
        return (
            len(medians_ns) >= _RISING_WINDOWS
            and medians_ns[-1] >= _RISING_FACTOR * self.first_ns
            # One slow window does not make a trend.
            and medians_ns[-2] > self.first_ns
        )

    def has_rising_calls(self) -> bool:
        durations_ns = self.durations_ns
        if len(durations_ns) < _GROUPS * _GROUP_CALLS:
            return False
        medians_ns = [
            sorted(durations_ns[begin : begin + _GROUP_CALLS])[_GROUP_CALLS // 2]
            for begin in range(0, len(durations_ns), _GROUP_CALLS)
        ]
        pairs = itertools.pairwise(medians_ns)
        return (
            all(earlier < later for earlier, later in pairs)
            and medians_ns[-1] >= _GROUPS_FACTOR * medians_ns[0]
        )


def _sum_buckets(aggregates: Sequence[Aggregate]) -> Sequence[int]:
    if len(aggregates) == 1:
        return aggregates[0].buckets
    return [sum(counts) for counts in zip(*(a.buckets for a in aggregates), strict=False)]
