"""
The running totals of a capture: calls per API and process, exact, in bounded memory.

What a summary shows while a capture goes on, and when it ends.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    StatusActivity,
)
from otel_gpu.findings.counts import Counts
from otel_gpu.findings.document import Api, ImageKey, key_of
from otel_gpu.findings.losses import losses_of

MAX_SERIES = 1_024
"""Ended processes are remembered up to this many series, of 2 kB each."""
OBSERVED = frozenset(
    {AggregatesActivity, CaptureActivity, CountersActivity, ExitActivity, StatusActivity}
)
"""The activities that change anything."""


class RunningTotals:
    """
    Watches activities.

    Attributes:
        counters: The kernel side's own, by their enumerator's name.
        forgotten: Processes that ended and are not remembered.
    """

    def __init__(self) -> None:
        self._counts = Counts()
        self._durations: Mapping[str, Any] | None = None
        self._start_unix_ns = self._now_unix_ns = 0
        self._ended: dict[ImageKey, None] = {}
        self._previous: dict[tuple[ImageKey, str], tuple[int, int]] = {}
        self._status: Mapping[str, Any] = {}
        self.counters: Mapping[str, int] = {}
        self.forgotten = 0

    def observe(self, activity: Activity) -> bool:
        """Take one activity; True where it changes what there is to see."""
        match activity:
            case AggregatesActivity():
                self._observe_aggregates(activity)
                return True
            case CountersActivity():
                self.counters = activity.values
            case StatusActivity():
                self._status = activity.info
            case CaptureActivity():
                self._start_unix_ns = self._now_unix_ns = activity.unix_ns
                self._durations = activity.info["layout"]["durations"]
            case ExitActivity():
                self._ended[key_of(activity.process)] = None
            case _:
                pass
        return False

    def rows(self, most: int) -> list[Api]:
        """Rows by total time inside calls, the largest first."""
        return [] if self._durations is None else self._counts.api_rows(self._durations)[:most]

    def losses(self) -> dict[str, int]:
        """What was lost, by reason; only reasons that occurred."""
        return losses_of(self.counters, self._status.get("rejected", {}), self._status)

    def rates(self, rows: Sequence[Api]) -> Iterator[float]:
        """Yield calls per second of each row, since this was asked for the last time."""
        now: dict[tuple[ImageKey, str], tuple[int, int]] = {}
        for row in rows:
            identity = (key_of(row.process), row.api)
            since_ns, calls = self._previous.get(identity, (self._start_unix_ns, 0))
            now[identity] = (self._now_unix_ns, row.calls)
            elapsed_ns = self._now_unix_ns - since_ns
            yield (row.calls - calls) * 1e9 / elapsed_ns if elapsed_ns > 0 else math.nan
        self._previous = now

    def mean_rates(self, rows: Sequence[Api]) -> Iterator[float]:
        """Yield calls per second of each row, over the whole capture."""
        elapsed_s = (self._now_unix_ns - self._start_unix_ns) / 1e9
        for row in rows:
            yield row.calls / elapsed_s if elapsed_s > 0 else math.nan

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        self._counts.observe(activity)
        if max(self._counts.size, len(self._ended)) > MAX_SERIES:
            self._forget_ended()
        self._now_unix_ns = activity.unix_ns

    def _forget_ended(self) -> None:
        # Most processes that end have made no call.
        callers = self._counts.callers()
        ended = [image for image in self._ended if image in callers]
        # Half at once: this walks over all series.
        forgotten = ended[: len(ended) // 2 + 1] if self._counts.size > MAX_SERIES else []
        self._counts.forget(frozenset(forgotten))
        self._ended = dict.fromkeys(ended[len(forgotten) :])
        self.forgotten += len(forgotten)
