"""
RECORD_PROCESS for new programs, from /proc.

Reading /proc takes the better part of a millisecond per process, so in a storm of forks and execs programs
are queued. If one has ended before its turn, only its parent's facts are known.
"""

import time
from collections.abc import Iterator

from otel_gpu import wire
from otel_gpu.capture.processes.watched_processes import WatchedProcesses
from otel_gpu.limits.recent import Fifo
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.process_facts import began_by, read_facts
from otel_gpu.procfs.reader import is_late
from otel_gpu.procfs.uninterruptible_waits import is_locked
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import json_record

_AT_A_TIME = 25
# A process can make reading its facts slow.
_AT_A_TIME_S = 0.05
MAX_WAITING = 8192


class ProcessDiscovery:
    """
    Programs whose RECORD_PROCESS is due.

    ``environment`` is the value of the option ``capture.environment``.
    """

    def __init__(self, processes: WatchedProcesses, environment: str = "all") -> None:
        self._processes = processes
        self._environment = environment
        self._waiting: Fifo[ProcessKey, None] = Fifo(MAX_WAITING)
        self._incomplete: dict[ProcessKey, None] = {}

    def put_off(self, pid: int, program_ktime_ns: int) -> None:
        """Queue a program; if the queue is full, the oldest entry is evicted."""
        self._waiting[pid, program_ktime_ns] = None

    def give_up(self, pid: int, program_ktime_ns: int) -> None:
        """Remove a program that ended, or was replaced by an exec."""
        self._waiting.pop((pid, program_ktime_ns), None)
        self._incomplete.pop((pid, program_ktime_ns), None)

    def make(self, pid: int, program_ktime_ns: int) -> Iterator[bytes]:
        """Yield the RECORD_PROCESS of a program; queue it if reading could block; nothing if it has ended."""
        if is_locked(pid):
            self.put_off(pid, program_ktime_ns)
            return
        facts = read_facts(pid, environment=self._environment)
        # The process can have executed another program since. If it has ended, program_ktime_ns is 0, and it
        # can be read until its parent waits for it; then another process can have its pid.
        if (
            facts is not None
            and self._processes.program_ktime_ns(pid) in (program_ktime_ns, 0)
            and began_by(facts, program_ktime_ns)
        ):
            yield json_record(
                wire.RECORD_PROCESS,
                kernel_clock.ktime_ns(),
                facts,
                pid=pid,
                program_ktime_ns=program_ktime_ns,
            )
            if is_late(pid) and len(self._incomplete) < MAX_WAITING:
                self._incomplete[pid, program_ktime_ns] = None

    def retry(self) -> None:
        """Queue again the programs that were read incompletely and do not block any more."""
        for program in [program for program in self._incomplete if not is_late(program[0])]:
            del self._incomplete[program]
            self.put_off(*program)

    @property
    def is_pending(self) -> bool:
        """Whether programs are queued."""
        return bool(self._waiting)

    def make_some(self) -> Iterator[bytes]:
        """Yield the records of some queued programs, oldest first."""
        until_s = time.monotonic() + _AT_A_TIME_S
        for _ in range(min(_AT_A_TIME, len(self._waiting))):
            program, _ = self._waiting.popitem(last=False)
            yield from self.make(*program)
            if time.monotonic() >= until_s:
                return
