"""
The parts of a run that become spans: the long ones, up to a limit independent of the file's length.

A part belongs to the step in which it begins, not to the one that launched it, so that no part
begins outside its step; a gap belongs to the step that contains its middle.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import groupby
from statistics import median
from typing import Final, NamedTuple

from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.wire.device_activity import HostWork

NO_STEP: Final = -1
LONG: Final = 0.01
"""Share of a step: shorter gaps are only in metrics, and shorter phases nowhere."""
MOST_WORK: Final = 10
"""Activities of a step; a run without steps has ten times as many."""

_STEPS_OF_RUN = 10


class StepPart(NamedTuple):
    """A part of a step; ``row`` is its index in its table."""

    step: int
    start_ns: int
    duration_ns: int
    row: int


class StepParts(NamedTuple):
    """
    The parts of a run that become spans.

    Attributes:
        steps: Indices of steps, in order.
        phases: Rows of the host: the program's outermost long ranges, except steps.
        gaps: Indices of gaps.
        work: Rows of activities.
        idle_ns: Idle time of each step by cause, of all its gaps.
        left_out: Counts of the parts without a span, by type.
    """

    steps: list[int]
    phases: list[StepPart]
    gaps: list[StepPart]
    work: list[StepPart]
    idle_ns: dict[int, Counter[IdleCause]]
    left_out: dict[str, int]


def choose_parts(use: DeviceUse, most: int) -> StepParts:
    """Choose at most ``most`` parts, the longest of each type."""
    finder = _Finder(use, most // 2)
    remaining = most - len(finder.kept)
    phases = _longest(finder.phases(), remaining // 4)
    remaining -= len(phases)
    work = list(finder.work())
    gaps = _longest(finder.gaps(), max(remaining - len(work), remaining // 2))
    work = _longest(work, remaining - len(gaps))
    left_out = {
        "steps": len(use.steps) - len(finder.kept),
        "phases": finder.named - len(phases),
        "gaps": len(use.every_gap) - len(gaps) if use.knows_idle else 0,
        "work": len(use.timeline.rows) - len(work),
    }
    return StepParts(
        steps=finder.kept,
        phases=phases,
        gaps=gaps,
        work=work,
        idle_ns=finder.idle_ns,
        left_out=left_out,
    )


def _longest(parts: Iterable[StepPart], most: int) -> list[StepPart]:
    chosen = nlargest(most, parts, key=lambda part: part.duration_ns)
    return sorted(chosen, key=lambda part: part.start_ns)


class _Finder:
    def __init__(self, use: DeviceUse, most_steps: int) -> None:
        self._use = use
        steps = use.steps
        self._starts_ns = [step.start_ns for step in steps]
        usual_ns = median(step.duration_ns for step in steps) if steps else use.phases.window_ns
        # By step; the last one is for parts outside all steps.
        self._long_ns = [*(step.duration_ns * LONG for step in steps), usual_ns * LONG]
        longest = nlargest(most_steps, range(len(steps)), key=lambda at: steps[at].duration_ns)
        self.kept = sorted(longest)
        self._parents = {*longest, NO_STEP}
        self.idle_ns: dict[int, Counter[IdleCause]] = {}
        self.named = 0

    def phases(self) -> Iterator[StepPart]:
        # The outermost ranges of each thread; of a range that contains steps, its inner ranges.
        trace, steps = self._use.trace, self._use.steps
        host, reached_ns = trace.host, dict[int, int]()
        of_steps = {step.name for step in steps}
        is_step = [name in of_steps for name in trace.names]
        rows = [
            row
            for row, (kind, name) in enumerate(zip(host.kinds, host.names, strict=True))
            if kind == HostWork.ANNOTATION and not is_step[name]
        ]
        rows.sort(key=lambda row: (host.starts_ns[row], -host.durations_ns[row]))
        for row in rows:
            start_ns, thread = host.starts_ns[row], host.threads[row]
            end_ns = start_ns + host.durations_ns[row]
            step = self._step_at(start_ns)
            is_inside = not steps or (step != NO_STEP and end_ns <= steps[step].end_ns)
            if is_inside and start_ns >= reached_ns.get(thread, start_ns):
                reached_ns[thread] = end_ns
                self.named += 1
                if step in self._parents and end_ns - start_ns >= self._long_ns[step]:
                    yield StepPart(step, start_ns, duration_ns=end_ns - start_ns, row=row)

    def gaps(self) -> Iterator[StepPart]:
        # The gaps that are long for their step; also adds up all gaps.
        use = self._use
        if not use.knows_idle:
            return
        for number, gap in enumerate(use.every_gap):
            step = self._step_at((gap.start_ns + gap.end_ns) // 2)
            self.idle_ns.setdefault(step, Counter())[gap.cause] += gap.duration_ns
            is_long = gap.duration_ns >= self._long_ns[step]
            if is_long and gap.cause is not IdleCause.NOISE and step in self._parents:
                yield StepPart(step, gap.start_ns, duration_ns=gap.duration_ns, row=number)

    def work(self) -> Iterator[StepPart]:
        use, activities = self._use, self._use.trace.activities
        most = MOST_WORK if use.steps else MOST_WORK * _STEPS_OF_RUN
        starts_ns, durations_ns = activities.starts_ns, activities.durations_ns
        # Rows are in order of their starts.
        by_step = groupby(use.timeline.rows, lambda row: self._step_at(starts_ns[row]))
        for step, rows in by_step:
            if step in self._parents:
                for row in nlargest(most, rows, key=durations_ns.__getitem__):
                    yield StepPart(
                        step, start_ns=starts_ns[row], duration_ns=durations_ns[row], row=row
                    )

    def _step_at(self, at_ns: int) -> int:
        number = bisect_right(self._starts_ns, at_ns) - 1
        return number if number >= 0 and at_ns < self._use.steps[number].end_ns else NO_STEP
