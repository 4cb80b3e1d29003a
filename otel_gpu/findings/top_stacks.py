"""
Top stacks: where in a program its CUDA calls, or its waits, are made.

Not every call has a span, and only what has a span has a stack. What is added up here is
therefore kept apart: how many calls with a stack were seen, and for how many they stand. A
call that was picked as one of a thousand stands for a thousand; one that was chosen for
what it is (slow, failed) stands for itself. How many calls there really were is known from
the kernel's counters, and is said besides.

More is played than a window holds, so that what was usual before is known; where calls were
made says nothing about another time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    CallStack,
    ProcessImage,
    Series,
    StallActivity,
)
from otel_gpu.findings.document import ImageKey, Window, key_of
from otel_gpu.findings.extent import Extent
from otel_gpu.findings.words import count_of
from otel_gpu.ledger.agent import AgentReadings
from otel_gpu.ledger.ledger import Ledger

MAX_ROWS = 16_384
"""Stacks kept apart, each per process and API; what is beyond them is counted."""

CALLS, TIME, BYTES = "calls", "time", "bytes"
MEASURES = (TIME, CALLS, BYTES)
CALLED, WAITED = "calls", "waits"


class StackRow(NamedTuple):
    """
    All calls of one API that one process made from one place, or all its waits there.

    Attributes:
        process: The process.
        name: The API; of waits what they were for.
        stack: The place.
        seen: How many there were with a span.
        calls: How many those stand for; so do the next two.
        time_ns: The time inside them, together.
        size_bytes: What they copied, set or allocated, of those that did not fail.
    """

    process: ProcessImage
    name: str
    stack: CallStack
    seen: int
    calls: int
    time_ns: int
    size_bytes: int

    def measure(self, by: str) -> int:
        """Return one of ``MEASURES``."""
        return {CALLS: self.calls, TIME: self.time_ns, BYTES: self.size_bytes}[by]


class StackReport(NamedTuple):
    """
    The stacks of a capture, those with most of a measure first.

    Attributes:
        source: What was looked at.
        kind: ``calls`` or ``waits``.
        by: The measure that the rows are in order of.
        seen: Calls or waits with a stack, and ``without_stack`` those without.
        stand_for: Calls that those with a stack stand for.
        counted: How many calls there were; None where it is not known.
        losses: What was lost, by reason; reasons that occurred.
        notes: What a reader has to know.
    """

    source: str
    start_unix_ns: int
    end_unix_ns: int
    kind: str
    by: str
    rows: tuple[StackRow, ...]
    seen: int
    without_stack: int
    stand_for: int
    counted: int | None
    losses: Mapping[str, int]
    notes: tuple[str, ...]

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
        kind: ``CALLED``: of calls; ``WAITED``: of threads that were blocked.
        pids: Only these processes; empty: all.
        names: Only these APIs, or kinds of waits; empty: all.
        rejected: Records that could not be decoded, by reason; read at the end.
    """

    def __init__(
        self,
        window: Window = Window(),  # noqa: B008 -- immutable
        *,
        kind: str = CALLED,
        pids: Iterable[int] = (),
        names: Iterable[str] = (),
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self._window = window
        self._kind = kind
        self._pids = frozenset(pids)
        self._names = frozenset(names)
        self._rejected = {} if rejected is None else rejected
        self._rows: dict[tuple[ImageKey, str, int], StackRow] = {}
        self._without_stack = 0
        self._left_out = 0
        self._incomplete = 0
        self._ledger = Ledger(window)
        self._agent = AgentReadings()
        self._extent = Extent()

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        self._extent.observe(activity)
        self._ledger.observe(activity)
        self._agent.observe(activity)
        match activity:
            case CallActivity() if self._kind == CALLED:
                self._observe_call(activity)
            case StallActivity() if self._kind == WAITED:
                self._observe_wait(activity)
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
        start_unix_ns = self._window.start_unix_ns or self._extent.start_unix_ns
        end_unix_ns = self._window.end_unix_ns or self._extent.end_unix_ns
        return StackReport(
            source,
            start_unix_ns,
            max(start_unix_ns, end_unix_ns),
            self._kind,
            by,
            tuple(rows),
            sum(row.seen for row in rows),
            self._without_stack,
            sum(row.calls for row in rows),
            self._counted(),
            self._agent.losses(self._rejected),
            (*self._notes(), *notes),
        )

    def _observe_call(self, activity: CallActivity) -> None:
        event = activity.event
        if not self._wants(event.pid, activity.api.name) or not self._window.overlaps(
            activity.start_unix_ns, activity.end_unix_ns
        ):
            return
        if event.parent_start_ktime_ns and not self._names:
            return
        # Only what was sampled and nothing else stands for others.
        weight = max(1, event.weight) if event.choices == wire.CHOICE_SAMPLED else 1
        duration_ns = max(0, activity.end_unix_ns - activity.start_unix_ns)
        # A call that failed gave or moved nothing.
        size_bytes = 0 if event.status else weight * event.size_bytes
        self._add(activity, activity.api.name, weight, weight * duration_ns, size_bytes)

    def _observe_wait(self, activity: StallActivity) -> None:
        start_unix_ns, end_unix_ns = activity.start_unix_ns, activity.runnable_unix_ns
        blocked_ns = end_unix_ns - start_unix_ns
        is_asked = self._window.overlaps(start_unix_ns, end_unix_ns)
        if blocked_ns > 0 and is_asked and self._wants(activity.event.pid, activity.reason):
            self._add(activity, activity.reason, 1, blocked_ns, 0)

    def _add(
        self,
        activity: CallActivity | StallActivity,
        name: str,
        calls: int,
        time_ns: int,
        size_bytes: int,
    ) -> None:
        stack, process = activity.stack, activity.process
        if stack is None:
            self._without_stack += 1
            return
        self._incomplete += not stack.complete
        key = (key_of(process), name, stack.id)
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= MAX_ROWS:
                self._left_out += 1
                return
            known = StackRow(process, name, stack, 0, 0, 0, 0)
        self._rows[key] = known._replace(
            process=process,
            seen=known.seen + 1,
            calls=known.calls + calls,
            time_ns=known.time_ns + time_ns,
            size_bytes=known.size_bytes + size_bytes,
        )

    def _counted(self) -> int | None:
        if self._ledger.end_unix_ns is None or self._kind != CALLED:
            return None
        return sum(
            series.aggregate.counted
            for one in self._ledger.figures().values()
            for series in one.calls
            if self._has_counted(series)
        )

    def _has_counted(self, series: Series) -> bool:
        # As of the stacks: calls inside other calls are parts of those.
        is_part = series.key.nested and not self._names
        name = series.api.name if series.api else ""
        return not is_part and self._wants(series.key.pid, name)

    def _wants(self, pid: int, name: str) -> bool:
        return (not self._pids or pid in self._pids) and (not self._names or name in self._names)

    def _notes(self) -> Iterable[str]:
        if self._kind == CALLED and not self._names:
            yield "Calls that were made inside other CUDA calls are parts of those, and not listed."
        if self._incomplete:
            yield (
                f"The stacks of {count_of(self._incomplete, self._kind.removesuffix('s'))} are "
                "incomplete: their outer ends are not known, so that one place can be listed more "
                "than once."
            )
        withheld = self._agent.counters.get("counter_spans_withheld_rate", 0)
        if withheld:
            yield (
                f"{count_of(withheld, 'span')} withheld by the rate limit: where these calls and "
                "waits were is not known."
            )
        if samples := self._agent.counters.get("counter_samples_withheld", 0):
            yield f"{count_of(samples, 'stack')} not taken, to keep to a limit."
        if self._left_out:
            yield (
                f"{count_of(self._left_out, self._kind.removesuffix('s'))} found no room: there are "
                f"more than {MAX_ROWS:,} different stacks."
            )


def _order(row: StackRow, by: str) -> tuple[Any, ...]:
    return (-row.measure(by), -row.calls, row.process.pid, row.name, row.stack.id)
