"""
Who kept watched threads waiting and is not watched: RECORD_CULPRIT, every few minutes at most.

Anybody on the host can be that, a million short programs as well as one hog. So only whoever
took enough time is looked up, a few at a time, and those first that took most: most of a crowd are
gone by then.
"""

import heapq
import time
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.process_facts import program_of, read_unwatched_process
from otel_gpu.wire.agent_records import json_record

FLOOR_NS = 2_000_000
"""Time that somebody took, from which on it is asked who that is."""
_AT_A_TIME = 10
_AT_THE_END = 100
_MAX_WAITING = 1024
_MAX_KNOWN = 4096
_CHECK_INTERVAL_S = 5.0
# A store forgets what was told long ago.
_TELL_INTERVAL_S = 300.0


class _Known(NamedTuple):
    program: tuple[int, str] | None
    looked_s: float
    told_s: float


class UnwatchedBlockers:
    """
    Processes that kept watched threads waiting.

    Args:
        watched: Returns the pids of watched processes, which are introduced anyway.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, watched: Callable[[], Container[int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watched = watched
        self._clock = clock
        # The time that they took; of too many, the one that comes up least is forgotten.
        self._times_ns: Recent[int, int] = Recent(_MAX_WAITING)
        self._due: dict[int, int] = {}
        self._known: Recent[int, _Known] = Recent(_MAX_KNOWN)

    def note(self, pid: int, time_ns: int) -> None:
        """Take in that a process took some time from a watched one; 0 is nobody."""
        if not pid or pid in self._watched():
            return
        if pid in self._due:
            self._due[pid] += time_ns
            return
        known = self._known.get(pid)
        if known is not None:
            if self._clock() - known.looked_s < _CHECK_INTERVAL_S:
                return
            self._due[pid] = time_ns
            return
        total_ns = self._times_ns.pop(pid, 0) + time_ns
        if total_ns >= FLOOR_NS and len(self._due) < _MAX_WAITING:
            self._due[pid] = total_ns
            return
        self._times_ns[pid] = total_ns

    @property
    def is_pending(self) -> bool:
        """Whether somebody waits to be looked up."""
        return bool(self._due)

    def describe_some(self, *, is_last: bool = False) -> Iterator[bytes]:
        """Look those up that took most time, more of them at the end; the gone are left out."""
        count = _AT_THE_END if is_last else _AT_A_TIME
        for pid in heapq.nlargest(count, self._due, key=self._due.__getitem__):
            del self._due[pid]
            program, now_s = program_of(pid), self._clock()
            known = self._known.pop(pid, None)
            is_told = (
                known is not None
                and known.program == program
                and now_s - known.told_s < _TELL_INTERVAL_S
            )
            self._known[pid] = _Known(program, now_s, known.told_s if known and is_told else now_s)
            self._forget_old(now_s)
            facts = None if is_told or program is None else read_unwatched_process(pid)
            if facts is not None:
                yield json_record(wire.RECORD_CULPRIT, kernel_clock.ktime_ns(), facts, pid=pid)

    def _forget_old(self, now_s: float) -> None:
        # A process that was looked up that long ago is reported again anyway.
        while self._known and now_s - self._known[self._known.oldest].looked_s >= _TELL_INTERVAL_S:
            self._known.release(1)
