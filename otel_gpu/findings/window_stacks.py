"""
Top stacks of a window: what touches it, added up by where it was.

More is played than a window holds, so that what was usual before is known; where calls were
made says nothing about another time.
"""

from collections.abc import Mapping, Sequence

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    Series,
    StallActivity,
)
from otel_gpu.findings.counts import Counts
from otel_gpu.findings.document import Window
from otel_gpu.findings.top_stacks import CALLED, TIME, StackCollector, StackReport


class WindowStacks:
    """
    Watches activities, and adds up the stacks of those that touch a window.

    Args:
        window: What is asked about.
        kind: ``stacks.CALLED`` or ``stacks.WAITED``.
        pids: Only these processes; empty: all.
        names: Only these APIs, or reasons of waits; empty: all.
        rejected: Records that could not be decoded, by reason; read at the end.
    """

    def __init__(
        self,
        window: Window,
        *,
        kind: str,
        pids: Sequence[int] = (),
        names: Sequence[str] = (),
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self._window = window
        self._pids = frozenset(pids)
        self._names = frozenset(names)
        self._counts = Counts(window) if kind == CALLED else None
        self._collector = StackCollector(kind=kind, pids=pids, names=names, rejected=rejected)

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        match activity:
            case CallActivity():
                end_unix_ns = activity.end_unix_ns
            case StallActivity():
                end_unix_ns = activity.runnable_unix_ns
            case _:
                if isinstance(activity, AggregatesActivity) and self._counts is not None:
                    self._counts.observe(activity)
                self._collector.observe(activity)
                return
        if self._window.overlaps(activity.start_unix_ns, end_unix_ns):
            self._collector.observe(activity)

    def finish(self, source: str, by: str = TIME, notes: Sequence[str] = ()) -> StackReport:
        """Return them; see ``stacks.StackCollector``. To be called once."""
        report = self._collector.finish(source, by, notes)
        start_unix_ns = self._window.start_unix_ns or report.start_unix_ns
        end_unix_ns = self._window.end_unix_ns or report.end_unix_ns
        return report._replace(
            start_unix_ns=start_unix_ns,
            end_unix_ns=max(start_unix_ns, end_unix_ns),
            # What was counted before the window is none of its calls.
            counted=self._counted(),
        )

    def _counted(self) -> int | None:
        if self._counts is None or self._counts.end_unix_ns is None:
            return None
        read = self._counts.in_window(self._counts.end_unix_ns)
        return sum(series.aggregate.counted for series in read.series if self._has_counted(series))

    def _has_counted(self, series: Series) -> bool:
        key, api = series.key, series.api
        if key.metric != wire.METRIC_CALL_DURATION or api is None:
            return False
        # As of the stacks: calls inside other calls are parts of those.
        is_chosen = api.name in self._names if self._names else not key.nested
        return is_chosen and (not self._pids or key.pid in self._pids)
