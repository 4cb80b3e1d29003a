"""
What is left of processes whose end was not seen.

The kernel side forgets a thread or a process when it ends. That is missed where the ring of
lifecycle records was full, where the kernel skipped a probe, and where nobody looks at the end
at all: allocations of a process stay when it does not free them. So the maps are compared with
/proc now and then.
"""

from collections.abc import Mapping

from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.procfs.mapped_files import all_pids, thread_ids
from otel_gpu.procfs.process_facts import start_ktime_ns
from otel_gpu.stacks.samples import ProcessKey


class StaleEntries:
    """
    Finds and frees them.

    Args:
        programs: The loaded programs.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._missing: set[ProcessKey] = set()
        # Who had memory when it was last looked at, and was no more.
        self._gone: set[ProcessKey] = set()

    def ended(self, programs: Mapping[int, int]) -> set[ProcessKey]:
        """
        Return the programs, as (pid, program_ktime_ns), whose end or exec nobody reported.

        Args:
            programs: The programs that are believed to live: ``program_ktime_ns`` by pid.
        """
        watched = self._programs.processes.programs()
        # In this order: a process that begins in between must not be taken for one that is gone.
        for pid in watched.keys() - set(all_pids()):
            self._programs.processes.forget(pid)
            del watched[pid]
        for pid, program_ktime_ns in list(watched.items()):
            started_ktime_ns = start_ktime_ns(pid)
            # Its pid is another process's, which the kernel side takes for it.
            if started_ktime_ns is not None and started_ktime_ns > program_ktime_ns:
                self._programs.processes.forget(pid)
                del watched[pid]
        missing = {program for program in programs.items() if watched.get(program[0]) != program[1]}
        # The record of an end may be in the ring still; by the next time it was read.
        ended = missing & self._missing
        self._missing = missing - ended
        return ended

    def free_threads(self) -> None:
        """Free the threads that ended, or whose process is not watched any more."""
        threads = self._programs.processes.threads()
        watched = self._programs.processes.programs()
        living: dict[int, set[int]] = {}
        for tid, pid in threads:
            if pid not in living:
                living[pid] = set(thread_ids(pid)) if pid in watched else set()
            if tid not in living[pid]:
                self._programs.processes.forget_thread(tid)

    def free_memory(self) -> None:
        """Free the allocations and captures of streams that programs which ended left behind."""
        memory = self._programs.memory()
        gone = {program for program, *_ in memory} - set(
            self._programs.processes.programs().items()
        )
        # What was where, a record in the ring may ask for still; by the next time it was read.
        ended = gone & self._gone
        self._gone = gone - ended
        for program, bpf_map, key in memory:
            if program in ended:
                bpf_map.delete(key)
