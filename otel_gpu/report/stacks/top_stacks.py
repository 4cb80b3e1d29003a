"""
Top stacks: where in a program its CUDA calls, or its waits, are made, and its time is spent.

Not every call has a span, and only what has a span has a stack. What is added up here is
therefore kept apart: how many calls with a stack were seen, and for how many they stand. A
call that was picked as one of a thousand stands for a thousand; one that was chosen for
what it is (slow, failed) stands for itself. How many calls there really were is known from
the kernel's counters, and is said besides.

Time on CPUs is added up from samples, by what each stands for; time off them from the waits that
became spans. There, what has no stack is added up too, so that shares are of all of it.

More is played than a window holds, so that what was usual before is known; where calls were
made says nothing about another time.
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
"""Stacks kept apart, each per process and API; what is beyond them is counted."""

CALLS, TIME, BYTES = "calls", "time", "bytes"
MEASURES = (TIME, CALLS, BYTES)


class StackKind(StrEnum):
    """What stacks are of."""

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
"""Of the memory of devices; see ``memory_stacks``."""
_TITLES = {
    IN_USE: "device memory in use in the end",
    ALLOCATED: "device memory allocated, also what is free again",
    PEAK: "device memory in use when most was",
    CPU: "time on CPUs",
    OFF_CPU: "time off CPUs",
    WALL: "time on and off CPUs",
}
_NOUNS = {CALLED: "call", WAITED: "wait", CPU: "sample", OFF_CPU: "wait", WALL: "sample or wait"}


class StackRow(NamedTuple):
    """
    All calls of one API that one process made from one place, or all its waits or samples there.

    Attributes:
        process: The process.
        name: The API; of waits what they were for, of samples ``on_cpu``; see ``spells``.
        stack: The place.
        seen: How many there were, of calls and waits with a span.
        calls: How many those stand for; so do the next two.
        time_ns: The time inside them, together.
        size_bytes: What they copied, set or allocated, of those that did not fail.
        thread: The thread; None: all of the process.
        device: Of memory, the device as the process sees it; else None.
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

    def measure(self, by: str) -> int:
        """Return one of ``MEASURES``."""
        return {CALLS: self.calls, TIME: self.time_ns, BYTES: self.size_bytes}[by]


class StackReport(NamedTuple):
    """
    The stacks of a capture, those with most of a measure first.

    Attributes:
        source: What was looked at.
        kind: ``calls``, ``waits``, or one of ``GRAPHS`` or ``MEMORY``.
        by: The measure that the rows are in order of.
        seen: Calls, waits or blocks with a stack; of ``GRAPHS``, all waits and samples.
        without_stack: Those without one.
        stand_for: Calls that those with a stack stand for.
        counted: How many calls there were; None where it is not known.
        losses: What was lost, by reason; reasons that occurred.
        notes: What a reader has to know.
        samples: How many of them are samples of threads on CPUs.
        on_cpu_ns: What those stand for, together.
        counted_on_cpu_ns: Time on CPUs by the kernel's account; None where it is not known.
    """

    source: str
    start_unix_ns: int
    end_unix_ns: int
    kind: StackKind
    by: str
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
        """What is added up, in words."""
        return _TITLES.get(self.kind, f"{self.kind} by {self.by}")

    def total(self) -> int:
        """Return the measure of all rows together."""
        return sum(row.measure(self.by) for row in self.rows)


class StackCollector:
    """
    Watches activities, and adds up their stacks.

    Without names of APIs, calls inside other CUDA calls are left out: they are a part of
    those.

    Args:
        window: What is asked about: what touches it is added up.
        kind: ``CALLED``: of calls; ``WAITED``: of threads that were blocked; ``CPU``, ``OFF_CPU``
            and ``WALL``: of the time of threads on CPUs, off them, and both.
        pids: Only these processes; empty: all.
        names: Only these APIs, or kinds of waits; empty: all.
        threads: Only threads with these numbers or names, which may be patterns as those of a
            shell; each is added up for itself. Empty: all, together.
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
        self._rows: dict[tuple[Any, ...], StackRow] = {}
        self._without_stack = 0
        self._left_out = 0
        self._incomplete = 0
        # Of waits nothing is counted that could stand beside them.
        self._is_counted = kind in (CALLED, CPU, WALL)
        self._ledger = CaptureState(window, metrics=COUNTED if kind == CALLED else frozenset())
        self._agent = AgentReadings()
        self._extent = CaptureExtent()

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        self._extent.observe(activity)
        if self._is_counted:
            self._ledger.observe(activity)
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

    def finish(self, source: str, by: str = TIME, notes: Sequence[str] = ()) -> StackReport:
        """
        Make the report.

        Args:
            source: What was looked at.
            by: One of ``MEASURES``.
            notes: What else the reader is to know.
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
        # Only what was sampled and nothing else stands for others.
        weight = max(1, event.weight) if event.choices == wire.CHOICE_SAMPLED else 1
        duration_ns = max(0, activity.end_unix_ns - activity.start_unix_ns)
        # A call that failed gave or moved nothing.
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
        for spell in intervals_of(activity, self._window):
            if not self._wants(event.pid, spell.name, spell.api):
                continue
            self._without_stack += spell.stack is None
            self._incomplete += spell.stack is not None and not spell.stack.complete
            stack_id = 0 if spell.stack is None else spell.stack.id
            place = (stack_id, spell.api, spell.functions)
            self._put(
                activity=activity,
                name=spell.name,
                place=place,
                at=spell,
                amounts=(1, spell.time_ns, 0),
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
        place: tuple[Any, ...],
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
        if self._ledger.end_unix_ns is None or self._kind != CALLED or self._threads:
            return None
        return sum(
            series.aggregate.counted
            for one in self._ledger.figures().values()
            for series in one.calls
            if self._has_counted(series)
        )

    def _counted_on_cpu_ns(self) -> int | None:
        is_asked = self._kind in (CPU, WALL) and not self._names and not self._threads
        if not is_asked or not self._ledger.is_accounted:
            return None
        return sum(
            time.time_ns
            for one in self._ledger.figures().values()
            for time in one.times
            if time.state == wire.STATE_ON_CPU and self._wants(one.process.pid)
        )

    def _has_counted(self, series: Series) -> bool:
        # As of the stacks: calls inside other calls are parts of those.
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
        noun = _NOUNS[self._kind]
        if self._kind == CALLED and not self._names:
            yield "Calls that were made inside other CUDA calls are parts of those, and not listed."
        if self._kind == WALL and not has_samples:
            yield "No samples of threads on CPUs were taken: this is time off the CPU only."
        if self._incomplete:
            yield (
                f"The stacks of {_counted(self._incomplete, noun)} are "
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
                f"{_counted(self._left_out, noun)} found no room: there are "
                f"more than {MAX_ROWS:,} different stacks."
            )


def _counted(count: int, noun: str) -> str:
    first, *others = noun.split(" or ")
    return " or ".join([count_of(count, first), *(one + "s" * (count != 1) for one in others)])


def _order(row: StackRow, by: str) -> tuple[Any, ...]:
    order = (-row.measure(by), -row.calls, row.process.pid, row.name, row.stack.id)
    return (*order, row.thread or (), row.stack.frames)
