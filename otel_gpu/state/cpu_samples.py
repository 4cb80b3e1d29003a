"""
On-CPU samples: which lines a thread worked on, in an interval and in all.

The time is in time accounting, and exact. Samples only divide it among lines.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from otel_gpu import wire
from otel_gpu.enrich.activities import SampleActivity
from otel_gpu.enrich.identity.identities import CallStack, ProcessKey
from otel_gpu.enrich.known_work import find_work
from otel_gpu.limits.recent import Recent
from otel_gpu.state.code_lines import NOWHERE, CodeLines, KnownStack, LineSums, Where, merge

MAX_SAMPLES = 16_384
"""Samples kept with their times: over a minute of the samples of a whole host."""
MAX_THREADS = 1_024
"""Threads with sums, the latest ones."""

AT_WORK = frozenset({wire.CONTEXT_GAP, wire.CONTEXT_OTHER})
"""Contexts in which time on a CPU is the program's own work, and not that of a CUDA call."""

EVERYWHERE = AT_WORK | {wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL}
Thread = tuple[int, int]
_MOST_STACKS = 16_384
# Of longer intervals, the lines of their end are enough.
_OLD_NS = 30_000_000_000
# A few samples a second would otherwise be kept for most of an hour, with their stacks.
_KEPT_NS = 120_000_000_000


class KnownStacks:
    """The work of stacks, each examined once; bounded."""

    def __init__(self) -> None:
        self._known: Recent[int, KnownStack] = Recent(_MOST_STACKS, cache="known_stacks")

    def find(self, stack: CallStack | None) -> KnownStack:
        """Return the work of a stack; None is a lost stack."""
        if stack is None:
            return NOWHERE
        known = self._known.get(stack.id)
        # An id of a forged recording can come to stand for another stack.
        if known is None or known.stack is None or known.stack.frames is not stack.frames:
            known = self._known[stack.id] = _locate(stack)
        return known


def _locate(stack: CallStack) -> KnownStack:
    work, place = find_work(stack.frames, stack.place)
    if place is None or not (place.function or place.file or place.module):
        return KnownStack(None, work, stack)
    if place is not stack.place:
        stack = stack._replace(place=place)
    is_named = bool(place.function or place.file)
    where = Where(place.function, place.file if is_named else place.module, place.line)
    return KnownStack(where, work, stack)


class _Track:
    # The samples of one thread in the order of time.

    __slots__ = ("items", "ktimes")

    def __init__(self) -> None:
        self.ktimes: list[int] = []
        self.items: list[tuple[int, int, int, KnownStack]] = []


class Samples:
    """
    The samples of the last two minutes, for the lines of a thread in an interval; bounded.

    Args:
        most: The most samples; the oldest are evicted first.

    Attributes:
        given_up: How many were evicted although they were not old.
    """

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most = most
        self._stacks = KnownStacks()
        self._tracks: dict[Thread, _Track] = {}
        self._tids: dict[int, set[int]] = {}
        # In the order of arrival; can contain entries that were forgotten since.
        self._order: deque[tuple[Thread, int]] = deque()
        self.given_up = 0

    def observe(self, activity: SampleActivity) -> None:
        """Add a sample."""
        event = activity.event
        thread = event.pid, event.tid
        track = self._tracks.get(thread)
        if track is None:
            track = self._tracks[thread] = _Track()
            self._tids.setdefault(event.pid, set()).add(event.tid)
        # Nearly always the last.
        at = bisect_right(track.ktimes, event.ktime_ns)
        track.ktimes.insert(at, event.ktime_ns)
        known = self._stacks.find(activity.stack)
        track.items.insert(at, (event.weight_ns, event.context, event.program_ktime_ns, known))
        self._order.append((thread, event.ktime_ns))
        oldest_ktime_ns = event.ktime_ns - _KEPT_NS
        while len(self._order) > self._most or self._order[0][1] < oldest_ktime_ns:
            self._give_up(*self._order.popleft(), event.ktime_ns)

    def of(
        self,
        pid: int,
        tid: int | None,
        start_ktime_ns: int,
        end_ktime_ns: int,
        contexts: AbstractSet[int] = AT_WORK,
    ) -> CodeLines:
        """
        Return the lines of a thread, or of all threads of a process, in an interval.

        Args:
            pid: The process.
            tid: The thread; None: all.
            start_ktime_ns: Start of the interval.
            end_ktime_ns: Its end, exclusive.
            contexts: Only samples in these.
        """
        tids = self._tids.get(pid, ()) if tid is None else (tid,)
        return self._lines(
            pid, tids, start_ktime_ns=start_ktime_ns, end_ktime_ns=end_ktime_ns, contexts=contexts
        )

    def of_others(self, pid: int, tid: int, start_ktime_ns: int, end_ktime_ns: int) -> CodeLines:
        """Return the lines of all threads of a process but one, outside CUDA calls."""
        tids = self._tids.get(pid, set()) - {tid}
        return self._lines(
            pid, tids, start_ktime_ns=start_ktime_ns, end_ktime_ns=end_ktime_ns, contexts=AT_WORK
        )

    def _lines(
        self,
        pid: int,
        tids: Iterable[int],
        start_ktime_ns: int,
        end_ktime_ns: int,
        contexts: AbstractSet[int],
    ) -> CodeLines:
        sums = LineSums()
        for tid in tids:
            track = self._tracks.get((pid, tid))
            if track is not None:
                begin = bisect_left(track.ktimes, start_ktime_ns)
                end = bisect_left(track.ktimes, end_ktime_ns, begin)
                for weight_ns, context, _, known in track.items[begin:end]:
                    if context in contexts:
                        sums.add(known, 1, weight_ns)
        return sums.lines()

    def forget(self, program: ProcessKey) -> None:
        """Forget the samples of a program that ended."""
        pid, program_ktime_ns = program
        for tid in tuple(self._tids.get(pid, ())):
            track = self._tracks[pid, tid]
            kept = [index for index, item in enumerate(track.items) if item[2] != program_ktime_ns]
            track.ktimes = [track.ktimes[index] for index in kept]
            track.items = [track.items[index] for index in kept]
            self._drop_if_empty((pid, tid))

    def _give_up(self, thread: Thread, ktime_ns: int, now_ktime_ns: int) -> None:
        track = self._tracks.get(thread)
        if track is not None and track.ktimes[0] <= ktime_ns:
            self.given_up += now_ktime_ns - track.ktimes[0] < _OLD_NS
            del track.ktimes[0], track.items[0]
            self._drop_if_empty(thread)

    def _drop_if_empty(self, thread: Thread) -> None:
        if not self._tracks[thread].items:
            del self._tracks[thread]
            tids = self._tids[thread[0]]
            tids.discard(thread[1])
            if not tids:
                del self._tids[thread[0]]


class SampleSums:
    """
    The lines of each thread over all samples; bounded.

    Args:
        most: The most threads, the latest ones.
        stacks: Shared with other sums; None: its own.

    Attributes:
        left_out: Samples of threads that were evicted.
    """

    def __init__(self, most: int = MAX_THREADS, stacks: KnownStacks | None = None) -> None:
        self._stacks = stacks or KnownStacks()
        self._threads: Recent[tuple[int, int, int], LineSums] = Recent(most, evict=self._evict)
        self._by_pid: dict[int, dict[tuple[int, int, int], LineSums]] = {}
        self.left_out = 0

    def observe(self, activity: SampleActivity) -> None:
        """Add a sample."""
        event = activity.event
        key = event.pid, event.tid, event.context
        sums = self._threads.use(key)
        if sums is None:
            sums = self._threads[key] = LineSums()
            self._by_pid.setdefault(event.pid, {})[key] = sums
        sums.add(self._stacks.find(activity.stack), 1, event.weight_ns)

    def of(
        self, pid: int, tid: int | None = None, contexts: AbstractSet[int] = AT_WORK
    ) -> CodeLines:
        """Return the lines of a thread, or of all threads of a process, in some contexts."""
        found: Mapping[tuple[int, int, int], LineSums] = self._by_pid.get(pid, {})
        return merge(
            sums.lines()
            for (_, of, context), sums in found.items()
            if context in contexts and tid in (None, of)
        )

    def forget(self, pid: int) -> None:
        """Forget a process that ended."""
        for key in tuple(self._by_pid.get(pid, ())):
            del self._threads[key]
            self._forget_thread(key)

    def _evict(self, key: tuple[int, int, int], sums: LineSums) -> None:
        self.left_out += sums.samples
        self._forget_thread(key)

    def _forget_thread(self, key: tuple[int, int, int]) -> None:
        of_pid = self._by_pid[key[0]]
        del of_pid[key]
        if not of_pid:
            del self._by_pid[key[0]]
