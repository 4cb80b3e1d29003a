"""Where in their programs the threads of a process were, by its time accounting."""

from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.accounting.time_states import state_of
from otel_gpu.explain.chains import NodeState
from otel_gpu.explain.code_locations import CodeLocations, Queued, Seen
from otel_gpu.explain.kinds import TimeState


class ThreadLocations:
    """
    Finds the code locations of time that a process lost, and of the threads that it waited for.

    Args:
        places: The observed locations.
        times: The times of the process.
    """

    def __init__(self, places: CodeLocations, times: Iterable[ThreadTime]) -> None:
        self.places = places
        # By the pid of the process that had the CPU; 0: all of it.
        self._queued: dict[int, dict[Queued, int]] = {}
        for time in times:
            if state_of(time.state, time.context, time.reason) == TimeState.RUN_QUEUE:
                api = 0 if time.context == wire.CONTEXT_GAP else time.wait.api
                part = Queued(time.reason == WaitReason.PREEMPTED, api)
                for by in {0, time.wait.who.pid if time.wait.who else 0}:
                    parts = self._queued.setdefault(by, {})
                    parts[part] = parts.get(part, 0) + (time.ended_ns or time.time_ns)

    def find(
        self, pid: int, state: NodeState, time_ns: int, by: int = 0, tid: int = 0
    ) -> Seen | None:
        """
        Return where most of some time was; None: not known.

        Args:
            pid: The process whose time it is.
            state: A state of the time budget.
            time_ns: The time.
            by: The pid of the process that kept the thread waiting; 0: any.
            tid: The thread; 0: all launching threads.
        """
        if state != TimeState.RUN_QUEUE:
            return self.places.find(pid, state, culprit_pid=by, tid=tid)
        # Accounting knows no more of other threads than their waiting time.
        queued = self.places.queued(pid, tid) if tid else self._queued.get(by, {})
        if tid and 2 * sum(queued.values()) < time_ns:
            return None
        return self.places.find_queued(pid=pid, queued=queued, culprit_pid=by, tid=tid)
