"""Trace health: what is wrong with a trace, before anything is concluded from it."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from operator import add
from typing import Final, NamedTuple

from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.launches import Launches
from otel_gpu.state.traces.stream_order import StreamOrder
from otel_gpu.wire.device_activity import DeviceTrace

UNRELIABLE: Final = 0.05
"""The share of launches, events or activities from which on idle time is unreliable."""
UNEXPLAINED: Final = 0.1
"""
The share of a window in gaps without a recorded launch at their end from which on causes are
unreliable.
"""
LEAST_BUSY_NS: Final = 50_000
"""The least work of a device for a verdict: about as long as half a dozen launches take."""
LEAST_WINDOW: Final = 0.01
"""The least share of the recording that a window needs for a verdict, if no steps are known."""

_WHOLE_STEPS = 2
_EARLY = 0.01


class Fault(StrEnum):
    """What can be wrong."""

    REJECTED = "rejected"
    LAUNCHED_BEFORE = "launched_before"
    OUTSIDE_STEPS = "outside_steps"
    MIGRATIONS = "migrations"
    LOST_LAUNCHES = "lost_launches"
    LOST_GRAPHS = "lost_graphs"
    UNEXPLAINED_IDLE = "unexplained_idle"
    NO_LAUNCHES = "no_launches"
    OVERLAPPING = "overlapping"
    WRONG_DURATIONS = "wrong_durations"
    DISORDERED = "disordered"
    CLOCKS = "clocks"
    STACKS = "stacks"
    OVERHEAD = "overhead"
    FEW_STEPS = "few_steps"
    NO_STEPS = "no_steps"
    SEVERAL_DEVICES = "several_devices"
    LITTLE_WORK = "little_work"
    SHORT_WINDOW = "short_window"


# Faults that hide idle time itself, and not only its causes.
_HIDES_WORK = frozenset(
    {
        Fault.REJECTED,
        Fault.LOST_LAUNCHES,
        Fault.LOST_GRAPHS,
        Fault.SHORT_WINDOW,
        Fault.WRONG_DURATIONS,
        Fault.DISORDERED,
    }
)
# Faults that hide only the verdict: the cause of each gap is known.
_KEEPS_CAUSES = frozenset({Fault.LITTLE_WORK})


class TraceProblem(NamedTuple):
    """
    One problem: how often or how long, and of how much.

    ``is_fatal``: no verdict is reliable, and no cause of idle time if it ``hides_causes``.
    """

    fault: Fault
    amount: int
    whole: int
    is_fatal: bool = False

    @property
    def share(self) -> float:
        """Its share of the whole."""
        return self.amount / self.whole if self.whole else 0.0

    @property
    def hides_causes(self) -> bool:
        """Whether causes of idle time are unreliable."""
        return self.is_fatal and self.fault not in _KEEPS_CAUSES


class Lost(NamedTuple):
    """Launches whose work was not recorded, and the number of all calls that launch."""

    launches: int
    graphs: int
    calls: int


def examine_health(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    *,
    launches: Launches,
    lost: Lost,
    idle_ns: Mapping[IdleCause, int],
    steps: int,
    devices: int,
) -> tuple[TraceProblem, ...]:
    """Return the problems of a trace with one device, fatal ones first."""
    found = [
        *_of_order(timeline.order),
        *_of_file(trace, devices),
        *_of_launches(timeline=timeline, launches=launches, lost=lost, idle_ns=idle_ns),
        *_of_work(timeline, idle_ns),
    ]
    if has_times(timeline.order):
        found += [*_of_window(trace, timeline, steps), *_of_steps(steps)]
    return tuple(sorted(found, key=lambda one: not one.is_fatal))


def _of_file(trace: DeviceTrace, devices: int) -> Iterator[TraceProblem]:
    rejected = sum(trace.rejected.values())
    read = len(trace.activities) + len(trace.host)
    if rejected:
        is_fatal = rejected > UNRELIABLE * (rejected + read)
        yield TraceProblem(
            fault=Fault.REJECTED, amount=rejected, whole=rejected + read, is_fatal=is_fatal
        )
    if trace.has_stacks:
        yield TraceProblem(Fault.STACKS, 1, 1)
    if trace.overhead_ns:
        yield TraceProblem(Fault.OVERHEAD, trace.overhead_ns, 0)
    if devices > 1:
        yield TraceProblem(Fault.SEVERAL_DEVICES, devices, devices)


def _of_order(order: StreamOrder) -> Iterator[TraceProblem]:
    if order.has_wrong_durations:
        yield TraceProblem(
            Fault.WRONG_DURATIONS, len(order.overlong), order.run_over, is_fatal=True
        )
    elif order.overlapping:
        yield TraceProblem(Fault.OVERLAPPING, order.overlap_ns, order.taken_ns)
    if order.early:
        yield TraceProblem(
            Fault.DISORDERED, order.early, order.launches, is_fatal=order.is_disordered
        )


def _of_launches(
    timeline: DeviceTimeline, launches: Launches, lost: Lost, idle_ns: Mapping[IdleCause, int]
) -> Iterator[TraceProblem]:
    activities, window_ns = len(timeline.rows), max(1, timeline.end_ns - timeline.start_ns)
    if timeline.left_out:
        yield TraceProblem(Fault.LAUNCHED_BEFORE, timeline.left_out, timeline.left_out + activities)
    if timeline.outside:
        yield TraceProblem(Fault.OUTSIDE_STEPS, timeline.outside, timeline.outside + activities)
    if timeline.migrations:
        yield TraceProblem(Fault.MIGRATIONS, timeline.migrations, activities)
    if lost.graphs:
        yield TraceProblem(Fault.LOST_GRAPHS, lost.graphs, lost.calls, is_fatal=True)
    is_much = lost.launches > UNRELIABLE * lost.calls
    if lost.launches:
        yield TraceProblem(
            fault=Fault.LOST_LAUNCHES, amount=lost.launches, whole=lost.calls, is_fatal=is_much
        )
    if activities > timeline.migrations and not launches.linked:
        yield TraceProblem(Fault.NO_LAUNCHES, activities, activities, is_fatal=True)
    unexplained_ns = idle_ns.get(IdleCause.NOT_RECORDED, 0) + idle_ns.get(IdleCause.NO_LAUNCH, 0)
    # If work is missing, idle time is not known to be idle.
    is_idle = launches.linked and not (is_much or lost.graphs)
    if is_idle and unexplained_ns > UNEXPLAINED * window_ns:
        yield TraceProblem(Fault.UNEXPLAINED_IDLE, unexplained_ns, window_ns, is_fatal=True)
    if launches.early > _EARLY * launches.linked:
        yield TraceProblem(Fault.CLOCKS, launches.early, launches.linked)


def _of_work(timeline: DeviceTimeline, idle_ns: Mapping[IdleCause, int]) -> Iterator[TraceProblem]:
    window_ns = timeline.end_ns - timeline.start_ns
    busy_ns = window_ns - sum(idle_ns.values())
    if busy_ns < LEAST_BUSY_NS:
        yield TraceProblem(Fault.LITTLE_WORK, busy_ns, window_ns, is_fatal=True)


def _of_window(trace: DeviceTrace, timeline: DeviceTimeline, steps: int) -> Iterator[TraceProblem]:
    host, window_ns = trace.host, timeline.end_ns - timeline.start_ns
    if steps or not len(host):
        return
    first_ns, last_ns = min(host.starts_ns), max(map(add, host.starts_ns, host.durations_ns))
    recorded_ns = max(timeline.end_ns, last_ns) - min(timeline.start_ns, first_ns)
    if window_ns < LEAST_WINDOW * recorded_ns:
        yield TraceProblem(Fault.SHORT_WINDOW, window_ns, recorded_ns, is_fatal=True)


def _of_steps(steps: int) -> Iterator[TraceProblem]:
    if not steps:
        yield TraceProblem(Fault.NO_STEPS, 0, 0)
    elif steps < _WHOLE_STEPS:
        yield TraceProblem(Fault.FEW_STEPS, steps, _WHOLE_STEPS)


def has_times(order: StreamOrder) -> bool:
    """Return whether the times of activities are reliable, so that there are steps."""
    return not (order.has_wrong_durations or order.is_disordered)


def knows_idle(problems: Sequence[TraceProblem]) -> bool:
    """Return whether all that a device did is known, so that the rest is idle time."""
    return not any(one.is_fatal and one.fault in _HIDES_WORK for one in problems)


def is_reliable(problems: Sequence[TraceProblem]) -> bool:
    """Return whether causes of idle time are reliable."""
    return not any(one.hides_causes for one in problems)


def can_judge(problems: Sequence[TraceProblem]) -> bool:
    """Return whether a verdict is reliable."""
    return not any(one.is_fatal for one in problems)
