"""
Where in their programs threads were, from intervals that were sent one by one.

Counted time has no stacks. Waits and calls that were sent, with the same state and culprit, show
where such time is spent, and samples show on which lines a thread worked.
"""

# Where a program worked
# ----------------------
#
# Samples show it. Without samples, a thread that lost its CPU was at work right there. If it never
# lost it, the call that ended a gap at least shows for which function the work was done.

from collections import OrderedDict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    GapActivity,
    SampleActivity,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.explain.accounting.time_states import state_of
from otel_gpu.explain.kinds import TimeState
from otel_gpu.limits.recent import Recent
from otel_gpu.state.code_lines import CodeLines, merge
from otel_gpu.state.cpu_samples import AT_WORK, KnownStacks, SampleSums
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.probe_table import API_BY_NUMBER

LAUNCHING = frozenset({wire.CONTEXT_GAP})
"""Where launching threads work: between their calls."""

_MAX_KEYS = 512
_MAX_STACKS = 64
_MAX_ALL = 16_384
_ANY_CULPRIT = 0
_ALL_THREADS = 0
_AFTER_WORK = "call after work"
# A thread that was woken and waits for a CPU is where it waited before.
_WOKEN = {False: "woken between calls", True: "woken in a call"}

Worker = tuple[int, int | None, AbstractSet[int]]
"""pid, tid and contexts of work; a tid of None: all threads of the process."""


class Queued(NamedTuple):
    """
    How a thread came to wait for a CPU.

    Attributes:
        is_preempted: Whether its CPU was taken away; else it was woken.
        api: The number of the call that it was in; 0: none.
    """

    is_preempted: bool
    api: int


_Key = tuple[str, int, bool, int]
"""
State of the budget, pid of the culprit, whether the threads make calls, and the thread.

Entries of one thread have no culprit, and count as of threads that make calls.
"""


@dataclass(slots=True)
class Seen:
    """A stack, how long threads were in it together, and how often."""

    stack: CallStack
    time_ns: int = 0
    count: int = 0


_Keys = dict[_Key, dict[int, Seen]]
_Processes = OrderedDict[int, _Keys]


class CodeLocations:
    """
    Code locations by process, state and culprit; bounded.

    Args:
        max_processes: How many processes are kept, the latest ones.
    """

    def __init__(self, max_processes: int) -> None:
        self._max_processes = max_processes
        self._processes: _Processes = OrderedDict()
        self._older: _Processes = OrderedDict()
        self._size = 0
        # By thread: the end of its latest gap, and its work in it.
        self._gaps: Recent[tuple[int, int], tuple[int, int]] = Recent(max_processes)
        # By thread: how long it waited for a CPU.
        self._queues: Recent[tuple[int, int], dict[Queued, int]] = Recent(max_processes)
        # A window meets the stacks of the one before again.
        self._stacks = KnownStacks()
        self._samples = SampleSums(stacks=self._stacks)
        self._older_samples = SampleSums(stacks=self._stacks)
        self._left_out = 0

    def observe(self, activity: Activity) -> None:
        """Add an activity with a stack."""
        match activity:
            case SampleActivity():
                self._samples.observe(activity)
            case StallActivity():
                self._observe_stall(activity)
            case CallActivity() if activity.stack is not None:
                self._observe_call(activity, activity.stack)
            case GapActivity(event=gap):
                work_ns = gap.end_ktime_ns - gap.start_ktime_ns - gap.blocked_ns - gap.run_queue_ns
                self._gaps[gap.pid, gap.tid] = gap.end_ktime_ns, work_ns
            case _:
                pass

    def observe_work(self, activity: CallActivity) -> None:
        """Note the work before a call, and not the call: what is lost is not in calls."""
        event, stack = activity.event, activity.stack
        gap = self._gaps.pop((event.pid, event.tid), None)
        if gap is not None and stack is not None:
            end_ktime_ns, work_ns = gap
            if end_ktime_ns == event.start_ktime_ns and work_ns > 0:
                self._add(
                    pid=event.pid,
                    state=_AFTER_WORK,
                    culprit_pid=_ANY_CULPRIT,
                    stack=stack,
                    time_ns=work_ns,
                )

    def find(
        self, pid: int, state: str, culprit_pid: int = _ANY_CULPRIT, tid: int = _ALL_THREADS
    ) -> Seen | None:
        """
        Return where the threads of a process lost most time; None: not known.

        Threads that make calls go first: a pool of idle threads waits all the time.

        Args:
            pid: The process.
            state: A state of the budget.
            culprit_pid: The process that kept them waiting; 0: any. If nothing is known of it, any
                counts.
            tid: Only this thread, with any culprit; 0: all.
        """
        names = [
            (state, by, calls, _ALL_THREADS)
            for calls in (True, False)
            for by in (culprit_pid, _ANY_CULPRIT)
        ]
        if tid:
            names = [(state, _ANY_CULPRIT, True, tid)]
        elif state == TimeState.HOST:
            names.append((_AFTER_WORK, _ANY_CULPRIT, True, _ALL_THREADS))
        ages = [keys for age in (self._processes, self._older) if (keys := age.get(pid))]
        found = next((keys[name] for name in names for keys in ages if name in keys), None)
        if found is None:
            return None
        places: dict[Frame | None, Seen] = {}
        for seen in sorted(found.values(), key=lambda seen: -seen.time_ns):
            place = places.setdefault(seen.stack.place, Seen(seen.stack))
            place.time_ns += seen.time_ns
            place.count += seen.count
        return max(places.values(), key=lambda seen: (seen.stack.place is not None, seen.time_ns))

    def queued(self, pid: int, tid: int) -> Mapping[Queued, int]:
        """Return how long a thread waited for a CPU, in nanoseconds, where that was observed."""
        return self._queues.get((pid, tid), {})

    def find_queued(
        self,
        pid: int,
        queued: Mapping[Queued, int],
        culprit_pid: int = _ANY_CULPRIT,
        tid: int = _ALL_THREADS,
    ) -> Seen | None:
        """
        Return where threads were for at least half of their time waiting for a CPU; None: not
        known.

        A woken thread was where it had waited. One that lost its CPU was in its open call, or where
        samples show its work.

        Args:
            pid: The process.
            queued: How long they waited, in nanoseconds.
            culprit_pid: The process that had the CPU; 0: any.
            tid: Only this thread; 0: all that make calls.
        """
        places: dict[Frame | None, Seen] = {}
        for part, time_ns in queued.items():
            found = self._find_part(pid=pid, part=part, culprit_pid=culprit_pid, tid=tid)
            if found is not None:
                place = places.setdefault(found.stack.place, Seen(found.stack))
                place.time_ns += time_ns
                place.count += found.count
        most = max(places.values(), key=lambda seen: seen.time_ns, default=None)
        return most if most and 2 * most.time_ns >= sum(queued.values()) else None

    def _find_part(self, pid: int, part: Queued, culprit_pid: int, tid: int) -> Seen | None:
        if not part.is_preempted:
            return self.find(pid=pid, state=_WOKEN[part.api > 0], culprit_pid=culprit_pid, tid=tid)
        if part.api:
            return self.find(pid, _in_call(part.api))
        lines = self.lines(pid, tid or None, AT_WORK if tid else LAUNCHING)
        first = lines.first
        if first is None or 2 * first.weight_ns < lines.weight_ns:
            return None
        return Seen(first.stack, first.weight_ns, first.samples)

    def lines(
        self, pid: int, tid: int | None = None, contexts: AbstractSet[int] = AT_WORK
    ) -> CodeLines:
        """Return the lines on which a thread, or a whole process, worked in some contexts."""
        return self.lines_of([(pid, tid, contexts)])

    def lines_of(self, workers: Collection[Worker]) -> CodeLines:
        """Return the lines on which several workers, each named once, worked."""
        lines = merge(self._samples.of(*worker) for worker in workers)
        if not lines.samples:
            lines = merge(self._older_samples.of(*worker) for worker in workers)
            lines = lines._replace(is_older=True) if lines.samples else lines
        return lines

    @property
    def left_out(self) -> int:
        """How many samples exceeded the limit."""
        return self._left_out + self._samples.left_out

    def forget(self, pid: int) -> None:
        """Forget a process that ended."""
        self._samples.forget(pid)
        self._older_samples.forget(pid)
        self._size -= _size_of(self._processes.pop(pid, {}))
        self._older.pop(pid, None)
        for threads in (self._gaps, self._queues):
            for thread in [thread for thread in threads if thread[0] == pid]:
                del threads[thread]

    def age(self) -> None:
        """Begin a new window. Locations of the last one count where the new one has none."""
        self._older, self._processes, self._size = self._processes, OrderedDict(), 0
        self._left_out += self._samples.left_out
        self._older_samples, self._samples = self._samples, SampleSums(stacks=self._stacks)

    def _observe_stall(self, activity: StallActivity) -> None:
        event, pid, stack = activity.event, activity.event.pid, activity.stack
        is_preempted = event.switch_type == wire.SWITCH_INVOLUNTARY
        queued_ns = event.end_ktime_ns - event.runnable_ktime_ns
        if queued_ns > 0:
            part = Queued(is_preempted, event.call_api if event.call_start_ktime_ns else 0)
            queued = self._queues.use((pid, event.tid))
            if queued is None:
                queued = self._queues[pid, event.tid] = {}
            queued[part] = queued.get(part, 0) + queued_ns
        if stack is None:
            return
        context = wire.CONTEXT_GAP
        if event.call_start_ktime_ns:
            api = API_BY_NUMBER.get(event.call_api)
            is_synchronize = api is not None and api.family == wire.FAMILY_SYNCHRONIZE
            context = wire.CONTEXT_SYNCHRONIZE if is_synchronize else wire.CONTEXT_CALL
        calls = bool(event.root_start_ktime_ns)
        if queued_ns > 0 and not is_preempted:
            state = _WOKEN[event.call_start_ktime_ns > 0]
            self._add(
                pid=pid,
                state=state,
                culprit_pid=event.culprit_pid,
                stack=stack,
                time_ns=queued_ns,
                calls=calls,
                tid=event.tid,
            )
        elif queued_ns > 0 and context == wire.CONTEXT_GAP:
            # Its length does not matter: it is one sample of what the thread did before.
            self._add(
                pid=pid,
                state=TimeState.HOST,
                culprit_pid=_ANY_CULPRIT,
                stack=stack,
                time_ns=1,
                calls=calls,
            )
        blocked_ns = event.runnable_ktime_ns - event.start_ktime_ns
        if blocked_ns > 0:
            state = state_of(wire.STATE_BLOCKED, context, activity.reason) or TimeState.OTHER
            self._add(
                pid=pid,
                state=state,
                culprit_pid=event.waker_pid,
                stack=stack,
                time_ns=blocked_ns,
                calls=calls,
                tid=event.tid,
            )

    def _observe_call(self, activity: CallActivity, stack: CallStack) -> None:
        event, family = activity.event, activity.api.family
        if event.parent_start_ktime_ns:
            return
        state = TimeState.GPU_WAIT if family == wire.FAMILY_SYNCHRONIZE else TimeState.API
        duration_ns = event.end_ktime_ns - event.start_ktime_ns
        self._add(
            pid=event.pid, state=state, culprit_pid=_ANY_CULPRIT, stack=stack, time_ns=duration_ns
        )
        self._add(
            pid=event.pid,
            state=_in_call(event.api),
            culprit_pid=_ANY_CULPRIT,
            stack=stack,
            time_ns=duration_ns,
        )
        self.observe_work(activity)

    def _add(
        self,
        pid: int,
        state: str,
        culprit_pid: int,
        stack: CallStack,
        time_ns: int,
        *,
        calls: bool = True,
        tid: int = _ALL_THREADS,
    ) -> None:
        keys = self._processes.get(pid)
        if keys is None:
            keys = self._processes[pid] = {}
            while len(self._processes) > self._max_processes or self._size > _MAX_ALL:
                self._size -= _size_of(self._processes.popitem(last=False)[1])
        names: list[_Key] = [(state, _ANY_CULPRIT, calls, _ALL_THREADS)]
        if culprit_pid:
            names.append((state, culprit_pid, calls, _ALL_THREADS))
        if tid:
            names.append((state, _ANY_CULPRIT, True, tid))
        for name in names:
            known = keys.get(name)
            if known is None:
                if len(keys) >= _MAX_KEYS:
                    continue
                known = keys[name] = {}
            # By stack id: hashing a frame takes ten times as long.
            seen = known.get(stack.id)
            if seen is None:
                if len(known) >= _MAX_STACKS:
                    del known[min(known, key=lambda number: known[number].time_ns)]
                    self._size -= 1
                seen = known[stack.id] = Seen(stack)
                self._size += 1
            seen.time_ns += time_ns
            seen.count += 1


def _in_call(api: int) -> str:
    return f"call {api}"


def _size_of(keys: _Keys) -> int:
    return sum(map(len, keys.values()))
