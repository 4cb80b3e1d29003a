"""
Introducing programs: RECORD_PROCESS, as soon as there is time for it.

Reading /proc takes a good part of a millisecond a process, so a storm of forks and
execs waits its turn. Whoever is gone by then is known by what its parent said.
"""

import time
from collections.abc import Iterator

from otel_gpu import wire
from otel_gpu.capture.processes.watched_processes import WatchedProcesses
from otel_gpu.limits.recent import Fifo
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.kernel_waits import is_locked
from otel_gpu.procfs.process_facts import began_by, read_facts
from otel_gpu.procfs.reader import is_late
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import json_record

_AT_A_TIME = 25
# A process decides how long its facts take.
_AT_A_TIME_S = 0.05
MAX_WAITING = 8192


class ProcessDiscovery:
    """
    Programs, as (pid, program_ktime_ns), that nobody has been told about yet.

    ``environment`` is the value of the option ``capture.environment``.
    """

    def __init__(self, processes: WatchedProcesses, environment: str = "all") -> None:
        self._processes = processes
        self._environment = environment
        self._waiting: Fifo[ProcessKey, None] = Fifo(MAX_WAITING)
        self._incomplete: dict[ProcessKey, None] = {}

    def put_off(self, pid: int, program_ktime_ns: int) -> None:
        """Introduce a program later; of too many, the one that waits longest is not."""
        self._waiting[pid, program_ktime_ns] = None

    def give_up(self, pid: int, program_ktime_ns: int) -> None:
        """Never mind: the program ended, or was replaced."""
        self._waiting.pop((pid, program_ktime_ns), None)
        self._incomplete.pop((pid, program_ktime_ns), None)

    def make(self, pid: int, program_ktime_ns: int) -> Iterator[bytes]:
        """Introduce a program now, or later if it could keep us waiting; nothing comes of one that is gone."""
        if is_locked(pid):
            self.put_off(pid, program_ktime_ns)
            return
        facts = read_facts(pid, environment=self._environment)
        # Another exec may have come meanwhile; a process that is gone answers 0, and may be read
        # as long as nobody has waited for it. By then, another may have its pid.
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
        """Introduce those again of which not all could be read, and that may be asked again."""
        for program in [program for program in self._incomplete if not is_late(program[0])]:
            del self._incomplete[program]
            self.put_off(*program)

    @property
    def is_pending(self) -> bool:
        """Whether programs wait for their facts."""
        return bool(self._waiting)

    def make_some(self) -> Iterator[bytes]:
        """Introduce some of those that wait, the longest waiting first."""
        until_s = time.monotonic() + _AT_A_TIME_S
        for _ in range(min(_AT_A_TIME, len(self._waiting))):
            program, _ = self._waiting.popitem(last=False)
            yield from self.make(*program)
            if time.monotonic() >= until_s:
                return
