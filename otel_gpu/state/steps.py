"""Steps of threads: how long they take, and which of them took far longer than usual."""

import bisect
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.limits.recent import Recent
from otel_gpu.state.window import Window

MAX_SERIES: Final = 1_024
"""Kinds of steps of all threads, the latest ones."""
MAX_SLOW: Final = 20
"""The slow steps kept of one kind and thread, those that lost most time."""
MAX_DURATIONS: Final = 4_096
"""The durations kept for quantiles, the last ones."""

_USUAL: Final = 256
"""Steps before one that it is compared with."""
_FEWEST: Final = 8
_SLOW: Final = 2.0
_LEAST_EXCESS_NS: Final = 1_000_000


class SlowStep(NamedTuple):
    """A step that took far longer than those before it; ``usual_ns`` is their median."""

    activity: StepActivity
    usual_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return duration_of(self.activity)

    @property
    def excess_ns(self) -> int:
        """How much longer it took than usual."""
        return self.duration_ns - self.usual_ns


@dataclass(slots=True, eq=False)
class StepSeries:
    """
    Steps of one kind of one thread; figures are of the window.

    ``confidence_percent`` is of the latest step, ``loader_wait_ns`` of all of them together.
    """

    process: Program
    tid: int
    source: int
    kind: int
    name: str
    comm: str = ""
    confidence_percent: int = 0
    steps: int = 0
    sum_ns: int = 0
    max_ns: int = 0
    loader_wait_ns: int = 0
    slow_steps: int = 0
    slow: list[SlowStep] = field(default_factory=list)
    _durations_ns: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    _before_ns: deque[int] = field(default_factory=deque)
    _usual_ns: list[int] = field(default_factory=list)

    def quantiles_ns(self, *shares: float) -> tuple[int, ...]:
        """Return quantiles of the durations; zeros if there are none."""
        ordered = sorted(self._durations_ns) or [0]
        return tuple(ordered[min(int(one * len(ordered)), len(ordered) - 1)] for one in shares)

    @property
    def variation(self) -> float:
        """The interquartile range divided by the median."""
        first_ns, middle_ns, third_ns = self.quantiles_ns(0.25, 0.5, 0.75)
        return (third_ns - first_ns) / middle_ns if middle_ns else 0.0

    def judge(self, activity: StepActivity) -> SlowStep | None:
        """Compare a step with those before it, and add it to them; None: it is not slow."""
        duration_ns, usual = duration_of(activity), self._usual_ns
        usual_ns = usual[len(usual) // 2] if len(usual) >= _FEWEST else duration_ns
        self._before_ns.append(duration_ns)
        bisect.insort(usual, duration_ns)
        if len(usual) > _USUAL:
            del usual[bisect.bisect_left(usual, self._before_ns.popleft())]
        is_slow = duration_ns > _SLOW * usual_ns and duration_ns - usual_ns >= _LEAST_EXCESS_NS
        return SlowStep(activity, usual_ns) if is_slow else None

    def count(self, activity: StepActivity, slow: SlowStep | None) -> None:
        """Count a step of the window."""
        duration_ns, event = duration_of(activity), activity.event
        self.comm, self.confidence_percent = event.comm, event.confidence_percent
        self.steps += 1
        self.sum_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        # Programs can emit any value.
        self.loader_wait_ns += min(event.loader_wait_ns, duration_ns)
        self._durations_ns.append(duration_ns)
        if slow is not None:
            self.slow_steps += 1
            bisect.insort(self.slow, slow, key=lambda one: -one.excess_ns)
            del self.slow[MAX_SLOW:]


class ThreadSteps:
    """
    The steps of all threads; bounded.

    If the program of a thread reports its steps, detected steps of that thread are left out.

    Args:
        window: What is counted; steps before it show what is usual.
    """

    def __init__(self, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self._window = window
        self._series: Recent[tuple[ProcessKey, int, int, int, str], StepSeries] = Recent(
            MAX_SERIES, cache="step_series"
        )
        self._reporting: Recent[tuple[ProcessKey, int], None] = Recent(MAX_SERIES)

    def observe(self, activity: StepActivity) -> SlowStep | None:
        """Add a step; return it if it was slow."""
        event = activity.event
        program = key_of(activity.process)
        if event.source == wire.STEP_REPORTED:
            if (program, event.tid) not in self._reporting:
                self._forget_found(program, event.tid)
            self._reporting[program, event.tid] = None
        elif (program, event.tid) in self._reporting:
            return None
        key = program, event.tid, event.source, event.kind, event.name
        series = self._series.use(key)
        if series is None:
            series = self._series[key] = StepSeries(
                activity.process, event.tid, source=event.source, kind=event.kind, name=event.name
            )
        slow = series.judge(activity)
        if self._window.overlaps(activity.end_unix_ns, activity.end_unix_ns):
            series.count(activity, slow)
        return slow

    def series(self) -> list[StepSeries]:
        """Return the series with steps, the most time first."""
        found = [one for one in self._series.values() if one.steps]
        return sorted(found, key=lambda one: (-one.sum_ns, one.process.pid, one.tid, one.kind))

    def _forget_found(self, program: ProcessKey, tid: int) -> None:
        for key in [key for key in self._series if key[:2] == (program, tid)]:
            del self._series[key]


def duration_of(activity: StepActivity) -> int:
    """Return how long a step took, by the kernel's clock."""
    return max(0, activity.event.end_ktime_ns - activity.event.start_ktime_ns)
