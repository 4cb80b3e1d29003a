"""
The running totals of a capture: calls per API and process, exact, in bounded memory.

A summary shows them during a capture, and at its end.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    ProbesActivity,
    StatusActivity,
)
from otel_gpu.report.call_counts import api_rows
from otel_gpu.report.document import ApiTotals, ProcessKey, key_of
from otel_gpu.report.notes import describe_losses, why_no_calls
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.capture_state import CaptureState

MAX_ENDED = 1_024
"""Limit of series of ended processes, of 2 kB each."""
OBSERVED = frozenset(
    {
        AggregatesActivity,
        CaptureActivity,
        CountersActivity,
        ExitActivity,
        ProbesActivity,
        StatusActivity,
    }
)
"""The activities that change the totals."""


class RunningTotals:
    """Adds up activities."""

    def __init__(self) -> None:
        self._state = CaptureState(max_ended=MAX_ENDED)
        self._agent = AgentReadings()
        self._start_unix_ns = 0
        self._previous: dict[tuple[ProcessKey, str], tuple[int, int]] = {}

    @property
    def counters(self) -> Mapping[str, int]:
        """The kernel side's own counters, by name."""
        return self._agent.counters

    @property
    def forgotten(self) -> int:
        """The number of ended processes that were evicted."""
        return self._state.forgotten

    def observe(self, activity: Activity) -> bool:
        """Add one activity; True if it changes the totals: once for a reading."""
        before_unix_ns = self._state.end_unix_ns
        self._state.observe(activity)
        self._agent.observe(activity)
        if isinstance(activity, CaptureActivity):
            self._start_unix_ns = activity.unix_ns
        return self._state.end_unix_ns != before_unix_ns

    def rows(self, most: int) -> list[ApiTotals]:
        """Return rows by total time inside calls, the largest first."""
        return api_rows(self._state.figures().values(), self._state.middles_ns)[:most]

    def losses(self) -> dict[str, int]:
        """Return losses that occurred, by reason."""
        return self._agent.losses(self._agent.status.get("rejected", {}))

    def why_no_calls(self) -> str:
        """Return why no call was seen; empty: not known."""
        return why_no_calls(self._agent)

    def notes(self) -> Iterator[str]:
        """Yield notes on the losses."""
        return describe_losses(self._agent)

    def rates(self, rows: Sequence[ApiTotals]) -> Iterator[float]:
        """Yield calls per second of each row, since the last call of this method."""
        now: dict[tuple[ProcessKey, str], tuple[int, int]] = {}
        now_unix_ns = self._now_unix_ns()
        for row in rows:
            identity = (key_of(row.process), row.api)
            since_ns, calls = self._previous.get(identity, (self._start_unix_ns, 0))
            now[identity] = (now_unix_ns, row.calls)
            elapsed_ns = now_unix_ns - since_ns
            yield (row.calls - calls) * 1e9 / elapsed_ns if elapsed_ns > 0 else math.nan
        self._previous = now

    def mean_rates(self, rows: Sequence[ApiTotals]) -> Iterator[float]:
        """Yield calls per second of each row, over the whole capture."""
        elapsed_s = (self._now_unix_ns() - self._start_unix_ns) / 1e9
        for row in rows:
            yield row.calls / elapsed_s if elapsed_s > 0 else math.nan

    def _now_unix_ns(self) -> int:
        return self._state.end_unix_ns or self._start_unix_ns
