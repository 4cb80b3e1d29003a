"""
Quotas: when a cgroup used up its CPU time, and which waits for a CPU that explains.

The kernel reports how often and how long a cgroup was throttled, and not when. So readings before
and after a wait decide whether it is due to a quota. Since Linux 6.18 the kernel side marks a
thread whose wait begins with throttling, and readings limit how much of the wait it can have been.
"""

from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity, StallActivity
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.state.reading_history import ReadingHistory

_MAX_READINGS = 64

# On an idle CPU, or of a marked thread, most of a wait shows what all of it was for.
_CERTAIN_SLACK = 2.0
# A thread waits a little longer than it is throttled: then the CPU is in use.
_BUSY_SLACK = 1.1


class _Throttled(NamedTuple):
    # How long a cgroup was throttled since it exists, and its processes.

    time_ns: int
    pids: frozenset[int]


class _Throttling(NamedTuple):
    # How long a cgroup was throttled between two readings.

    start_unix_ns: int
    end_unix_ns: int
    time_ns: int


class Quotas:
    """Attributes waits to CPU quotas, by the latest readings; bounded."""

    def __init__(self, timeline: EventTimeline) -> None:
        self._timeline = timeline
        self._readings: ReadingHistory[dict[str, _Throttled]] = ReadingHistory(_MAX_READINGS)

    def observe(self, activity: PressureActivity) -> None:
        """Add one reading of the cgroups."""
        if "cgroups" not in activity.info:
            return
        found = {
            path: _Throttled(info["throttled_ns"], frozenset(info["pids"]))
            for path, info in activity.info["cgroups"].items()
            if "throttled_ns" in info and "pids" in info
        }
        self._readings.add(activity.unix_ns, found)

    def is_throttled(self, stall: StallActivity) -> bool:
        """
        Return whether a quota kept a ready thread off its CPU.

        A quota can cause no more waiting than there was throttling. It kept a marked thread off at
        first, and no thread kept the idle CPU from a thread, so such waits come first, in this
        order. If another thread had the CPU, the quota can have freed it for that thread: of those
        waits the longest are the quota's, until its time is used up.
        """
        event = stall.event
        throttling = self._find(event.pid, stall.runnable_unix_ns, stall.end_unix_ns)
        if throttling is None:
            return _is_marked(stall)
        offset_ns = stall.start_unix_ns - event.start_ktime_ns
        around = self._timeline.stalls(
            (event.pid, event.tid),
            throttling.start_unix_ns - offset_ns,
            throttling.end_unix_ns - offset_ns,
        )
        # The kernel counts throttling when it is over.
        around = [other for other in around if other.end_unix_ns <= throttling.end_unix_ns]
        left_ns = throttling.time_ns
        for other in sorted(around, key=_certain_and_longest_first):
            run_queue_ns = _run_queue_ns(other)
            is_certain = _is_marked(other) or _is_on_idle_cpu(other)
            if run_queue_ns > left_ns * (_CERTAIN_SLACK if is_certain else _BUSY_SLACK):
                continue
            if other.event.start_ktime_ns == event.start_ktime_ns:
                return True
            left_ns -= min(left_ns, run_queue_ns)
        return False

    def _find(self, pid: int, start_unix_ns: int, end_unix_ns: int) -> _Throttling | None:
        # Between the readings around a window: what one reading alone has can all be from before
        # it.
        found = self._readings.around(start_unix_ns, end_unix_ns)
        if found is None:
            return None
        before, after = found
        time_ns = max(
            (
                now.time_ns - then.time_ns
                for path, now in after.value.items()
                if (then := before.value.get(path)) is not None and pid in now.pids | then.pids
            ),
            default=0,
        )
        return _Throttling(before.unix_ns, after.unix_ns, time_ns) if time_ns > 0 else None


def _is_marked(stall: StallActivity) -> bool:
    return bool(stall.event.flags & wire.STALL_THROTTLED)


def _is_on_idle_cpu(stall: StallActivity) -> bool:
    return bool(stall.event.flags & wire.STALL_IDLE_CPU) or not stall.event.culprit_tid


def _run_queue_ns(stall: StallActivity) -> int:
    return max(0, stall.event.end_ktime_ns - stall.event.runnable_ktime_ns)


def _certain_and_longest_first(stall: StallActivity) -> tuple[bool, bool, int, int]:
    run_queue_ns = _run_queue_ns(stall)
    return (
        not _is_marked(stall),
        not _is_on_idle_cpu(stall),
        -run_queue_ns,
        stall.event.start_ktime_ns,
    )
