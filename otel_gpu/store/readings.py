"""
Readings of what the kernel counts: series, the time account, counters.

A reading has a row of its own, so that it is known when it was made. Its parts say what it
added, and come without one where that is nothing.
"""

from otel_gpu.enrich.activities import AggregatesActivity, CountersActivity, TimesActivity
from otel_gpu.store.batch import Batch
from otel_gpu.store.names import Names
from otel_gpu.store.processes import Process, TimeKey
from otel_gpu.store.text import clean
from otel_gpu.store.totals import NO_TIME, ThreadTotal, added_row, total_of, total_row

MAX_COUNTERS = 4_096
"""Counters that are followed; the kernel side has some dozens."""


class Readings:
    """
    Turns the readings of one capture into rows.

    Args:
        names: Gives numbers, and keeps what everything stands at.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._counters: dict[str, int] = {}

    def add_counters(self, batch: Batch, seq: int, activity: CountersActivity) -> None:
        """Add the counters that changed."""
        batch.add("readings", (seq, "counters", activity.unix_ns), activity.unix_ns)
        for name, value in activity.values.items():
            if self._counters.get(name) != value:
                if name in self._counters or len(self._counters) < MAX_COUNTERS:
                    self._counters[name] = value
                batch.add_part("counters", (seq, clean(name), value))

    def add_aggregates(self, batch: Batch, seq: int, activity: AggregatesActivity) -> None:
        """Add what the series counted since they were last read."""
        batch.add("readings", (seq, "aggregates", activity.unix_ns), activity.unix_ns)
        for series in activity.series:
            known = self._names.series(series)
            if known is None:
                continue
            now = total_of(series.aggregate)
            added = added_row(known.total, now)
            if added is not None:
                known.total = now
                known.is_changed = True
                batch.add_part("aggregates", (seq, known.number, *added), len(added[-1]))

    def add_times(self, batch: Batch, seq: int, activity: TimesActivity) -> None:
        """Add what the time account gained since it was last read."""
        batch.add("readings", (seq, "times", activity.unix_ns), activity.unix_ns)
        processes = self._names.processes
        for process, totals in self._sums(activity).items():
            for key in process.times:
                # Time moves from one reason to another when a stack becomes known.
                totals.setdefault(key, NO_TIME)
            for key, total in totals.items():
                before = processes.exchange_time(process, key, total)
                if before is not None and before != total:
                    added = (total.time_ns - before.time_ns, total.count - before.count)
                    batch.add_part("thread_times", (seq, process.number, *key, *added))

    def end_chunk(self, chunk: int) -> None:
        """Keep what everything stands at that the chunk added to."""
        for process in self._names.processes:
            for series in process.series.values():
                if series.is_changed:
                    series.is_changed = False
                    row = (series.number, chunk, *total_row(series.total))
                    self._names.keep("aggregate_totals", row)
            # All of a process, so that a reader finds them in one place.
            if process.has_new_times:
                process.has_new_times = False
                for key, total in process.times.items():
                    self._names.keep("thread_time_totals", (process.number, chunk, *key, *total))

    def begin_chunk(self) -> None:
        """Let the next chunk say all counters."""
        self._counters.clear()

    def _sums(self, activity: TimesActivity) -> dict[Process, dict[TimeKey, ThreadTotal]]:
        sums: dict[Process, dict[TimeKey, ThreadTotal]] = {}
        for time in activity.times:
            process = self._names.follow(time.process)
            key = (time.state, time.context, clean(time.reason))
            totals = sums.setdefault(process, {})
            known = totals.get(key, NO_TIME)
            totals[key] = ThreadTotal(known.time_ns + time.time_ns, known.count + time.count)
        return sums
