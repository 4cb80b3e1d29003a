"""
Quotas: when a cgroup used up its CPU time, and which waits for a CPU that explains.

The kernel says how often and how long a cgroup was throttled, and not when: so a wait is
put down to a quota by the readings before and after it.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity, StallActivity
from otel_gpu.explain.timeline import Timeline

_MAX_READINGS = 64


class _Throttled(NamedTuple):
    """How often and how long a cgroup was throttled so far, and who is in it."""

    times: int
    time_ns: int
    pids: frozenset[int]


_NOTHING = _Throttled(0, 0, frozenset())


class _Throttling(NamedTuple):
    """How long a cgroup was throttled between two readings."""

    start_unix_ns: int
    end_unix_ns: int
    time_ns: int


class Quotas:
    """Keeps the latest readings; bounded."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._readings: deque[tuple[int, dict[str, _Throttled]]] = deque(maxlen=_MAX_READINGS)

    def learn_start(self, unix_ns: int) -> None:
        """Take in when the capture began: no cgroup was watched before."""
        self._readings.append((unix_ns, {}))

    def observe(self, activity: PressureActivity) -> None:
        """Take in one reading of the cgroups; what is not understood in it is left out."""
        cgroups = activity.info.get("cgroups")
        if not isinstance(cgroups, Mapping):
            return
        found = {}
        for path, info in cgroups.items():
            if isinstance(info, Mapping):
                times, pids = info.get("nr_throttled"), info.get("pids")
                time_ns = info.get("throttled_ns")
                if isinstance(times, int) and isinstance(pids, list | tuple):
                    found[str(path)] = _Throttled(
                        times,
                        time_ns if isinstance(time_ns, int) else 0,
                        frozenset(pid for pid in pids if type(pid) is int),
                    )
        self._readings.append((activity.unix_ns, found))

    def is_throttled(self, stall: StallActivity) -> bool:
        """
        Say whether a quota kept a thread off the CPU that was ready for it.

        An idle CPU was kept from it by something else than a thread: by the quota, if
        that was used up then. If another thread had the CPU, that may be because the quota
        had freed it: so the longest waits are the quota's, as far as its own time goes.
        """
        event = stall.event
        throttling = self._find(event.pid, stall.runnable_unix_ns, stall.end_unix_ns)
        if throttling is None:
            return False
        if event.flags & wire.STALL_IDLE_CPU or not event.culprit_tid:
            return True
        offset_ns = stall.start_unix_ns - event.start_ktime_ns
        around = self._timeline.stalls(
            (event.pid, event.tid),
            throttling.start_unix_ns - offset_ns,
            throttling.end_unix_ns - offset_ns,
        )
        # The kernel counts a throttling when it is over.
        around = [other for other in around if other.end_unix_ns <= throttling.end_unix_ns]
        # A thread waits a little longer than it is throttled: then the CPU is in use.
        left_ns = throttling.time_ns + throttling.time_ns // 10
        for other in sorted(around, key=_longest_first):
            run_queue_ns = other.event.end_ktime_ns - other.event.runnable_ktime_ns
            if run_queue_ns > left_ns:
                continue
            if other.event.start_ktime_ns == event.start_ktime_ns:
                return True
            left_ns -= max(0, run_queue_ns)
        return False

    def _find(self, pid: int, start_unix_ns: int, end_unix_ns: int) -> _Throttling | None:
        """Return the throttling of a process's cgroup between the readings around a window."""
        before: tuple[int, dict[str, _Throttled]] | None = None
        most: _Throttling | None = None
        for unix_ns, found in self._readings:
            if unix_ns <= start_unix_ns:
                before = (unix_ns, found)
                continue
            if before is None:
                break
            for path, now in found.items():
                then = before[1].get(path)
                if then is None and now.time_ns < unix_ns - before[0]:
                    # Not watched before, and too little for it to be an old story.
                    then = _NOTHING
                if then is not None and now.times > then.times and pid in now.pids | then.pids:
                    time_ns = max(0, now.time_ns - then.time_ns)
                    if most is None or time_ns > most.time_ns:
                        most = _Throttling(before[0], unix_ns, time_ns)
            if unix_ns >= end_unix_ns:
                break
        return most


def _longest_first(stall: StallActivity) -> tuple[int, int]:
    event = stall.event
    return event.runnable_ktime_ns - event.end_ktime_ns, event.start_ktime_ns
