"""
Readings of the kernel's series, thread times and counters as rows.

A reading has a row with its time. Further rows have what each series, thread time or counter added
since the previous reading, if that is not 0.
"""

from collections import Counter
from collections.abc import Callable
from operator import sub
from typing import TypeVar

from otel_gpu.enrich.activities import AggregatesActivity, CountersActivity, Series, TimesActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.recorder.batch import RowBatch
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.processes import StoredProcess
from otel_gpu.recorder.rows.totals import added_row, total_row
from otel_gpu.recorder.storable_text import clean
from otel_gpu.state.time_accounting import compare

Reading = AggregatesActivity | CountersActivity | TimesActivity
_Part = TypeVar("_Part", Series, ThreadTime)

MAX_COUNTERS = 4_096
"""Counters to remember; the kernel side has some dozens."""

_NOTHING = (0, 0, 0)


class Readings:
    """Turns readings into rows; ``counters`` are the values written in this chunk."""

    def __init__(self, names: StoredNames, lost: Counter[str]) -> None:
        self._names = names
        self._lost = lost
        self.counters: dict[str, int] = {}

    def add(self, batch: RowBatch, seq: int, activity: Reading) -> None:
        """Add the rows of a reading, except that with its time."""
        match activity:
            case AggregatesActivity():
                self._add_aggregates(batch, seq, activity)
            case CountersActivity():
                self._add_counters(batch, seq, activity)
            case TimesActivity():
                self._add_times(batch, seq, activity)

    def _add_counters(self, batch: RowBatch, seq: int, activity: CountersActivity) -> None:
        for name, value in activity.values.items():
            if self.counters.get(name) != value:
                if name in self.counters or len(self.counters) < MAX_COUNTERS:
                    self.counters[name] = value
                batch.add_part("counters", (seq, clean(name), value))

    def _add_aggregates(self, batch: RowBatch, seq: int, activity: AggregatesActivity) -> None:
        process: StoredProcess | None = None
        for series in activity.series:
            # Series of one process are adjacent.
            if process is None or process.named is not series.process:
                process = self._names.follow(series.process)
            known = process.series.get(series.key)
            before = None if known is None else known.aggregate
            if before == series.aggregate:
                continue
            if self._is_kept(process, self._names.processes.put, series):
                number = self._names.series(process, series)
                added = added_row(before, series.aggregate)
                batch.add_part("aggregates", (seq, number, *added), len(added[-1]))

    def _add_times(self, batch: RowBatch, seq: int, activity: TimesActivity) -> None:
        read: dict[Program, list[ThreadTime]] = {}
        for time in activity.times:
            read.setdefault(time.process, []).append(time)
        for program, times in read.items():
            process = self._names.follow(program)
            compared = compare(process.read, times)
            changed = {time.kind: time for time in compared.changed}
            # Time moves from one reason to another when a stack becomes known.
            for kind in {time.kind for time in compared.gone} - changed.keys():
                if kind in process.times:
                    none = process.times[kind]._replace(time_ns=0, count=0, ended_ns=0)
                    changed[kind] = none
            for kind, time in changed.items():
                known = process.times.get(kind)
                before, now = _NOTHING if known is None else _figures(known), _figures(time)
                if now == before:
                    continue
                if self._is_kept(process, self._names.processes.put_time, time):
                    process.times_chunk = self._names.chunk
                    key = (*kind[:3], self._names.wait(time.wait))
                    row = (seq, process.number, *key, *map(sub, now, before))
                    batch.add_part("thread_times", row)
                else:
                    # So that the next reading compares it as new again.
                    compared.now.pop(id(time), None)
            process.read = compared.now

    def end_chunk(self, chunk: int) -> None:
        """Write totals that changed in the chunk; the next chunk writes all counters again."""
        self.counters.clear()
        keep = self._names.keep
        for process in self._names.processes.values():
            for key, referred in process.numbers.items():
                if referred.chunk == chunk:
                    total = total_row(process.series[key].aggregate)
                    keep("aggregate_totals", referred.number, chunk, *total)
            # All times of a process together, where a reader finds them.
            if process.times_chunk == chunk:
                for kind, time in process.times.items():
                    if (figures := _figures(time)) != _NOTHING:
                        time_key = (*kind[:3], self._names.wait(time.wait))
                        keep("thread_time_totals", process.number, chunk, *time_key, *figures)

    def _is_kept(
        self, process: StoredProcess, put: Callable[[StoredProcess, _Part], bool], part: _Part
    ) -> bool:
        if process.is_followed and put(process, part):
            return True
        self._lost[RowLoss.TOO_MANY_SERIES if process.is_followed else RowLoss.NOT_FOLLOWED] += 1
        return False


def _figures(time: ThreadTime) -> tuple[int, int, int]:
    return time.time_ns, time.count, time.ended_ns
