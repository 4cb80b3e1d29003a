"""
The steps of a program, and where the time of each went.

A step is what the program or its profiler calls one. It is never guessed from gaps. It ends when
the host and what it launched on the device have ended, so the time of steps that overlap on the
device is divided among them.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from statistics import median
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_time import DeviceTimeline, Phases
from otel_gpu.state.traces.interval_sets import Spans, union
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace, HostWork

MAX_STEPS: Final = 10_000

PROFILER_STEP: Final = re.compile(r"ProfilerStep#?\d*")
LOADER: Final = re.compile(r"enumerate\(DataLoader\)|DataLoaderIter\.__next__")

# The least share of a window that ranges of one name have to cover to be steps.
_TILED = 0.8
_FEWEST = 3
_NUMBER = re.compile(r"[#\s]*\d+$")
# A step whose work was cut off by the end, and one at the front that did more than others.
_CUT_OFF, _WARM_UP = 0.8, 1.5


class StepTimePart(StrEnum):
    """What has the time of a step: work of the device, or else of the host."""

    KERNEL = "kernel"
    COMMUNICATION = KernelKind.COMMUNICATION
    COPY = KernelKind.COPY
    FILL = KernelKind.FILL
    CALL = "call"
    DATA_LOADER = "data_loader"
    OPERATION = "operation"
    OTHER = KernelKind.OTHER


class TracedStep(NamedTuple):
    """
    One step.

    Attributes:
        host_ns: Its duration on the host.
        thread: The thread of the step.
        parts: Its time, each moment counted once for the first of these that was
            active.
        set_aside: Why it does not count in medians; empty: it does.
    """

    name: str
    start_ns: int
    end_ns: int
    host_ns: int
    thread: int
    phases: Phases
    parts: dict[StepTimePart, int]
    set_aside: str = ""

    @property
    def duration_ns(self) -> int:
        """Its length in nanoseconds."""
        return self.end_ns - self.start_ns


class HostSpans(NamedTuple):
    """When any thread of the host was in a call, a data loader or an operation."""

    calls: Spans
    loader: Spans
    operations: Spans


def host_spans(trace: DeviceTrace, ordered: Sequence[int]) -> HostSpans:
    """Return what the host did, by kind; ``ordered`` are its rows in order of their starts."""
    host = trace.host
    is_loader = [LOADER.search(name) is not None for name in trace.names]
    is_step = [PROFILER_STEP.fullmatch(name) is not None for name in trace.names]
    calls, loader, operations = array("I"), array("I"), array("I")
    is_call, is_operation = int(HostWork.CALL), int(HostWork.OPERATION)
    reached_ns = -1
    columns = (map(column.__getitem__, ordered) for column in (host.names, host.kinds))
    for row, name, kind in zip(ordered, *columns, strict=True):
        if kind == is_call:
            calls.append(row)
        elif is_loader[name]:
            loader.append(row)
        elif kind == is_operation and not is_step[name]:
            # Most are inside others.
            end_ns = host.starts_ns[row] + host.durations_ns[row]
            if end_ns > reached_ns:
                reached_ns = end_ns
                operations.append(row)
    return HostSpans(*(_union_of(trace, rows) for rows in (calls, loader, operations)))


def find_steps(
    trace: DeviceTrace, timeline: DeviceTimeline, links: Sequence[int], host: HostSpans
) -> tuple[TracedStep, ...]:
    """Return the steps in order; empty: not known."""
    named = _named_steps(trace) or _tiling(trace, timeline)
    ends_ns = _work_ends(trace, timeline, links=links, steps=named)
    steps: list[TracedStep] = []
    # Work that was launched before the recording belongs to the step before the first one.
    reached_ns = timeline.left_out_end_ns
    for row, end_ns in zip(named, ends_ns, strict=True):
        start_ns = max(reached_ns, trace.host.starts_ns[row])
        host_ns = trace.host.durations_ns[row]
        reached_ns = max(end_ns, trace.host.starts_ns[row] + host_ns, start_ns)
        phases = timeline.phases(start_ns, reached_ns)
        parts = _parts(timeline, host, start_ns=start_ns, end_ns=reached_ns)
        name = trace.names[trace.host.names[row]]
        thread = trace.host.threads[row]
        steps.append(
            TracedStep(
                name=name,
                start_ns=start_ns,
                end_ns=reached_ns,
                host_ns=host_ns,
                thread=thread,
                phases=phases,
                parts=parts,
            )
        )
    return tuple(_judged(steps))


def over_steps(
    trace: DeviceTrace, timeline: DeviceTimeline, steps: Sequence[TracedStep]
) -> DeviceTimeline:
    """Return a timeline limited to its steps; without steps, unchanged."""
    if not steps:
        return timeline
    start_ns, end_ns = steps[0].start_ns, steps[-1].end_ns
    starts_ns, durations_ns = trace.activities.starts_ns, trace.activities.durations_ns
    rows = array(
        "i",
        (
            row
            for row in timeline.rows
            if starts_ns[row] <= end_ns and starts_ns[row] + durations_ns[row] >= start_ns
        ),
    )
    outside = len(timeline.rows) - len(rows)
    return timeline._replace(start_ns=start_ns, end_ns=end_ns, rows=rows, outside=outside)


def counted(steps: Sequence[TracedStep]) -> list[TracedStep]:
    """Return the steps that count in medians."""
    return [step for step in steps if not step.set_aside]


def _named_steps(trace: DeviceTrace) -> list[int]:
    is_step = [PROFILER_STEP.fullmatch(name) is not None for name in trace.names]
    return _in_order(trace, [row for row, name in enumerate(trace.host.names) if is_step[name]])


def _in_order(trace: DeviceTrace, rows: Sequence[int]) -> list[int]:
    # By start, without rows that begin before another one has ended.
    host, kept = trace.host, list[int]()
    reached_ns = -1
    for row in sorted(rows, key=host.starts_ns.__getitem__)[:MAX_STEPS]:
        if host.starts_ns[row] >= reached_ns:
            kept.append(row)
            reached_ns = host.starts_ns[row] + host.durations_ns[row]
    return kept


def _tiling(trace: DeviceTrace, timeline: DeviceTimeline) -> list[int]:
    # Ranges that the program names alike and that fill the window.
    host = trace.host
    rows: dict[tuple[int, str], list[int]] = {}
    for row, kind in enumerate(host.kinds):
        if kind == HostWork.ANNOTATION and (name := trace.names[host.names[row]]):
            rows.setdefault((host.threads[row], _NUMBER.sub("", name)), []).append(row)
    window_ns = timeline.end_ns - timeline.start_ns
    found: list[list[int]] = []
    for members in rows.values():
        kept = _in_order(trace, members)
        filled_ns = sum(host.durations_ns[row] for row in kept)
        if len(kept) >= _FEWEST and filled_ns >= window_ns * _TILED:
            found.append(kept)
    return min(found, key=len, default=[])


def _work_ends(
    trace: DeviceTrace, timeline: DeviceTimeline, links: Sequence[int], steps: Sequence[int]
) -> list[int]:
    # When the last work ended that each step launched; 0: it launched none.
    host, activities = trace.host, trace.activities
    starts_ns = [host.starts_ns[step] for step in steps]
    returns_ns = [host.starts_ns[step] + host.durations_ns[step] for step in steps]
    ends_ns = [0] * len(steps)
    for row in timeline.rows if steps else ():
        if (call := links[row]) != NO_ROW:
            called_ns = host.starts_ns[call]
            step = bisect_right(starts_ns, called_ns) - 1
            if step >= 0 and called_ns < returns_ns[step]:
                end_ns = activities.starts_ns[row] + activities.durations_ns[row]
                ends_ns[step] = max(ends_ns[step], end_ns)
    return ends_ns


def _parts(
    timeline: DeviceTimeline, host: HostSpans, start_ns: int, end_ns: int
) -> dict[StepTimePart, int]:
    kernels, communication, copies, busy = (
        spans.within(start_ns, end_ns)
        for spans in (timeline.kernels, timeline.communication, timeline.copies, timeline.busy)
    )
    parts = {
        StepTimePart.KERNEL: kernels.length_ns,
        StepTimePart.COMMUNICATION: communication.minus(kernels).length_ns,
        StepTimePart.COPY: copies.minus(kernels).minus(communication).length_ns,
    }
    # Other work of the device.
    busy_ns = busy.length_ns
    parts[StepTimePart.FILL] = busy_ns - sum(parts.values())
    left, left_ns = busy.gaps(start_ns, end_ns), end_ns - start_ns - busy_ns
    ranked = {
        StepTimePart.CALL: host.calls,
        StepTimePart.DATA_LOADER: host.loader,
        StepTimePart.OPERATION: host.operations,
    }
    for name, spans in ranked.items():
        others = left.minus(spans.within(start_ns, end_ns))
        others_ns = left_ns if others is left else others.length_ns
        parts[name] = left_ns - others_ns
        left, left_ns = others, others_ns
    parts[StepTimePart.OTHER] = left_ns
    return parts


def _judged(steps: Sequence[TracedStep]) -> Iterator[TracedStep]:
    work_ns = [step.phases.window_ns - step.phases.idle_ns for step in steps]
    usual_ns = median(step.duration_ns for step in steps) if len(steps) >= _FEWEST else 0
    is_front = True
    for at, step in enumerate(steps):
        is_front = is_front and bool(usual_ns) and step.duration_ns > _WARM_UP * usual_ns
        if is_front:
            yield step._replace(set_aside="warm-up: it took more than 1.5 times the median")
        elif at and at == len(steps) - 1 and work_ns[at] < _CUT_OFF * work_ns[at - 1]:
            yield step._replace(set_aside="cut off: it has less than 80 % of the work of the last")
        else:
            yield step


def _union_of(trace: DeviceTrace, rows: Iterable[int]) -> Spans:
    starts_ns, durations_ns = trace.host.starts_ns, trace.host.durations_ns
    return union((starts_ns[row], starts_ns[row] + durations_ns[row]) for row in rows)
