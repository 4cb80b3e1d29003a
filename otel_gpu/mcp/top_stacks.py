"""Top stacks of a window: the calls and the waits in it, added up by where they were made."""

from collections.abc import Sequence

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CallStack,
    OpenCallActivity,
    Series,
    StallActivity,
)
from otel_gpu.report.counts import Counts
from otel_gpu.report.model import Window
from otel_gpu.report.slots import Slots
from otel_gpu.report.stacks import CALLED, StackCollector, StackReport

MAX_OPEN = 10_000
"""Calls that had not returned, as far as they are counted."""


class TopStacks:
    """
    Watches activities, and adds up the stacks of those that touch a window.

    Args:
        window: What is asked about.
        kind: ``stacks.CALLED`` or ``stacks.WAITED``.
        pids: Only these processes; empty: all.
        names: Only these APIs, or reasons of waits; empty: all.
    """

    def __init__(
        self, window: Window, kind: str, pids: Sequence[int] = (), names: Sequence[str] = ()
    ) -> None:
        self._window = window
        self._pids = frozenset(pids)
        self._names = frozenset(names)
        self._counts = Counts(window, Slots()) if kind == CALLED else None
        self._read_unix_ns: int | None = None
        self._collector = StackCollector(kind=kind, pids=pids, names=names)

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        match activity:
            case AggregatesActivity():
                # What was counted before the window is none of its calls.
                if self._counts is not None:
                    self._counts.observe(activity)
                    self._read_unix_ns = activity.unix_ns
            case CallActivity() if not self._window.overlaps(
                activity.start_unix_ns, activity.end_unix_ns
            ):
                pass
            case StallActivity() if not self._window.overlaps(
                activity.start_unix_ns, activity.runnable_unix_ns
            ):
                pass
            case _:
                self._collector.observe(activity)

    def finish(self, source: str, by: str) -> StackReport:
        """Return them, those with most of a measure first; to be called once."""
        return self._collector.finish(source, by)._replace(counted=self._counted())

    def _counted(self) -> int | None:
        if self._counts is None or self._read_unix_ns is None:
            return None
        return sum(
            series.aggregate.counted
            for series in self._counts.in_window(self._read_unix_ns).series
            if self._has_counted(series)
        )

    def _has_counted(self, series: Series) -> bool:
        key, api = series.key, series.api
        if key.metric != wire.METRIC_CALL_DURATION or api is None:
            return False
        # As of the stacks: calls inside other calls are parts of those.
        is_chosen = api.name in self._names if self._names else not key.nested
        return is_chosen and (not self._pids or key.pid in self._pids)


class StackFinder:
    """
    Watches activities for one stack.

    Attributes:
        found: The stack; None: nothing was there.
    """

    def __init__(self, stack_id: int) -> None:
        self._id = stack_id
        self.found: CallStack | None = None
        self._open_calls: set[tuple[int, int]] = set()

    @property
    def open_calls(self) -> int:
        """How many calls that had not returned were there."""
        return len(self._open_calls)

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        if isinstance(activity, CallActivity | StallActivity | OpenCallActivity):
            stack = activity.stack
            if stack is not None and stack.id == self._id:
                self.found = stack
                if isinstance(activity, OpenCallActivity) and len(self._open_calls) < MAX_OPEN:
                    # One that goes on is told again and again.
                    self._open_calls.add((activity.event.tid, activity.start_unix_ns))
