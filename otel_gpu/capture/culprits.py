"""
Who kept watched threads waiting and is not watched: RECORD_CULPRIT, once for each.

Anybody on the host can be that, a million short programs as well as one hog. So only whoever
took enough time is looked up, a few at a time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.procfs.process_facts import program_of, read_stranger
from otel_gpu.records import json_record

FLOOR_NS = 2_000_000
"""Time that somebody took, from which on it is asked who that is."""
_AT_A_TIME = 10
_MAX_WAITING = 1024
_MAX_KNOWN = 4096
_CHECK_INTERVAL_S = 5.0


class _Known(NamedTuple):
    program: tuple[int, str] | None
    looked_s: float


class Culprits:
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
        self._times_ns: OrderedDict[int, int] = OrderedDict()
        self._due: dict[int, None] = {}
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def note(self, pid: int, time_ns: int) -> None:
        """Take in that a process took some time from a watched one; 0 is nobody."""
        if not pid or pid in self._due or pid in self._watched():
            return
        known = self._known.get(pid)
        if known is not None:
            if self._clock() - known.looked_s < _CHECK_INTERVAL_S:
                return
            self._due[pid] = None
            return
        total_ns = self._times_ns.pop(pid, 0) + time_ns
        if total_ns >= FLOOR_NS:
            self._due[pid] = None
            return
        self._times_ns[pid] = total_ns
        if len(self._times_ns) > _MAX_WAITING:
            self._times_ns.popitem(last=False)

    def introduce_some(self) -> Iterator[bytes]:
        """Look some of them up, those first that took enough time first; the gone are left out."""
        for pid in list(self._due)[:_AT_A_TIME]:
            del self._due[pid]
            program = program_of(pid)
            known = self._known.pop(pid, None)
            self._known[pid] = _Known(program, self._clock())
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
            if program is None or (known is not None and known.program == program):
                continue
            facts = read_stranger(pid)
            if facts is not None:
                yield json_record(wire.RECORD_CULPRIT, time.monotonic_ns(), facts, pid=pid)
