"""
Top stacks: code locations of a program's CUDA calls, waits and time.

Only calls with a span have a stack, and not every call has a span. So two counts are kept: the
calls seen with a stack, and the calls that they represent. A call that was sampled one in a
thousand represents a thousand; one that was recorded because it was slow or failed represents
itself. The kernel's counters have the real count, which is shown as well.

Time on CPUs is the sum of what samples represent; time off CPUs is the sum of waits with spans.
Both include what has no stack, so that shares are of the whole.

The source plays activities outside of the window, too, for baselines; calls outside are not added.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    SampleActivity,
    Series,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import CallStack, Culprit, Program
from otel_gpu.report.document import Window, key_of
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.stacks.intervals import ON_CPU, StackInterval, intervals_of
from otel_gpu.report.wording.formats import count_of
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.capture_state import COUNTED, CaptureState
from otel_gpu.state.memory.blocks import By

MAX_ROWS = 16_384
"""Distinct stacks per process and API; further ones are only counted."""


class StackMeasure(StrEnum):
    """What a stack report ranks and adds up."""

    TIME = "time"
    CALLS = "calls"
    BYTES = "bytes"


class StackKind(StrEnum):
    """The kind of a stack report."""

    CALLS = "calls"
    WAITS = "waits"
    CPU = "cpu"
    OFF_CPU = "off-cpu"
    WALL = "wall"
    IN_USE = By.IN_USE
    ALLOCATED = By.ALLOCATED
    PEAK = By.PEAK


CALLED, WAITED = StackKind.CALLS, StackKind.WAITS
CPU, OFF_CPU, WALL = GRAPHS = (StackKind.CPU, StackKind.OFF_CPU, StackKind.WALL)
IN_USE, ALLOCATED, PEAK = MEMORY = (StackKind.IN_USE, StackKind.ALLOCATED, StackKind.PEAK)
"""Stacks of device memory; see ``report.memory.stacks``."""
_TITLES = {
    IN_USE: "device memory in use in the end",
    ALLOCATED: "device memory allocated, also what is free again",
    PEAK: "device memory in use when most was",
    CPU: "time on CPUs",
    OFF_CPU: "time off CPUs",
    WALL: "time on and off CPUs",
}
_UNIT_NAMES = {
    CALLED: "call",
    WAITED: "wait",
    CPU: "sample",
    OFF_CPU: "wait",
    WALL: "sample or wait",
}


class StackRow(NamedTuple):
    """
    All calls of one API by one process from one place, or all its waits or samples there.

    Attributes:
        process: The process.
        name: The API; for waits the reason, for samples ``on_cpu``; see ``intervals``.
        stack: The place.
        seen: Count of calls and waits with a span.
        calls: Count that they represent; the next two are of these.
        time_ns: The time inside them, together.
        size_bytes: Bytes copied, set or allocated by calls that succeeded.
        thread: The thread; None: all of the process.
        device: For memory, the process's device index; else None.
    """

    process: Program
    name: str
    stack: CallStack
    seen: int
    calls: int
    time_ns: int
    size_bytes: int
    thread: Culprit | None = None
    device: int | None = None

    def measure(self, by: StackMeasure) -> int:
        """Return one measure."""
        match by:
            case StackMeasure.TIME:
                return self.time_ns
            case StackMeasure.CALLS:
                return self.calls
            case StackMeasure.BYTES:
                return self.size_bytes


class StackReport(NamedTuple):
    """
    The stacks of a capture, those with most of a measure first.

    Attributes:
        source: The name of the source.
        kind: ``calls``, ``waits``, or one of ``GRAPHS`` or ``MEMORY``.
        by: The measure of the rows' order.
        seen: Calls, waits or blocks with a stack; for ``GRAPHS``, all waits and samples.
        without_stack: Those without one.
        stand_for: Calls that those with a stack represent.
        counted: Count of all calls; None: not known.
        losses: Losses that occurred, by reason.
        notes: Notes for the reader.
        samples: Count of samples of threads on CPUs.
        on_cpu_ns: The time that those represent.
        counted_on_cpu_ns: Time on CPUs by the kernel's accounting; None: not known.
    """

    source: str
    start_unix_ns: int
    end_unix_ns: int
    kind: StackKind
    by: StackMeasure
    rows: tuple[StackRow, ...]
    seen: int
    without_stack: int
    stand_for: int
    counted: int | None
    losses: Mapping[str, int]
    notes: tuple[str, ...]
    samples: int = 0
    on_cpu_ns: int = 0
    counted_on_cpu_ns: int | None = None

    @property
    def title(self) -> str:
        """The title of the report."""
        return _TITLES.get(self.kind, f"{self.kind} by {self.by}")

    def total(self) -> int:
        """Return the measure of all rows together."""
        return sum(row.measure(self.by) for row in self.rows)


class StackCollector:
    """
    Adds up the stacks of activities.

    Without names of APIs, calls inside other CUDA calls are omitted, as parts of those.

    Args:
        window: The reported time: whatever overlaps it is added.
        kind: ``CALLED``: calls; ``WAITED``: blocked threads; ``CPU``, ``OFF_CPU`` and ``WALL``:
            time of threads on CPUs, off them, and both.
        pids: Only these processes; empty: all.
        names: Only these APIs, or reasons of waits; empty: all.
        threads: Only threads with these ids or names, as shell patterns; each thread has its own
            rows. Empty: all, together.
        rejected: Records that could not be decoded, by reason; read at the end.
    """

    def __init__(
        self,
        window: Window = Window(),  # noqa: B008 -- immutable
        *,
        kind: StackKind = CALLED,
        pids: Iterable[int] = (),
        names: Iterable[str] = (),
        threads: Iterable[str] = (),
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self._window = window
        self._kind = kind
        self._pids = frozenset(pids)
        self._names = frozenset(names)
        self._threads = tuple(threads)
        self._rejected = {} if rejected is None else rejected
        self._rows: dict[tuple[object, ...], StackRow] = {}
        self._without_stack = 0
        self._left_out = 0
        self._incomplete = 0
        # Waits have no counter to compare with.
        self._is_counted = kind in (CALLED, CPU, WALL)
        self._state = CaptureState(window, metrics=COUNTED if kind == CALLED else frozenset())
        self._agent = AgentReadings()
        self._extent = CaptureExtent()

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        self._extent.observe(activity)
        if self._is_counted:
            self._state.observe(activity)
        self._agent.observe(activity)
        match activity:
            case CallActivity() if self._kind == CALLED:
                self._observe_call(activity)
            case StallActivity() if self._kind == WAITED:
                self._observe_wait(activity)
            case StallActivity() if self._kind in (OFF_CPU, WALL):
                self._observe_intervals(activity)
            case SampleActivity() if self._kind in (CPU, WALL):
                self._observe_intervals(activity)
            case _:
                pass

    def finish(
        self, source: str, by: StackMeasure = StackMeasure.TIME, notes: Sequence[str] = ()
    ) -> StackReport:
        """
        Make the report.

        Args:
            source: The name of the source.
            by: The measure that ranks stacks.
            notes: Further notes.
        """
        rows = sorted(self._rows.values(), key=lambda row: _order(row, by))
        on_cpu = [row for row in rows if self._kind in GRAPHS and row.name == ON_CPU]
        start_unix_ns = self._window.start_unix_ns or self._extent.start_unix_ns
        end_unix_ns = self._window.end_unix_ns or self._extent.end_unix_ns
        return StackReport(
            source=source,
            start_unix_ns=start_unix_ns,
            end_unix_ns=max(start_unix_ns, end_unix_ns),
            kind=self._kind,
            by=by,
            rows=tuple(rows),
            seen=sum(row.seen for row in rows),
            without_stack=self._without_stack,
            stand_for=sum(row.calls for row in rows),
            counted=self._counted(),
            losses=self._agent.losses(self._rejected),
            notes=(*self._notes(has_samples=bool(on_cpu)), *notes),
            samples=sum(row.seen for row in on_cpu),
            on_cpu_ns=sum(row.time_ns for row in on_cpu),
            counted_on_cpu_ns=self._counted_on_cpu_ns(),
        )

    def _observe_call(self, activity: CallActivity) -> None:
        event = activity.event
        if not self._wants(event.pid, activity.api.name) or not self._window.overlaps(
            activity.start_unix_ns, activity.end_unix_ns
        ):
            return
        if not self._wants_thread(event.tid, event.comm):
            return
        if event.parent_start_ktime_ns and not self._names:
            return
        # Only a sampled call without another reason represents others.
        weight = max(1, event.weight) if event.choices == wire.CHOICE_SAMPLED else 1
        duration_ns = max(0, activity.end_unix_ns - activity.start_unix_ns)
        # A failed call allocated or moved nothing.
        size_bytes = 0 if event.status else weight * event.size_bytes
        self._add(
            activity=activity,
            name=activity.api.name,
            calls=weight,
            time_ns=weight * duration_ns,
            size_bytes=size_bytes,
        )

    def _observe_wait(self, activity: StallActivity) -> None:
        event = activity.event
        start_unix_ns, end_unix_ns = activity.start_unix_ns, activity.runnable_unix_ns
        blocked_ns = end_unix_ns - start_unix_ns
        is_asked = self._window.overlaps(start_unix_ns, end_unix_ns)
        if (
            blocked_ns > 0
            and is_asked
            and self._wants(event.pid, activity.reason)
            and self._wants_thread(event.tid, event.comm)
        ):
            self._add(
                activity=activity, name=activity.reason, calls=1, time_ns=blocked_ns, size_bytes=0
            )

    def _observe_intervals(self, activity: SampleActivity | StallActivity) -> None:
        event = activity.event
        if not self._wants_thread(event.tid, event.comm):
            return
        for interval in intervals_of(activity, self._window):
            if not self._wants(event.pid, interval.name, interval.api):
                continue
            self._without_stack += interval.stack is None
            self._incomplete += interval.stack is not None and not interval.stack.complete
            stack_id = 0 if interval.stack is None else interval.stack.id
            place = (stack_id, interval.api, interval.functions)
            self._put(
                activity=activity,
                name=interval.name,
                place=place,
                at=interval,
                amounts=(1, interval.time_ns, 0),
            )

    def _add(
        self,
        activity: CallActivity | StallActivity,
        name: str,
        calls: int,
        time_ns: int,
        size_bytes: int,
    ) -> None:
        stack = activity.stack
        if stack is None:
            self._without_stack += 1
            return
        self._incomplete += not stack.complete
        self._put(
            activity=activity,
            name=name,
            place=(stack.id,),
            at=stack,
            amounts=(calls, time_ns, size_bytes),
        )

    def _put(
        self,
        activity: CallActivity | SampleActivity | StallActivity,
        name: str,
        place: tuple[object, ...],
        at: CallStack | StackInterval,
        amounts: tuple[int, int, int],
    ) -> None:
        process, event = activity.process, activity.event
        thread = Culprit(event.pid, event.tid, event.comm) if self._threads else None
        key = (key_of(process), name, place, event.tid if thread else 0)
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= MAX_ROWS:
                self._left_out += 1
                return
            stack = at.whole() if isinstance(at, StackInterval) else at
            known = StackRow(
                process=process, name=name, stack=stack, seen=0, calls=0, time_ns=0, size_bytes=0
            )
        calls, time_ns, size_bytes = amounts
        self._rows[key] = known._replace(
            process=process,
            seen=known.seen + 1,
            calls=known.calls + calls,
            time_ns=known.time_ns + time_ns,
            size_bytes=known.size_bytes + size_bytes,
            thread=thread,
        )

    def _counted(self) -> int | None:
        # Counters are of whole processes.
        if self._state.end_unix_ns is None or self._kind != CALLED or self._threads:
            return None
        return sum(
            series.aggregate.counted
            for one in self._state.figures().values()
            for series in one.calls
            if self._has_counted(series)
        )

    def _counted_on_cpu_ns(self) -> int | None:
        is_asked = self._kind in (CPU, WALL) and not self._names and not self._threads
        if not is_asked or not self._state.is_accounted:
            return None
        return sum(
            time.time_ns
            for one in self._state.figures().values()
            for time in one.times
            if time.state == wire.STATE_ON_CPU and self._wants(one.process.pid)
        )

    def _has_counted(self, series: Series) -> bool:
        # As for stacks: calls inside other calls are parts of those.
        is_part = series.key.nested and not self._names
        name = series.api.name if series.api else ""
        return not is_part and self._wants(series.key.pid, name)

    def _wants(self, pid: int, *names: str) -> bool:
        is_named = not self._names or any(name in self._names for name in names)
        return (not self._pids or pid in self._pids) and is_named

    def _wants_thread(self, tid: int, comm: str) -> bool:
        return not self._threads or any(
            fnmatchcase(name, pattern) for name in (str(tid), comm) for pattern in self._threads
        )

    def _notes(self, *, has_samples: bool) -> Iterable[str]:
        name = _UNIT_NAMES[self._kind]
        if self._kind == CALLED and not self._names:
            yield "Calls that were made inside other CUDA calls are parts of those, and not listed."
        if self._kind == WALL and not has_samples:
            yield "No samples of threads on CPUs were taken: this is time off the CPU only."
        if self._incomplete:
            yield (
                f"The stacks of {_counted(self._incomplete, name)} are "
                "incomplete: their outer ends are not known, so that one place can be listed more "
                "than once."
            )
        counters = self._agent.counters
        limited = counters.get("counter_spans_rate_limited", 0)
        if limited and self._kind != CPU:
            yield (
                f"{count_of(limited, 'span')} rate-limited: where these calls and "
                "waits were is not known."
            )
        ticks = counters.get("counter_cpu_samples_rate_limited", 0)
        if ticks and self._kind in (CPU, WALL):
            yield (
                f"{count_of(ticks, 'tick')} of busy threads without a sample of their own, to keep to "
                "a limit: the samples that were taken stand for more."
            )
        if samples := counters.get("counter_samples_rate_limited", 0):
            yield f"{count_of(samples, 'stack')} not taken, to keep to a limit."
        if self._left_out:
            yield (
                f"{_counted(self._left_out, name)} found no room: there are "
                f"more than {MAX_ROWS:,} different stacks."
            )


def _counted(count: int, name: str) -> str:
    first, *others = name.split(" or ")
    return " or ".join([count_of(count, first), *(one + "s" * (count != 1) for one in others)])


def _order(row: StackRow, by: StackMeasure) -> tuple[Any, ...]:
    order = (-row.measure(by), -row.calls, row.process.pid, row.name, row.stack.id)
    return (*order, row.thread or (), row.stack.frames)
