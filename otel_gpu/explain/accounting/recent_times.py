"""
What the threads of a process spent a window on, from readings of its time accounting.

A wait is sent when it ends. Only accounting knows the wait that a thread is in now, and time spent
in waits too short to be sent: what they were blocked on, and which thread ended those that ended.
"""

# Which thread it was
# -------------------
#
# Accounting is by process. It separates launching threads from those that make no calls. Where
# several threads of one sort spend more time than the window has, it is not known which of them did
# what, and nothing is reported of a single one. A rank is a process, so its threads count together.

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from otel_gpu import wire
from otel_gpu.enrich.activities import TimesActivity
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.thread_times import ThreadTime, TimeKind
from otel_gpu.limits.caches import CACHES
from otel_gpu.state.differences import moved_by_name
from otel_gpu.state.time_accounting import Account, Reading, compare

_MAX_READINGS: Final = 32
# One entry of a reading, with what only it refers to.
_ENTRY_BYTES: Final = 250
# In all readings of all processes.
_MAX_ENTRIES: Final = 65_536
# One thread spends no more than the window, but readings and windows do not end at the same time.
_ONE_THREAD: Final = 1.25
# The least part of the touched readings that a window has to cover.
_LEAST_PART: Final = 0.5
# How many readings may be missing after the last one.
_MOST_AHEAD: Final = 2.0

_Figures = tuple[int, int, int]
"""``time_ns``, ``count`` and ``ended_ns``."""


@dataclass(slots=True)
class _Reading:
    start_unix_ns: int
    end_unix_ns: int
    spent: dict[TimeKind, _Figures]

    def touches(self, start_unix_ns: int, end_unix_ns: int) -> bool:
        return self.start_unix_ns < end_unix_ns and start_unix_ns < self.end_unix_ns

    def inside(self, start_unix_ns: int, end_unix_ns: int) -> Iterator[tuple[TimeKind, float]]:
        # Each kind with time in the window, and the part of its time that is inside.
        going_on = {kind for kind, figures in self.spent.items() if _goes_on(kind, figures)}
        # A wait of one thread that has not ended is at the end of the reading, and the rest is
        # before it.
        going_on_ns = sum(self.spent[kind][0] for kind in going_on)
        is_one = going_on_ns <= self.end_unix_ns - self.start_unix_ns
        middle_unix_ns = self.end_unix_ns - going_on_ns if is_one else self.end_unix_ns
        for kind in self.spent:
            start, end = self.start_unix_ns, middle_unix_ns
            if is_one and kind in going_on:
                start, end = middle_unix_ns, self.end_unix_ns
            inside_ns = min(end_unix_ns, end) - max(start_unix_ns, start)
            if inside_ns > 0:
                yield kind, inside_ns / (end - start)


@dataclass(slots=True)
class _Process:
    process: Program
    read_unix_ns: int
    readings: list[_Reading] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(one.spent) for one in self.readings)

    def merge_older(self) -> None:
        # In pairs: what is long ago is known less finely.
        half = _MAX_READINGS // 2
        older = self.readings[:half]
        merged = []
        for first, second in zip(older[::2], older[1::2], strict=True):
            spent = dict(first.spent)
            _add(spent, second.spent, 1.0)
            merged.append(_Reading(first.start_unix_ns, second.end_unix_ns, spent))
        self.readings[:half] = merged


class RecentTimes:
    """The latest readings of the time accounting of processes, as differences; bounded."""

    def __init__(self) -> None:
        # By pid, the last read at the end.
        self._processes: OrderedDict[int, _Process] = OrderedDict()
        self._size = 0
        self._begin_unix_ns = 0
        CACHES.register(
            "recent_times",
            self,
            "_processes",
            release=RecentTimes._release,
            size_bytes="_size_bytes",
        )
        self._latest: Reading = {}
        self._latest_programs: set[ProcessKey] = set()

    def begin(self, unix_ns: int) -> None:
        """Begin a capture: nothing was counted before it."""
        self._begin_unix_ns = unix_ns
        self._processes.clear()
        self._size = 0

    def observe(
        self, activity: TimesActivity, account_of: Callable[[ProcessKey], Account | None]
    ) -> None:
        """
        Add a reading.

        Args:
            activity: The entries that changed.
            account_of: Returns what a process had spent before.
        """
        spent: dict[ProcessKey, dict[TimeKind, _Figures]] = {}
        befores: dict[ProcessKey, Mapping[TimeKind, ThreadTime]] = {}
        processes: dict[ProcessKey, Program] = {}
        changed, moved = self._compare(activity.times)
        for process, times in groupby(activity.times, attrgetter("process")):
            program = key_of(process)
            if (account := account_of(program)) is not None:
                before_all: Mapping[TimeKind, ThreadTime] = account.times
                if program in moved:
                    before_all = moved_by_name(before_all, {one.kind: one for one in times})
                befores[program] = before_all
        for time in changed:
            program = key_of(time.process)
            before = befores.get(program, {}).get(time.kind)
            known = (before.time_ns, before.count, before.ended_ns) if before else (0, 0, 0)
            figures = time.time_ns - known[0], time.count - known[1], time.ended_ns - known[2]
            if any(one > 0 for one in figures):
                spent.setdefault(program, {})[time.kind] = figures
                processes[program] = time.process
        for program, entries in spent.items():
            self._add(processes[program], activity.unix_ns, entries)

    def _compare(
        self, times: Sequence[ThreadTime]
    ) -> tuple[Sequence[ThreadTime], AbstractSet[ProcessKey]]:
        # The times that changed, and the programs that can lack kinds that they had in the reading
        # before.
        self._latest, changed, gone = compare(self._latest, times)
        kinds = {(key_of(time.process), time.kind) for time in changed}
        moved = {
            program for time in gone if ((program := key_of(time.process)), time.kind) not in kinds
        }
        programs = {key_of(process) for process in {time.process for time in times}}
        before, self._latest_programs = self._latest_programs, programs
        return changed, moved | (programs - before)

    def of(
        self, pid: int, start_unix_ns: int, end_unix_ns: int, *, is_launching: bool, is_whole: bool
    ) -> list[ThreadTime]:
        """
        Return what was spent in a window; empty: not known.

        Args:
            pid: The process.
            start_unix_ns: Start of the window.
            end_unix_ns: End of it; time after the last reading continues as in that reading.
            is_launching: Times of launching threads, and not of those that make no calls.
            is_whole: Whether several threads count together, and not only a single one.
        """
        known = self._processes.get(pid)
        if known is None:
            return []
        window_ns = end_unix_ns - start_unix_ns
        sums: dict[TimeKind, _Figures] = {}
        touched = [one for one in known.readings if one.touches(start_unix_ns, end_unix_ns)]
        read_ns = sum(one.end_unix_ns - one.start_unix_ns for one in touched)
        for reading in touched:
            for kind, part in reading.inside(start_unix_ns, end_unix_ns):
                figures = reading.spent[kind]
                # When the time of a reading passed is not known, so of a short window it states
                # nothing.
                if window_ns >= _LEAST_PART * read_ns or _goes_on(kind, figures):
                    _add(sums, {kind: figures}, part)
        if known.readings and end_unix_ns > known.read_unix_ns >= start_unix_ns:
            last = known.readings[-1]
            ahead = (end_unix_ns - known.read_unix_ns) / (last.end_unix_ns - last.start_unix_ns)
            going_on = {kind: one for kind, one in last.spent.items() if _goes_on(kind, one)}
            _add(sums, going_on, min(ahead, _MOST_AHEAD))
        found = [
            ThreadTime(known.process, *kind[:2], kind[2], *figures, kind[3])
            for kind, figures in sums.items()
            if (kind[1] != wire.CONTEXT_OTHER) is is_launching
        ]
        spent_ns = sum(max(0, time.time_ns) for time in found)
        if spent_ns > _ONE_THREAD * window_ns and not is_whole:
            return []
        return found

    def around(self, pid: int, start_unix_ns: int, end_unix_ns: int) -> Iterator[ThreadTime]:
        """
        Yield all that was spent between the readings around a window; can be more than the window.
        """
        known = self._processes.get(pid)
        for reading in known.readings if known else ():
            if known and reading.touches(start_unix_ns, end_unix_ns):
                for kind, figures in reading.spent.items():
                    yield ThreadTime(known.process, *kind[:3], *figures, kind[3])

    def forget(self, program: ProcessKey) -> None:
        """Forget a process that ended."""
        known = self._processes.get(program[0])
        if known is not None and key_of(known.process) == program:
            self._drop(program[0])

    def _add(self, process: Program, unix_ns: int, entries: Mapping[TimeKind, _Figures]) -> None:
        known = self._processes.get(process.pid)
        if known is not None and key_of(known.process) != key_of(process):
            self._drop(process.pid)
            known = None
        if known is None:
            begin_unix_ns = max(process.start_unix_ns, self._begin_unix_ns)
            known = self._processes[process.pid] = _Process(process, begin_unix_ns)
        if unix_ns > known.read_unix_ns:
            self._size += len(entries)
            known.readings.append(_Reading(known.read_unix_ns, unix_ns, dict(entries)))
            known.read_unix_ns, known.process = unix_ns, process
            if len(known.readings) > _MAX_READINGS:
                self._size -= known.size
                known.merge_older()
                self._size += known.size
        self._processes.move_to_end(process.pid)
        while self._size > _MAX_ENTRIES and len(self._processes) > 1:
            self._drop(next(iter(self._processes)))

    @property
    def _size_bytes(self) -> int:
        return _ENTRY_BYTES * self._size

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._processes) - 1)):
            self._drop(next(iter(self._processes)))

    def _drop(self, pid: int) -> None:
        self._size -= self._processes.pop(pid).size


def _goes_on(kind: TimeKind, figures: _Figures) -> bool:
    # A wait that has not ended: the end of a long one would have been sent.
    return kind[0] == wire.STATE_BLOCKED and not any(figures[1:])


def _add(sums: dict[TimeKind, _Figures], spent: Mapping[TimeKind, _Figures], part: float) -> None:
    for kind, figures in spent.items():
        before = sums.get(kind, (0, 0, 0))
        after: Iterable[int] = (
            known + round(one * part) for known, one in zip(before, figures, strict=True)
        )
        time_ns, count, ended_ns = after
        sums[kind] = time_ns, count, ended_ns
