"""Who somebody is that figures name by a pid and a tid only."""

from collections.abc import Iterable

from otel_gpu.enrich.activities import Activity, WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Program, Who
from otel_gpu.enrich.identity.unwatched_processes import who_of
from otel_gpu.limits.recent import Recent

MAX_NAMES = 8_192
"""Processes and threads that are remembered, those that were named last."""


class ThreadNames:
    """Watches activities; bounded."""

    def __init__(self) -> None:
        self._names: Recent[tuple[int, int], Who] = Recent(MAX_NAMES, cache="process_names")
        # By pid, of processes that are not watched.
        self._ran: Recent[int, str] = Recent(MAX_NAMES, cache="process_names", entry_bytes=150)

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        if isinstance(activity, WhoActivity):
            who = activity.who
            self._learn(who)
            if not who.tid and who.comm:
                self._ran[who.pid] = who.comm

    def learn_programs(self, programs: Iterable[Program]) -> None:
        """Take in watched processes."""
        for program in programs:
            self._learn(who_of(program))

    def named(self, culprit: Culprit) -> Culprit:
        """
        Return a culprit under the name of what ran.

        The account names a process by what had the CPU first: a wrapper such as taskset(1), whose
        time was over when it ran another program.
        """
        comm = None if culprit.tid else self._ran.get(culprit.pid)
        return culprit._replace(comm=comm) if comm else culprit

    def find(self, who: Who) -> Who:
        """Return who somebody is, as far as that is known; what is known is kept."""
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
