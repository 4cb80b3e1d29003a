"""The names of processes and threads that figures contain by pid and tid only."""

from collections.abc import Iterable

from otel_gpu.enrich.activities import Activity, WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Program, Who
from otel_gpu.enrich.identity.unwatched_processes import who_of
from otel_gpu.limits.recent import Recent

MAX_NAMES = 8_192
"""Processes and threads kept, those that were named last."""


class ThreadNames:
    """Names of processes and threads; bounded."""

    def __init__(self) -> None:
        self._names: Recent[tuple[int, int], Who] = Recent(MAX_NAMES, cache="process_names")
        # By pid, of unwatched processes.
        self._ran: Recent[int, str] = Recent(MAX_NAMES, cache="process_names", entry_bytes=150)

    def observe(self, activity: Activity) -> None:
        """Add an activity; kinds without names are ignored."""
        if isinstance(activity, WhoActivity):
            who = activity.who
            self._learn(who)
            if not who.tid and who.comm:
                self._ran[who.pid] = who.comm

    def learn_programs(self, programs: Iterable[Program]) -> None:
        """Add watched programs."""
        for program in programs:
            self._learn(who_of(program))

    def named(self, culprit: Culprit) -> Culprit:
        """
        Return a culprit under the name of what ran.

        Time accounting names a process by the program that had the CPU first. That can be a wrapper
        such as taskset(1), whose time was over when it executed another program.
        """
        comm = None if culprit.tid else self._ran.get(culprit.pid)
        return culprit._replace(comm=comm) if comm else culprit

    def find(self, who: Who) -> Who:
        """Return ``who`` with everything that is known of it."""
        process, thread = (self._names.get((who.pid, tid)) for tid in (0, who.tid))
        if process:
            comm = who.comm or process.comm
            if not who.tid:
                comm = self._ran.get(who.pid, comm)
            who = process._replace(tid=who.tid, comm=comm)
        if thread and who.tid:
            who = who._replace(function=thread.function)
        return who

    def _learn(self, who: Who) -> None:
        self._names[who.pid, who.tid] = who
