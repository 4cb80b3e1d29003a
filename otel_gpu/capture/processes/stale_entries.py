"""
Finds and frees map entries of processes whose end was not seen.

The kernel side deletes a thread or process when it ends. It misses that if the lifecycle ring was full or the
kernel skipped a probe. Allocations that a process does not free stay in any case. So the maps are
compared with /proc periodically.
"""

from collections.abc import Mapping

from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.procfs.mapped_files import all_pids, thread_ids
from otel_gpu.procfs.process_facts import start_ktime_ns
from otel_gpu.stacks.samples import ProcessKey


class StaleEntries:
    """
    Finds and frees stale entries.

    Args:
        programs: The loaded programs.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._missing: set[ProcessKey] = set()
        # Ended programs that had allocations at the previous call.
        self._gone: set[ProcessKey] = set()

    def ended(self, programs: Mapping[int, int]) -> set[ProcessKey]:
        """
        Return the programs whose end or exec was not reported.

        Args:
            programs: ``program_ktime_ns`` by pid of programs that live, to our knowledge.
        """
        watched = self._programs.processes.programs()
        # In this order: a process that starts in between must not count as ended.
        for pid in watched.keys() - set(all_pids()):
            self._programs.processes.forget(pid)
            del watched[pid]
        for pid, program_ktime_ns in list(watched.items()):
            started_ktime_ns = start_ktime_ns(pid)
            # Another process has the pid, and the kernel side confuses the two.
            if started_ktime_ns is not None and started_ktime_ns > program_ktime_ns:
                self._programs.processes.forget(pid)
                del watched[pid]
        missing = {program for program in programs.items() if watched.get(program[0]) != program[1]}
        # The record of the end can still be in the ring; by the next call it is read.
        ended = missing & self._missing
        self._missing = missing - ended
        return ended

    def free_threads(self) -> None:
        """Delete threads that ended, or whose process is not watched any more."""
        threads = self._programs.processes.threads()
        watched = self._programs.processes.programs()
        living: dict[int, set[int]] = {}
        for tid, pid in threads:
            if pid not in living:
                living[pid] = set(thread_ids(pid)) if pid in watched else set()
            if tid not in living[pid]:
                self._programs.processes.forget_thread(tid)

    def free_memory(self) -> None:
        """Delete allocations, stream captures, blocks and communicators of programs that ended."""
        memory = self._programs.memory()
        gone = {program for program, *_ in memory} - set(
            self._programs.processes.programs().items()
        )
        # A failure record in the ring can still need them; by the next call it is read.
        ended = gone & self._gone
        self._gone = gone - ended
        for program, bpf_map, key in memory:
            if program in ended:
                bpf_map.delete(key)
