"""
RECORD_CULPRIT for unwatched processes that kept watched threads waiting, at most every few minutes.

These can be one busy process or a million short ones. So only processes above a floor of time are
looked up, a few at a time, largest first. Most short ones have ended by then.
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
"""A process is looked up from this time on that it took from watched threads."""
_AT_A_TIME = 10
_AT_THE_END = 100
_MAX_WAITING = 1024
_MAX_KNOWN = 4096
_CHECK_INTERVAL_S = 5.0
# A store forgets old records, so they are repeated.
_REPORT_INTERVAL_S = 300.0


class _Known(NamedTuple):
    program: tuple[int, str] | None
    looked_s: float
    reported_s: float


class UnwatchedBlockers:
    """
    Processes that kept watched threads waiting.

    Args:
        watched: Returns the watched pids, which have records of their own.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, watched: Callable[[], Container[int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watched = watched
        self._clock = clock
        # Time by pid, below the floor.
        self._times_ns: Recent[int, int] = Recent(_MAX_WAITING, cache="known_processes")
        self._due: dict[int, int] = {}
        self._known: Recent[int, _Known] = Recent(_MAX_KNOWN, cache="known_processes")

    def note(self, pid: int, time_ns: int) -> None:
        """Add time that a process took from a watched one; pid 0 is none."""
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
        """Whether processes wait to be looked up."""
        return bool(self._due)

    def describe_some(self, *, is_last: bool = False) -> Iterator[bytes]:
        """Look up the processes with most time, more of them at the end; ended ones are skipped."""
        count = _AT_THE_END if is_last else _AT_A_TIME
        for pid in heapq.nlargest(count, self._due, key=self._due.__getitem__):
            del self._due[pid]
            program, now_s = program_of(pid), self._clock()
            known = self._known.pop(pid, None)
            is_reported = (
                known is not None
                and known.program == program
                and now_s - known.reported_s < _REPORT_INTERVAL_S
            )
            reported_s = known.reported_s if known and is_reported else now_s
            self._known[pid] = _Known(program, now_s, reported_s)
            self._forget_old(now_s)
            facts = None if is_reported or program is None else read_unwatched_process(pid)
            if facts is not None:
                yield json_record(wire.RECORD_CULPRIT, kernel_clock.ktime_ns(), facts, pid=pid)

    def _forget_old(self, now_s: float) -> None:
        # A process that was looked up that long ago is reported again anyway.
        while (
            self._known and now_s - self._known[self._known.oldest].looked_s >= _REPORT_INTERVAL_S
        ):
            self._known.release(1)
