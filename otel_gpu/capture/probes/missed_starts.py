"""
Processes that were not watched from their first call on.

Each counts as one loss, ``not_watched_from_start``, because calls before the probes are not counted.
RECORD_STATUS names the first of them, with the reason.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.proc_files import process_name
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.bodies import MissedStartFacts

MAX_NAMED = 32
_MAX_REMEMBERED = 4096
_MAX_NAME_BYTES = 256


class MissedStart(StrEnum):
    """Why calls of a process were missed, as in reports."""

    FOUND_LATE = "it was found when it could have made calls already"
    LIBRARY_LATE = "its library was probed when it could have been called already"
    LIBRARY_GONE = "it had ended before its library was found"
    NOT_READ = "reading its library would have taken more than its share of our time"
    UNREADABLE = "its library could not be opened"
    LET_GO = "another process let it go on before its library was probed"
    LATE = "the kernel waited for another program before it placed probes in its library"
    REFUSED = "its library took no probe"
    TOO_MANY = "it, or its user, maps more libraries than its share"


class _Doubt(NamedTuple):
    # A library that was found without the dynamic linker's record, and probed.
    program_ktime_ns: int
    file: str


class MissedStarts:
    """
    Counts and names processes whose calls were missed.

    Args:
        lose: Counts a loss, given its counter.
    """

    def __init__(self, lose: Callable[[int], None]) -> None:
        self._lose = lose
        self._known: Recent[ProcessKey, None] = Recent(_MAX_REMEMBERED, cache="known_processes")
        self._named: list[MissedStartFacts] = []
        self._doubts: Recent[int, _Doubt] = Recent(_MAX_REMEMBERED, cache="known_processes")
        self._old_doubts: Recent[int, _Doubt] = Recent(_MAX_REMEMBERED, cache="known_processes")

    def add(
        self,
        pid: int,
        program_ktime_ns: int,
        reason: MissedStart,
        *,
        name: str = "",
        file: str = "",
    ) -> None:
        """
        Count a program once.

        Args:
            pid: The process.
            program_ktime_ns: Start of the program; 0: unknown.
            reason: Why calls were missed.
            name: The process's name; if empty, it is read from /proc.
            file: The library, if the reason is about one.
        """
        self._forget_doubt(pid)
        if (pid, program_ktime_ns) in self._known:
            return
        self._known[pid, program_ktime_ns] = None
        self._lose(wire.COUNTER_LOST_NOT_WATCHED_FROM_START)
        if len(self._named) < MAX_NAMED:
            name = name or process_name(pid)
            self._named.append(
                {
                    "pid": pid,
                    "name": name.rstrip("\n"),
                    "reason": str(reason),
                    "file": file[-_MAX_NAME_BYTES:],
                }
            )

    def doubt(self, pid: int, program_ktime_ns: int, file: str) -> None:
        """
        Note that a library may have been called before it was probed.

        The dynamic linker's record can still show that the process was stopped until then.
        """
        self._doubts[pid] = _Doubt(program_ktime_ns, file)

    def stood_still(self, pid: int) -> None:
        """Clear the doubt: the process was stopped until all of its libraries were probed."""
        self._forget_doubt(pid)

    def settle(self, pid: int) -> None:
        """Count a process that ended with a doubt."""
        doubt = self._doubts.pop(pid, None) or self._old_doubts.pop(pid, None)
        if doubt:
            self.add(pid, doubt.program_ktime_ns, MissedStart.LIBRARY_LATE, file=doubt.file)

    def settle_old(self) -> None:
        """Count processes whose doubt was not cleared between the previous two calls."""
        for pid in list(self._old_doubts):
            self.settle(pid)
        self._doubts, self._old_doubts = self._old_doubts, self._doubts

    def settle_all(self) -> None:
        """Count all processes in doubt, at the end of the capture."""
        for pid in [*self._doubts, *self._old_doubts]:
            self.settle(pid)

    @property
    def named(self) -> list[MissedStartFacts]:
        """The first processes, as in RECORD_STATUS."""
        return list(self._named)

    def _forget_doubt(self, pid: int) -> None:
        self._doubts.pop(pid, None)
        self._old_doubts.pop(pid, None)
