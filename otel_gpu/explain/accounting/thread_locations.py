"""Where in their programs the threads of a process were, by what its time account says."""

from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.accounting.time_states import state_of
from otel_gpu.explain.code_locations import CodeLocations, Queued, Seen
from otel_gpu.wire.thread_states import ThreadState


class ThreadLocations:
    """
    Finds the places of what a process lost, and of whom it waited for.

    Args:
        places: What was seen of them, one by one.
        times: What the account says of the process.
    """

    def __init__(self, places: CodeLocations, times: Iterable[ThreadTime]) -> None:
        self.places = places
        # By the pid of who had the CPU; 0: all of it.
        self._queued: dict[int, dict[Queued, int]] = {}
        for time in times:
            if state_of(time.state, time.context, time.reason) == ThreadState.RUN_QUEUE:
                api = 0 if time.context == wire.CONTEXT_GAP else time.wait.api
                part = Queued(time.reason == WaitReason.PREEMPTED, api)
                for by in {0, time.wait.who.pid if time.wait.who else 0}:
                    parts = self._queued.setdefault(by, {})
                    parts[part] = parts.get(part, 0) + (time.ended_ns or time.time_ns)

    def find(self, pid: int, state: str, time_ns: int, by: int = 0, tid: int = 0) -> Seen | None:
        """
        Return where most of some time was; None: that is not known.

        Args:
            pid: Whose time it is.
            state: A state of the budget.
            time_ns: How long it was.
            by: The pid of who kept the thread waiting; 0: anybody.
            tid: Whose time it is, if it is one thread's; else of all that make calls.
        """
        if state != ThreadState.RUN_QUEUE:
            return self.places.find(pid, state, by, tid)
        # Of other threads the account says no more than how long that was.
        queued = self.places.queued(pid, tid) if tid else self._queued.get(by, {})
        if tid and 2 * sum(queued.values()) < time_ns:
            return None
        return self.places.find_queued(pid, queued, by, tid)
