"""
The timeline: what threads did lately, by thread and window.

Times are ktime: stalls, calls and forks of all processes share that clock.
"""

from bisect import bisect_left
from collections import Counter, deque
from typing import Generic, TypeVar

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity, ForkActivity, StallActivity, TimesActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.settings import Settings
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Fifo, Recent
from otel_gpu.state.reading_history import ReadingHistory
from otel_gpu.wire.events import CudaCall, Stall

Thread = tuple[int, int]
_T = TypeVar("_T", StallActivity, CallActivity)

_PARENT = "process.parent_pid"
_MAX_FORKS = 512
# A stall or call with its event and its entries in a track, and its entry in the order of arrival.
_INTERVAL_BYTES, _ORDER_BYTES = 1_200, 100
# At thousands of waits a second an effect is explained a second or two after it.
_LEAST_INTERVALS = 4_096
_MAX_READINGS = 32
# Evicted intervals of a thread that are still in its lists.
_MAX_GIVEN_UP = 64
# Stale entries in the order of arrival, beside as many as there are intervals.
_MAX_STALE = 1024
# Every wake-up waits a moment for the CPU, too short to be a stall.
_UNSEEN_FLOOR_NS = 5_000_000
# A fork whose entry was not seen is known by its end only, and a thread that waited for the address
# space can run a moment before that end.
_FORK_SLACK_NS = 1_000_000


class _Track(Generic[_T]):
    # The intervals of one thread, in the order of their starts.

    __slots__ = ("begin", "items", "starts", "thread")

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.starts: list[int] = []
        self.items: list[_T] = []
        # Intervals before it are evicted. The lists move at once for many of them: removing the
        # first entry of a list at every call costs more than all else here.
        self.begin = 0

    def find(self, start: int) -> int | None:
        # The index of the interval with a start; None: there is none, or it was evicted.
        index = bisect_left(self.starts, start, self.begin)
        return index if index < len(self.starts) and self.starts[index] == start else None

    def insert(self, start: int, activity: _T) -> None:
        index = bisect_left(self.starts, start, self.begin)
        self.starts.insert(index, start)
        self.items.insert(index, activity)

    def remove(self, index: int) -> None:
        if index > self.begin:
            del self.starts[index]
            del self.items[index]
        else:
            self.give_up_oldest()

    def give_up_oldest(self) -> None:
        self.begin += 1
        if self.begin == _MAX_GIVEN_UP or self.begin == len(self.starts):
            del self.starts[: self.begin]
            del self.items[: self.begin]
            self.begin = 0


class _Tracks(Generic[_T]):
    # Intervals of threads that do not overlap within one thread, oldest evicted first.

    def __init__(self, max_all: int, max_thread: int) -> None:
        self._max_all = max_all
        self._max_thread = max_thread
        self._tracks: dict[Thread, _Track[_T]] = {}
        self._tids: dict[int, set[int]] = {}
        # In the order of arrival; can name intervals that a thread has evicted itself.
        self._order: deque[tuple[_Track[_T], int]] = deque()
        self._size = 0
        self.given_up = 0
        CACHES.register(
            "intervals",
            self,
            "_order",
            release=_Tracks._release,
            size_bytes="_size_bytes",
            entry_bytes=_ORDER_BYTES,
            least=_LEAST_INTERVALS,
        )

    @property
    def _size_bytes(self) -> int:
        return _INTERVAL_BYTES * self._size

    def add(self, activity: _T) -> None:
        event: Stall | CudaCall = activity.event
        thread = (event.pid, event.tid)
        start = event.start_ktime_ns
        track = self._tracks.get(thread)
        if track is None:
            track = self._tracks[thread] = _Track(thread)
            self._tids.setdefault(event.pid, set()).add(event.tid)
        starts = track.starts
        if not starts or start > starts[-1]:
            starts.append(start)
            track.items.append(activity)
        elif (index := track.find(start)) is not None:
            # Sent twice: once on its own, once with the gap around it.
            track.items[index] = activity
            return
        else:
            track.insert(start, activity)
        self._order.append((track, start))
        self._size += 1
        if len(starts) - track.begin > self._max_thread:
            # As _give_up would: in a busy thread each new one costs the oldest.
            self.given_up += 1
            self._size -= 1
            track.give_up_oldest()
        if len(self._order) > self._max_all:
            track, start = self._order.popleft()
            starts = track.starts
            # In a busy thread nearly all were evicted long ago.
            if starts and starts[track.begin] <= start:
                oldest = track.find(start)
                if oldest is not None:
                    self._give_up(track, oldest)

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._order))):
            track, start = self._order.popleft()
            index = track.find(start) if track.starts else None
            if index is not None:
                self._give_up(track, index)

    def find(self, thread: Thread, start_ktime_ns: int, end_ktime_ns: int) -> list[_T]:
        # The intervals that overlap the window, in order.
        track = self._tracks.get(thread)
        if track is None:
            return []
        starts, begin = track.starts, track.begin
        index = max(begin, bisect_left(starts, start_ktime_ns, begin) - 1)
        end = bisect_left(starts, end_ktime_ns, begin)
        return [item for item in track.items[index:end] if item.event.end_ktime_ns > start_ktime_ns]

    def count_threads(self, pid: int) -> int:
        return len(self._tids.get(pid, ()))

    def threads(self, pid: int) -> dict[int, int]:
        # The threads of a process with intervals, and how many each has.
        tracks = ((tid, self._tracks[pid, tid]) for tid in self._tids.get(pid, ()))
        return {tid: len(track.items) - track.begin for tid, track in tracks}

    def forget(self, pid: int, program_ktime_ns: int) -> None:
        for tid in tuple(self._tids.get(pid, ())):
            track = self._tracks[pid, tid]
            for index in reversed(range(track.begin, len(track.items))):
                if track.items[index].event.program_ktime_ns == program_ktime_ns:
                    self._remove(track, index)
        # Intervals of ended programs are not kept for their place in the order.
        if len(self._order) > 2 * self._size + _MAX_STALE:
            self._order = deque(one for one in self._order if one[0].find(one[1]) is not None)

    def _give_up(self, track: _Track[_T], index: int) -> None:
        self.given_up += 1
        self._remove(track, index)

    def _remove(self, track: _Track[_T], index: int) -> None:
        self._size -= 1
        track.remove(index)
        if not track.starts:
            del self._tracks[track.thread]
            pid, tid = track.thread
            self._tids[pid].discard(tid)
            if not self._tids[pid]:
                del self._tids[pid]


class EventTimeline:
    """
    The latest stalls, calls and forks, bounded.

    ``unix_offset_ns`` is from ktime to Unix time, as of the latest stall or call.
    """

    def __init__(self, settings: Settings) -> None:
        limits = (settings.max_intervals, settings.max_thread_intervals)
        self._stalls: _Tracks[StallActivity] = _Tracks(*limits)
        self._calls: _Tracks[CallActivity] = _Tracks(*limits)
        # The latest of all, and of each process.
        self._forks: deque[ForkActivity] = deque()
        self._forks_of: dict[int, deque[ForkActivity]] = {}
        self._run_queues: Fifo[int, ReadingHistory[int]] = Fifo(settings.max_processes)
        # With the pid of their parent; 0 if that is not known.
        self._watched: Recent[int, int] = Recent(settings.max_processes, cache="known_processes")
        # Most activities are of the process of the one before.
        self._latest: Program | None = None
        self.unix_offset_ns = 0

    def know(self, process: Program) -> None:
        """Note that a process is watched, so that its threads' stalls are seen."""
        if process is self._latest:
            return
        self._latest = process
        parent_pid = self._watched.get(process.pid)
        if not parent_pid:
            parent_pid = process.attributes.get(_PARENT)
        self._know(process.pid, parent_pid if isinstance(parent_pid, int) else 0)

    def _know(self, pid: int, parent_pid: int) -> None:
        self._watched[pid] = parent_pid

    def is_watched(self, pid: int) -> bool:
        """Return whether the stalls of a process would be known."""
        return pid in self._watched

    def are_related(self, pid: int, other_pid: int) -> bool:
        """Return whether one watched process is the ancestor of both, or they are one."""
        return bool(self._lineage(pid) & self._lineage(other_pid))

    def _lineage(self, pid: int) -> set[int]:
        found: set[int] = set()
        while pid in self._watched and pid not in found:
            found.add(pid)
            pid = self._watched[pid]
        return found

    def add_stall(self, activity: StallActivity) -> None:
        """Keep a stall; its process is watched."""
        self.know(activity.process)
        self.unix_offset_ns = activity.start_unix_ns - activity.event.start_ktime_ns
        self._stalls.add(activity)

    def add_call(self, activity: CallActivity) -> None:
        """Keep an outermost call; its process is watched."""
        if activity.process is not self._latest:
            self.know(activity.process)
        event = activity.event
        self.unix_offset_ns = activity.start_unix_ns - event.start_ktime_ns
        # A call inside an outermost call is a part of it.
        if not event.parent_start_ktime_ns:
            self._calls.add(activity)

    def add_fork(self, activity: ForkActivity) -> None:
        """Keep a fork, and the child's parent, which can be another one later."""
        self._forks.append(activity)
        self._forks_of.setdefault(activity.event.pid, deque()).append(activity)
        if len(self._forks) > _MAX_FORKS:
            pid = self._forks.popleft().event.pid
            self._forks_of[pid].popleft()
            if not self._forks_of[pid]:
                del self._forks_of[pid]
        self.know(activity.process)
        self._know(activity.event.child_pid, activity.event.pid)
        self._latest = None

    def stalls(self, thread: Thread, start_ktime_ns: int, end_ktime_ns: int) -> list[StallActivity]:
        """Return the stalls of a thread that overlap a window, in order."""
        return self._stalls.find(thread, start_ktime_ns, end_ktime_ns)

    def calls(self, thread: Thread, start_ktime_ns: int, end_ktime_ns: int) -> list[CallActivity]:
        """Return the recorded outermost calls of a thread in a window, in order."""
        return self._calls.find(thread, start_ktime_ns, end_ktime_ns)

    def makes_calls(self, thread: Thread) -> bool:
        """Return whether any recorded call of a thread is kept."""
        return thread[1] in self._calls.threads(thread[0])

    def busiest_thread(self, pid: int) -> int:
        """Return the main thread of a process if it does anything, else the one that does most."""
        counts = Counter(self._calls.threads(pid))
        if not counts:
            counts.update(self._stalls.threads(pid))
        return (
            pid if pid in counts or not counts else max(counts, key=lambda tid: (counts[tid], -tid))
        )

    def forks(self, pid: int, start_ktime_ns: int, end_ktime_ns: int) -> list[ForkActivity]:
        """Return the forks that a process was in during a window, or just after it."""
        return [
            fork
            for fork in self._forks_of.get(pid, ())
            if fork.event.start_ktime_ns < end_ktime_ns + _FORK_SLACK_NS
            and fork.event.end_ktime_ns > start_ktime_ns
        ]

    def add_times(self, activity: TimesActivity) -> None:
        """Keep how long the threads of each process waited for a CPU so far."""
        sums: dict[int, int] = {}
        for time in activity.times:
            if time.state == wire.STATE_RUN_QUEUE:
                pid = time.process.pid
                sums[pid] = sums.get(pid, 0) + time.time_ns
        for pid, time_ns in sums.items():
            self._run_queues.setdefault(pid, ReadingHistory(_MAX_READINGS)).add(
                activity.unix_ns, time_ns
            )

    def unseen_run_queue_ns(self, thread: Thread, start_unix_ns: int, window_ns: int) -> int:
        """
        Return how long a thread waited for a CPU around a window without a stall that shows it.

        Stalls of threads that make no CUDA calls are sent above a floor, and the totals are exact.
        They are of the whole process, so they do not count if it has more threads.
        """
        pid, _ = thread
        readings = self._run_queues.get(pid)
        if readings is None or self._stalls.count_threads(pid) > 1:
            return 0
        found = readings.around(start_unix_ns, start_unix_ns + window_ns)
        if found is None:
            return 0
        before, after = found
        begin, end = (reading.unix_ns - self.unix_offset_ns for reading in found)
        seen_ns = sum(
            min(end, stall.event.end_ktime_ns) - max(begin, stall.event.runnable_ktime_ns)
            for stall in self.stalls(thread, begin, end)
            if begin < stall.event.end_ktime_ns and stall.event.runnable_ktime_ns < end
        )
        unseen_ns = after.value - before.value - max(0, seen_ns)
        return unseen_ns if unseen_ns > _UNSEEN_FLOOR_NS else 0

    def forget(self, program: tuple[int, int]) -> None:
        """Forget the intervals of a program that ended. Its lineage is kept for others."""
        self._stalls.forget(*program)
        self._calls.forget(*program)
        self._run_queues.pop(program[0], None)

    def given_up(self) -> Counter[str]:
        """Return how many intervals exceeded the limits."""
        return Counter(stalls=self._stalls.given_up, calls=self._calls.given_up)
