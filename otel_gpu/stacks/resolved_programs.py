"""
The programs whose stacks are resolved: their mappings and files.

A record can come after its process ended or runs another program. So a program is remembered for a
while after its end.
"""

import itertools
import math
import time
from collections import abc
from collections.abc import Callable, Sequence
from typing import Final

from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Fifo, Recent
from otel_gpu.procfs.mapped_files import MappedFile
from otel_gpu.stacks.mappings import MAPPING_BYTES, ElfFiles, Mapping, Mappings
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.probe_symbols import layer_of_library

# Records wait in the ring for at most half a second, longer only when many are lost; an exit wakes the
# agent.
_KEPT_AFTER_END_S: Final = 1.0
# Each one holds a file open.
_MAX_PROGRAMS: Final = 512
# Bound of unread children, and of ended programs; the oldest are evicted.
MAX_REMEMBERED: Final = 4096
# At most 2 % of the time is spent on reading mappings again. At first a process loads many libraries,
# so some of that time is granted in advance.
_SHARE: Final = 0.02
_ALLOWANCE_S: Final = 0.05
# Known mappings expire after this time: another library can replace one at its address.
_MAX_AGE_S: Final = 5.0
# Not all mappings are reported, so each process is read at intervals that double.
_FIRST_DELAY_S: Final = 0.1
_LAST_DELAY_S: Final = 30.0
# A process without mappings.
_NOBODY: Final = 0
_generations = itertools.count(1)


class MappedProgram:
    """
    One program of one process, running or ended: its executable mappings and files.

    ``generation`` is unique among programs, and changes when the program loads a library.
    """

    def __init__(self, mappings: Mappings) -> None:
        self.mappings = mappings
        self.generation = next(_generations)
        self.files: Sequence[MappedFile] = ()
        self._libraries: set[tuple[str, int]] = set()
        self._allowance_s = _ALLOWANCE_S
        self._asked_s = time.monotonic()
        self.ask_from(self._asked_s + _FIRST_DELAY_S)

    def learn(self, files: Sequence[MappedFile]) -> bool:
        """Set the mapped files; return whether they changed."""
        if files == self.files:
            return False
        self.files = files
        self._libraries = {
            (one.name, layer_of_library(one.name)) for one in files if one.is_probed_library
        }
        self.generation = next(_generations)
        self.ask_from(time.monotonic() + _FIRST_DELAY_S)
        return True

    def find(self, address: int) -> Mapping | None:
        """Return the executable mapping of an address, or None."""
        mapping = self.mappings.find(address)
        now_s = time.monotonic()
        # The library can be this new, and its process can end soon.
        is_old = mapping is None or now_s - self._asked_s >= _MAX_AGE_S
        return self.mappings.find(address) if is_old and self._ask(now_s) else mapping

    def ask_from(self, due_s: float) -> None:
        """Read the mappings from ``due_s`` on, repeatedly."""
        self._due_s, self._delay_s = due_s, 2 * _FIRST_DELAY_S

    @property
    def due_s(self) -> float:
        """When its mappings are read again, by the monotonic clock."""
        return self._due_s if self._delay_s <= _LAST_DELAY_S else math.inf

    def ask_if_due(self, now_s: float) -> None:
        """Read the mappings if that is due, as the process can end."""
        if self._delay_s <= _LAST_DELAY_S and now_s >= self._due_s and self._ask(now_s):
            self._due_s = now_s + self._delay_s
            self._delay_s *= 2

    def _ask(self, now_s: float) -> bool:
        gained_s = _SHARE * (now_s - self._asked_s)
        self._allowance_s = min(self._allowance_s + gained_s, _ALLOWANCE_S)
        self._asked_s = now_s
        if self._allowance_s <= 0:
            return False
        self.mappings.refresh()
        self._allowance_s -= time.monotonic() - now_s
        return True

    def library(self, layer: int) -> str:
        """Return the name of its only library of a layer; empty: none, or several."""
        names = [name for name, of in self._libraries if of == layer]
        return names[0] if len(names) == 1 else ""


class MappedPrograms:
    """
    The programs of one capture, by (pid, program_ktime_ns).

    An unknown program is read when it is first requested; of too many, the least recently requested one
    is evicted. ``current`` returns the ``program_ktime_ns`` of a process's present program; 0: unknown.
    ``work`` is the budget for reading mappings.
    """

    def __init__(self, current: Callable[[int], int], work: FileWork | None = None) -> None:
        self._current = current
        self._files = ElfFiles(work=work)
        self._programs: Recent[ProcessKey, MappedProgram] = Recent(_MAX_PROGRAMS, evict=self._close)
        self._parents: Recent[ProcessKey, MappedProgram] = Recent(MAX_REMEMBERED)
        self._ended_s: Fifo[ProcessKey, float] = Fifo(
            MAX_REMEMBERED, evict=lambda program, _: self._drop(program)
        )
        CACHES.register(
            "mappings",
            self,
            "_programs",
            release=lambda self, count: self._programs.release(count),
            size_bytes="_size_bytes",
        )

    @property
    def _size_bytes(self) -> int:
        known = (*self._programs.values(), *self._parents.values())
        # An unread child shares those of its parent.
        distinct = {id(one): one for one in known}.values()
        return sum(MAPPING_BYTES * one.mappings.count for one in distinct)

    @property
    def mappings_left_out(self) -> int:
        """Executable mappings of processes that have more than are kept; their code has no names."""
        return self._files.mappings_left_out

    def get(self, program: ProcessKey) -> MappedProgram:
        """Return a program, which is read if it is unknown."""
        return self._programs.use(program) or self._meet(program)

    def learn(self, program: ProcessKey, files: Sequence[MappedFile]) -> None:
        """Set the files that a process maps, and open them, as it can end at any time."""
        is_new = program not in self._programs
        known = self.get(program)
        if known.learn(files) and not is_new:
            known.mappings.refresh()

    @property
    def due_s(self) -> float:
        """When the mappings of the next program are read, by the monotonic clock."""
        living = (one for program, one in self._programs.items() if program not in self._ended_s)
        return min((one.due_s for one in living), default=math.inf)

    def ask_due(self) -> None:
        """Read the mappings of programs that are due."""
        now_s = time.monotonic()
        for program, known in self._programs.items():
            if program not in self._ended_s:
                known.ask_if_due(now_s)

    def hurry(self, program: ProcessKey) -> None:
        """Read the mappings of a program soon, as it has just loaded a library."""
        if program in self._programs:
            self._programs[program].ask_from(time.monotonic())

    def inherit(self, parent: ProcessKey, child: ProcessKey) -> None:
        """
        Record a fork.

        Most children execute another program at once, so a child is read with its first stack. If it
        has ended by then, it gets the mappings of its parent.
        """
        known = self._programs.get(parent) or self._parents.get(parent)
        if known is not None:
            self._parents[child] = known

    def end(self, program: ProcessKey) -> None:
        """Record that a process ended or runs another program."""
        self._ended_s.setdefault(program, time.monotonic())

    def end_others(self, current: abc.Mapping[int, int]) -> None:
        """End all programs but the current ones: ``program_ktime_ns`` of each watched pid."""
        for program in (*self._programs, *self._parents):
            if current.get(program[0]) != program[1]:
                self.end(program)

    def drop_ended(self, now_s: float | None = None) -> list[ProcessKey]:
        """Evict programs that ended a while ago, and return them."""
        now_s = time.monotonic() if now_s is None else now_s
        due = itertools.takewhile(
            lambda program: now_s - self._ended_s[program] >= _KEPT_AFTER_END_S, self._ended_s
        )
        dropped = list(due)
        for program in dropped:
            self._drop(program)
        return dropped

    def close(self) -> None:
        """Close all files."""
        self._programs.release(len(self._programs))
        self._files.close()

    def _meet(self, program: ProcessKey) -> MappedProgram:
        pid, program_ktime_ns = program
        parent = self._parents.pop(program, None)
        mappings = self._open(pid, parent)
        # Checked after the opening: the opened files are of that program, or of an earlier one.
        if program in self._ended_s or self._current(pid) != program_ktime_ns:
            mappings.close()
            mappings = self._open(_NOBODY, parent)
        known = self._programs[program] = MappedProgram(mappings)
        if parent is not None:
            known.learn(parent.files)
        return known

    def _open(self, pid: int, parent: MappedProgram | None) -> Mappings:
        return parent.mappings.inherit(pid) if parent else Mappings(pid, self._files)

    def _drop(self, program: ProcessKey) -> None:
        known = self._programs.pop(program, None)
        self._close(program, known)

    def _close(self, program: ProcessKey, known: MappedProgram | None) -> None:
        self._parents.pop(program, None)
        self._ended_s.pop(program, None)
        if known is not None:
            known.mappings.close()
