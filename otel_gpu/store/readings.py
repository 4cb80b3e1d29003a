"""
Readings of what the kernel counts: series, the time account, counters.

A reading has a row of its own, so that it is known when it was made. Its parts say what it
added, and come without one where that is nothing.
"""

from collections import Counter

from otel_gpu.enrich.activities import AggregatesActivity, CountersActivity, TimesActivity
from otel_gpu.store.batch import Batch
from otel_gpu.store.losses import TOO_MANY_SERIES
from otel_gpu.store.names import Names
from otel_gpu.store.text import clean
from otel_gpu.store.totals import (
    ThreadTotal,
    Totals,
    added_row,
    series_totals,
    total_row,
)

_TimeKey = tuple[int, int, int, str]


class Readings:
    """
    Turns the readings of one capture into rows.

    Args:
        names: Gives numbers.
        lost: What was lost so far, by reason.
    """

    def __init__(self, names: Names, lost: Counter[str] | None = None) -> None:
        self._names = names
        self._series = series_totals()
        self._owners: dict[int, int] = {}
        self._times: Totals[_TimeKey, ThreadTotal] = Totals(ThreadTotal(0, 0))
        self._time_keys: dict[int, dict[_TimeKey, None]] = {}
        self._counters: dict[str, int] = {}
        self.lost: Counter[str] = Counter() if lost is None else lost

    def add_counters(self, batch: Batch, seq: int, activity: CountersActivity) -> None:
        """Add the counters that changed."""
        batch.add("readings", (seq, "counters", activity.unix_ns), activity.unix_ns)
        for name, value in activity.values.items():
            if self._counters.get(name) != value:
                self._counters[name] = value
                batch.add_part("counters", (seq, clean(name), value))

    def add_aggregates(self, batch: Batch, seq: int, activity: AggregatesActivity) -> None:
        """Add what the series counted since they were last read."""
        batch.add("readings", (seq, "aggregates", activity.unix_ns), activity.unix_ns)
        for series in activity.series:
            number, process = self._names.series(series)
            before = self._series.exchange(number, series.aggregate)
            if before is None:
                self.lost[TOO_MANY_SERIES] += 1
                continue
            self._owners[number] = process
            added = added_row(before, series.aggregate)
            if added is not None:
                batch.add_part("aggregates", (seq, number, *added), len(added[-1]))

    def add_times(self, batch: Batch, seq: int, activity: TimesActivity) -> None:
        """Add what the time account gained since it was last read."""
        batch.add("readings", (seq, "times", activity.unix_ns), activity.unix_ns)
        for process, totals in self._sums(activity).items():
            known_keys = self._time_keys.setdefault(process, {})
            for key in known_keys:
                # Time moves from one reason to another when a stack becomes known.
                totals.setdefault(key, ThreadTotal(0, 0))
            for key, total in totals.items():
                before = self._times.exchange(key, total)
                if before is None:
                    self.lost[TOO_MANY_SERIES] += 1
                    continue
                known_keys[key] = None
                if before != total:
                    added = (total.time_ns - before.time_ns, total.count - before.count)
                    batch.add_part("thread_times", (seq, *key, *added))

    def end_chunk(self, chunk: int) -> None:
        """Keep what everything stands at that the chunk added to."""
        for series, aggregate in self._series.take_changed():
            row = (series, chunk, *total_row(aggregate))
            self._names.keep("aggregate_totals", row[:2], row)
        # All of a process, so that a reader finds them in one place.
        for process in dict.fromkeys(key[0] for key, _ in self._times.take_changed()):
            for key in self._time_keys[process]:
                row = (process, chunk, *key[1:], *self._times.known(key))
                self._names.keep("thread_time_totals", row[:5], row)

    def begin_chunk(self) -> None:
        """Let the next chunk say all counters, and forget processes that are over."""
        self._counters.clear()
        is_over = self._names.is_over
        self._series.forget(lambda series: is_over(self._owners.get(series, -1)))
        self._times.forget(lambda key: is_over(key[0]))
        self._owners = {n: owner for n, owner in self._owners.items() if not is_over(owner)}
        self._time_keys = {n: keys for n, keys in self._time_keys.items() if not is_over(n)}

    def _sums(self, activity: TimesActivity) -> dict[int, dict[_TimeKey, ThreadTotal]]:
        sums: dict[int, dict[_TimeKey, ThreadTotal]] = {}
        for time in activity.times:
            process = self._names.process(time.process)
            key = (process, time.state, time.context, clean(time.reason))
            totals = sums.setdefault(process, {})
            known = totals.get(key, ThreadTotal(0, 0))
            totals[key] = ThreadTotal(known.time_ns + time.time_ns, known.count + time.count)
        return sums
