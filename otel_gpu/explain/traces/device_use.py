"""How a program used one device: its time, its steps, why it was idle, and what bounds it."""

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, count
from typing import Final, NamedTuple

from otel_gpu.explain.traces.device_verdict import DeviceVerdict, find_device_verdict
from otel_gpu.explain.traces.idle_causes import IdleCause, IdleGap, IdleGaps, find_gaps
from otel_gpu.explain.traces.trace_health import (
    Lost,
    TraceProblem,
    can_judge,
    examine_health,
    has_times,
    is_reliable,
    knows_idle,
)
from otel_gpu.state.traces.algorithm_searches import Searches, find_searches
from otel_gpu.state.traces.collectives import Key, collectives_of
from otel_gpu.state.traces.critical_path import CriticalPath, PathBound, find_critical_path
from otel_gpu.state.traces.device_steps import (
    TracedStep,
    counted,
    find_steps,
    host_spans,
    over_steps,
)
from otel_gpu.state.traces.device_time import DeviceTimeline, Phases, timelines
from otel_gpu.state.traces.device_work import DeviceWork, find_work
from otel_gpu.state.traces.host_regions import Region, find_regions
from otel_gpu.state.traces.host_time import HostTime, rows_by_start
from otel_gpu.state.traces.interval_sets import Spans
from otel_gpu.state.traces.kernel_kinds import KernelKind, kinds_of
from otel_gpu.state.traces.launches import (
    GRAPH_LAUNCH,
    NO_ROW,
    Launches,
    link,
    measure,
    without_work,
)
from otel_gpu.wire.device_activity import DeviceModel, DeviceTrace

MAX_GAPS: Final = 50
"""The longest gaps of a device, which are reported one by one."""

# Copies and fills of 0 bytes leave no trace on a device.
_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch(?!Host)\w*")
# The share of unknown time from which on a path is left out.
_UNKNOWN = 0.5
_NO_MODEL = DeviceModel("")


class IdlePlace(NamedTuple):
    """What the thread did that a device waited for, and its Python function."""

    cause: IdleCause
    name: str
    python: str


class NamedGap(NamedTuple):
    """One long gap."""

    start_ns: int
    duration_ns: int
    place: IdlePlace


class RegionUse(NamedTuple):
    """
    How often a program did something, in how many steps, and the idle time of the device in it.
    """

    times: int
    steps: int
    idle_ns: int


class DeviceUse(NamedTuple):
    """
    How one program used one device.

    Attributes:
        phases: Of the whole window.
        steps: All of them; those that are set aside have a reason.
        idle_ns: By cause; the sum is the idle time of ``phases``.
        places: What was waited for, the longest first.
        gaps: The longest ones; ``every_gap`` are all.
        collectives: Time of work with other ranks.
        kinds: The kind of work of ``timeline``, by name.
        regions: What a program should not do in each step.
        searches: Algorithms of convolutions that were tried out.
        critical: The critical path of the step with the median duration, with its name, or of the
            window if
          steps are not known; None: not known.
    """

    trace: DeviceTrace
    device: int
    model: DeviceModel
    start_ns: int
    phases: Phases
    steps: tuple[TracedStep, ...]
    idle_ns: Mapping[IdleCause, int]
    places: tuple[tuple[IdlePlace, int], ...]
    gaps: tuple[NamedGap, ...]
    launches: Launches
    work: DeviceWork
    health: tuple[TraceProblem, ...]
    verdict: DeviceVerdict
    collectives: Mapping[Key, int]
    timeline: DeviceTimeline
    kinds: Sequence[KernelKind]
    every_gap: IdleGaps
    regions: Mapping[Region, RegionUse]
    searches: Searches
    critical: tuple[str, CriticalPath] | None

    @property
    def knows_idle(self) -> bool:
        """Whether all that the device did is known, so that the rest is idle time."""
        return knows_idle(self.health)

    @property
    def is_reliable(self) -> bool:
        """Whether causes of idle time are reliable."""
        return is_reliable(self.health)

    @property
    def can_judge(self) -> bool:
        """Whether a verdict is reliable."""
        return can_judge(self.health)


# The latest trace is examined once for all callers. It is large, so it is not kept longer.
_examined: list[tuple[DeviceUse, ...]] = []


def examine(trace: DeviceTrace) -> tuple[DeviceUse, ...]:
    """
    Return how a program used each of its devices, by number; cached until ``forget_examined``.
    """
    for uses in _examined:
        if uses and uses[0].trace is trace:
            return uses
    uses = _examine(trace)
    _examined[:] = [uses]
    return uses


def forget_examined() -> None:
    """Drop the cached results of the latest trace."""
    _examined.clear()


def _examine(trace: DeviceTrace) -> tuple[DeviceUse, ...]:
    links = link(trace)
    kinds = kinds_of(trace.names, trace.activities)
    lost, lost_rows = _lost(trace)
    ordered = rows_by_start(trace)
    host = host_spans(trace, ordered)
    host_time = HostTime(trace, ordered)
    regions = find_regions(trace)
    found: list[DeviceUse] = []
    lines = list(timelines(trace, links, kinds))
    for line in lines:
        steps = (
            find_steps(trace=trace, timeline=line, links=links, host=host)
            if has_times(line.order)
            else ()
        )
        timeline = over_steps(trace, line, steps)
        thread = steps[-1].thread if steps else 0
        gaps = find_gaps(
            trace=trace,
            timeline=timeline,
            links=links,
            lost=lost_rows,
            host_time=host_time,
            thread=thread,
        )
        idle_ns = gaps.by_cause()
        phases = timeline.phases(timeline.start_ns, timeline.end_ns)
        launches = measure(trace, timeline.rows, links)
        whole = TracedStep(
            name="",
            start_ns=timeline.start_ns,
            end_ns=timeline.end_ns,
            host_ns=0,
            thread=thread,
            phases=phases,
            parts={},
        )
        step = _middle(counted(steps) or [whole])
        path = find_critical_path(
            trace=trace,
            timeline=timeline,
            links=links,
            host_time=host_time,
            start_ns=step.start_ns,
            end_ns=step.end_ns,
        )
        health = examine_health(
            trace,
            timeline,
            launches=launches,
            lost=lost,
            idle_ns=idle_ns,
            steps=len(counted(steps)),
            devices=len(lines),
        )
        found.append(
            DeviceUse(
                trace,
                timeline.device,
                trace.models.get(timeline.device, _NO_MODEL),
                timeline.start_ns,
                phases,
                steps,
                idle_ns,
                *_places(trace, gaps),
                launches,
                find_work(
                    trace=trace, timeline=timeline, links=links, kinds=kinds, host_time=host_time
                ),
                health,
                find_device_verdict(phases, idle_ns, is_reliable=can_judge(health)),
                collectives_of(trace, timeline, kinds),
                timeline,
                kinds,
                gaps,
                dict(_regions(regions, timeline, steps)),
                find_searches(
                    trace=trace, timeline=timeline, links=links, host_time=host_time, steps=steps
                ),
                (step.name, path) if path and is_reliable(health) and _is_known(path) else None,
            )
        )
    return tuple(found)


def _is_known(path: CriticalPath) -> bool:
    unknown_ns = sum(part.time_ns for part in path.parts if part.bound is PathBound.UNKNOWN)
    return unknown_ns <= _UNKNOWN * (path.end_ns - path.start_ns)


def _middle(steps: Sequence[TracedStep]) -> TracedStep:
    return sorted(steps, key=lambda step: step.duration_ns)[(len(steps) - 1) // 2]


def launches_of(trace: DeviceTrace) -> Counter[str]:
    """Return how often each call that launches work was made."""
    launching = [_LAUNCH.fullmatch(name) is not None for name in trace.names]
    names = trace.host.names
    called = Counter(compress(names, map(launching.__getitem__, names)))
    return Counter({trace.names[name]: count for name, count in called.items()})


def _lost(trace: DeviceTrace) -> tuple[Lost, Sequence[int]]:
    launching = [_LAUNCH.fullmatch(name) is not None for name in trace.names]
    is_graph = [GRAPH_LAUNCH.fullmatch(name) is not None for name in trace.names]
    names = trace.host.names
    launches = array("I", compress(count(), map(launching.__getitem__, names)))
    rows = without_work(trace, launches)
    graphs = sum(is_graph[names[row]] for row in rows)
    return Lost(len(rows) - graphs, graphs, len(launches)), rows


def _regions(
    regions: Mapping[Region, Spans], timeline: DeviceTimeline, steps: Sequence[TracedStep]
) -> Iterator[tuple[Region, RegionUse]]:
    gaps = timeline.gaps()
    for region, spans in regions.items():
        inside = spans.within(timeline.start_ns, timeline.end_ns)
        idle_ns = gaps.length_ns - gaps.minus(inside).length_ns
        taken = sum(len(inside.within(step.start_ns, step.end_ns)) > 0 for step in steps)
        yield region, RegionUse(len(inside), taken, idle_ns)


def _places(
    trace: DeviceTrace, gaps: IdleGaps
) -> tuple[tuple[tuple[IdlePlace, int], ...], tuple[NamedGap, ...]]:
    totals: Counter[IdlePlace] = Counter()
    names = trace.names
    for (cause, name, python), time_ns in gaps.by_place().items():
        totals[IdlePlace(cause, names[name], names[python])] += time_ns
    named = (
        NamedGap(gap.start_ns, gap.duration_ns, place_of(trace, gap))
        for gap in gaps.longest(MAX_GAPS)
    )
    return tuple(totals.most_common()), tuple(named)


def place_of(trace: DeviceTrace, gap: IdleGap) -> IdlePlace:
    """Return what a gap was due to."""
    return IdlePlace(gap.cause, _name(trace, gap.named), _name(trace, gap.python))


def _name(trace: DeviceTrace, row: int) -> str:
    return "" if row == NO_ROW else trace.names[trace.host.names[row]]
