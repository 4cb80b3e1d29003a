"""
Idle causes: why a device did nothing.

A call enqueued the work that ends a gap. What the thread of that call did from the start of the gap
to the call is what the device waited for. The rest of the gap, from the start of the call, is
launch latency. So the time of a gap is divided, and its largest part names it. If the window ends
with a gap, nothing more was launched: it is due to the thread whose steps these are.
"""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from itertools import chain
from operator import sub
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_steps import StepTimePart
from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.host_time import Doing, HostTime
from otel_gpu.state.traces.kernel_kinds import is_migration
from otel_gpu.state.traces.launches import LATENCY_NS, NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace

NOISE_NS: Final = 5_000
"""Shorter gaps are between any two kernels, and summed apart."""
LOADING_NS: Final = 1_000_000
"""A launch with a longer latency loads code, as CUDA and HIP do at the first launch of a kernel."""
_LAUNCHES_KERNELS: Final = re.compile(r"(?:cuda|cu|hip)\w*Launch\w*Kernel\w*")
_LOADS: Final = re.compile(
    r"(?:cu|cuda|hip)(?:ModuleLoad|ModuleGet|LibraryLoad|LibraryGet|KernelGetFunction|GetFuncBySymbol)\w*"
    r"|(?:Runtime Triggered|Lazy) (?:Module|Function) Loading"
)


class IdleCause(StrEnum):
    """What a device waited for."""

    # The one of Enum is a Python function.
    __hash__ = str.__hash__

    DATA_LOADER = StepTimePart.DATA_LOADER
    SYNC = "sync"
    ALLOCATOR = "allocator"
    HOST_OP = "host_op"
    PYTHON = "python"
    HOST_OTHER = "host_other"
    LAUNCH_LATENCY = "launch_latency"
    MODULE_LOADING = "module_loading"
    DEPENDENCY = "dependency"
    NOT_RECORDED = "not_recorded"
    NO_LAUNCH = "no_launch"
    NOISE = "noise"


# Attribute access on an enum takes longer than the rest of the loop, and there are many gaps.
_NOISE: Final = IdleCause.NOISE
_HOST_OTHER: Final = IdleCause.HOST_OTHER
_LAUNCH_LATENCY: Final = IdleCause.LAUNCH_LATENCY
_MODULE_LOADING: Final = IdleCause.MODULE_LOADING
_CAUSES: Final = tuple(IdleCause)
_NUMBERS: Mapping[IdleCause, int] = {cause: number for number, cause in enumerate(IdleCause)}
_OF_DOING: Mapping[int, IdleCause] = {
    Doing.LOADER: IdleCause.DATA_LOADER,
    Doing.SYNCHRONIZE: IdleCause.SYNC,
    Doing.ALLOCATOR: IdleCause.ALLOCATOR,
    Doing.OPERATION: IdleCause.HOST_OP,
    Doing.PYTHON: IdleCause.PYTHON,
    Doing.NOTHING: IdleCause.HOST_OTHER,
}


# Appended at once to columns that are empty for most gaps.
_NO_ROWS: Final = array("i", (NO_ROW,)) * 256


class IdleGap(NamedTuple):
    """
    An interval in which a device did nothing, with its largest cause.

    ``named`` is the row of the host with what its thread did, and ``python`` that of the Python
    function; ``NO_ROW``: not known.
    """

    start_ns: int
    end_ns: int
    cause: IdleCause
    named: int
    python: int

    @property
    def duration_ns(self) -> int:
        """Its length in nanoseconds."""
        return self.end_ns - self.start_ns


class IdleGaps:
    """The gaps of one device as columns, in order; iteration yields each as an ``IdleGap``."""

    __slots__ = (
        "_causes", "_ends_ns", "_launches", "_loads", "_named", "_names", "_pythons", "_starts_ns", "_totals",
    )  # fmt: skip

    def __init__(self, trace: DeviceTrace) -> None:
        # Of the rows of the host; the last one is of NO_ROW.
        self._names = trace.host.names + array("I", (0,))
        self._launches = [_LAUNCHES_KERNELS.fullmatch(name) is not None for name in trace.names]
        self._loads = [_LOADS.fullmatch(name) is not None for name in trace.names]
        self._totals: dict[tuple[int, int, int], int] = {}
        self._starts_ns = array("q")
        self._ends_ns = array("q")
        self._causes = array("b")
        self._named = array("i")
        self._pythons = array("i")

    def __len__(self) -> int:
        return len(self._starts_ns)

    def __iter__(self) -> Iterator[IdleGap]:
        # The last two columns can be longer.
        columns = (self._starts_ns, self._ends_ns, self._causes, self._named, self._pythons)
        for start_ns, end_ns, cause, named, python in zip(*columns, strict=False):
            yield IdleGap(
                start_ns=start_ns, end_ns=end_ns, cause=_CAUSES[cause], named=named, python=python
            )

    def add(self, start_ns: int, end_ns: int, cause: IdleCause) -> int:
        """Add a gap; return its number."""
        number = len(self._starts_ns)
        if number == len(self._named):
            self._named.extend(_NO_ROWS)
            self._pythons.extend(_NO_ROWS)
        self._starts_ns.append(start_ns)
        self._ends_ns.append(end_ns)
        self._causes.append(_NUMBERS[cause])
        return number

    def settle(self, number: int, cause: IdleCause, named: int, python: int) -> None:
        """Set the cause of a gap."""
        self._causes[number] = _NUMBERS[cause]
        self._named[number] = named
        self._pythons[number] = python

    def cause_of(self, doing: int, named: int) -> IdleCause:
        """Return what a device waits for while a thread does something."""
        loads = doing == _OPERATION and self._loads[self._names[named]]
        return _MODULE_LOADING if loads else _OF_DOING[doing]

    def cause_of_launch(self, call: int, time_ns: int) -> IdleCause:
        """Return what a device waits for from a call to the start of its work."""
        loads = time_ns >= LOADING_NS and self._launches[self._names[call]]
        return _MODULE_LOADING if loads else _LAUNCH_LATENCY

    def count(self, cause: IdleCause, named: int, python: int, time_ns: int) -> None:
        """Add time of gaps to a cause, by rows of the host."""
        key = _NUMBERS[cause], self._names[named], self._names[python]
        self._totals[key] = self._totals.get(key, 0) + time_ns

    def by_place(self) -> Mapping[tuple[IdleCause, int, int], int]:
        """
        Return the time by cause and code, in nanoseconds, in order of first occurrence.

        Keys are the cause and the numbers of two names: what the thread did, and its Python
        function.
        """
        return {(_CAUSES[key[0]], *key[1:]): time_ns for key, time_ns in self._totals.items()}

    def longest(self, count: int) -> list[IdleGap]:
        """Return the longest gaps, the longest first."""
        lengths = map(sub, self._ends_ns, self._starts_ns)
        found = nlargest(count, ((length, -number) for number, length in enumerate(lengths)))
        return [self[-number] for _, number in found]

    def __getitem__(self, number: int) -> IdleGap:
        return IdleGap(
            start_ns=self._starts_ns[number],
            end_ns=self._ends_ns[number],
            cause=_CAUSES[self._causes[number]],
            named=self._named[number],
            python=self._pythons[number],
        )

    def by_cause(self) -> Counter[IdleCause]:
        """Return the idle time by cause, in nanoseconds."""
        found: Counter[IdleCause] = Counter()
        for (cause, _, _), time_ns in self._totals.items():
            found[_CAUSES[cause]] += time_ns
        return found


_Question = tuple[int, int, int, int, int]
"""
What did a thread do in an interval? Its start and end, the latency of the launch after it, the
call, and the number of the gap.
"""

_NOTHING: Final = int(Doing.NOTHING)
_OPERATION: Final = int(Doing.OPERATION)

Spent = dict[tuple[int, int, int], int]
"""How long a thread did what, by segments of its time."""

# For page migrations after the last launch.
_NO_MORE: Final = -2

_NO_QUESTION: Final[_Question] = (1 << 63, 1 << 63, 0, NO_ROW, -1)


def find_gaps(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    links: Sequence[int],
    lost: Sequence[int],
    host_time: HostTime,
    thread: int = 0,
) -> IdleGaps:
    """
    Return the gaps of one device, and what their time went to.

    Args:
        trace: The trace of one process.
        timeline: The timeline of the device.
        links: By activity, the call that enqueued it.
        lost: Rows of calls whose work was not recorded.
        host_time: What threads did; it is walked through.
        thread: The thread of the steps, if the window consists of steps.
    """
    host, gaps = trace.host, IdleGaps(trace)
    questions: dict[int, list[_Question]] = {}
    lost_ns = sorted(host.starts_ns[row] for row in lost)
    calls = _calls(trace, timeline, links)
    for start_ns, end_ns, last, following in _bounds(trace, timeline):
        if end_ns - start_ns < NOISE_NS:
            gaps.add(start_ns, end_ns, _NOISE)
            gaps.count(_NOISE, NO_ROW, NO_ROW, end_ns - start_ns)
            continue
        asked_of, call, called_ns, cause = thread, NO_ROW, end_ns, None
        if following != NO_ROW and calls[following] != _NO_MORE:
            call = calls[following]
            cause = _certain(trace=trace, start_ns=start_ns, end_ns=end_ns, call=call)
            if call != NO_ROW:
                asked_of, called_ns = host.threads[call], host.starts_ns[call]
        if lost_ns and cause is not IdleCause.NO_LAUNCH:
            before = links[last] if last != NO_ROW else NO_ROW
            if _was_lost(
                trace=trace, lost_ns=lost_ns, last=before, start_ns=start_ns, called_ns=called_ns
            ):
                cause = IdleCause.NOT_RECORDED
        number = gaps.add(start_ns, end_ns, cause or _HOST_OTHER)
        if cause is None:
            called_ns = min(called_ns, end_ns)
            asked = start_ns, called_ns, end_ns - called_ns, call, number
            questions.setdefault(asked_of, []).append(asked)
            continue
        named = call if cause is _LAUNCH_LATENCY else NO_ROW
        gaps.count(cause, named, NO_ROW, end_ns - start_ns)
        gaps.settle(number, cause, named, NO_ROW)
    _answer_all(host_time, questions, gaps)
    return gaps


def _calls(trace: DeviceTrace, timeline: DeviceTimeline, links: Sequence[int]) -> Sequence[int]:
    # The call that enqueued each activity, or what the device waited for with it. Pages of managed
    # memory move for the work that follows; ``_NO_MORE``: none does.
    if not timeline.migrations:
        return links
    is_moved = [is_migration(name) for name in trace.names]
    calls, call = array("i", links), _NO_MORE
    for row in reversed(timeline.rows):
        if is_moved[trace.activities.names[row]]:
            calls[row] = call
        else:
            call = links[row]
    return calls


def _bounds(trace: DeviceTrace, timeline: DeviceTimeline) -> Iterator[tuple[int, int, int, int]]:
    # Start and end of gaps, and the activities before and after each; ``NO_ROW``: none.
    rows, activities = timeline.rows, trace.activities
    reached_ns, last = timeline.start_ns, NO_ROW
    starts_ns, durations_ns = (
        map(column.__getitem__, rows) for column in (activities.starts_ns, activities.durations_ns)
    )
    for row, start_ns, duration_ns in zip(rows, starts_ns, durations_ns, strict=True):
        if start_ns > reached_ns:
            yield reached_ns, start_ns, last, row
        end_ns = start_ns + duration_ns
        if end_ns > reached_ns or last == NO_ROW:
            reached_ns, last = max(end_ns, reached_ns), row
    if reached_ns < timeline.end_ns:
        yield reached_ns, timeline.end_ns, last, NO_ROW


def _certain(trace: DeviceTrace, start_ns: int, end_ns: int, call: int) -> IdleCause | None:
    # A cause that does not depend on what a thread did; None: it does.
    if call == NO_ROW:
        return IdleCause.NO_LAUNCH
    called_ns = trace.host.starts_ns[call]
    if called_ns > start_ns:
        return None
    returned_ns = called_ns + trace.host.durations_ns[call]
    is_short = end_ns - max(start_ns, returned_ns) <= LATENCY_NS
    return IdleCause.LAUNCH_LATENCY if is_short else IdleCause.DEPENDENCY


def _was_lost(
    trace: DeviceTrace, lost_ns: Sequence[int], last: int, start_ns: int, called_ns: int
) -> bool:
    # Whether unrecorded work was enqueued after the last call.
    after_ns = trace.host.starts_ns[last] if last != NO_ROW else start_ns
    at = bisect_right(lost_ns, after_ns)
    return at < len(lost_ns) and lost_ns[at] < called_ns


def _answer_all(host_time: HostTime, questions: dict[int, list[_Question]], gaps: IdleGaps) -> None:
    for thread in host_time.threads:
        _answer(host_time=host_time, thread=thread, questions=questions.pop(thread, []), gaps=gaps)
    # Nothing was recorded of other threads.
    for asked in chain.from_iterable(questions.values()):
        _settle(asked, {}, gaps)


def _answer(
    host_time: HostTime, thread: int, questions: Sequence[_Question], gaps: IdleGaps
) -> None:
    # Walks through a thread, and settles the gaps that it ended.
    waiting = iter(questions)
    asked = next(waiting, _NO_QUESTION)
    from_ns, to_ns, *_ = asked
    spent: Spent = {}

    def take(start_ns: int, end_ns: int, doing: int, named: int, python: int) -> int:
        nonlocal asked, from_ns, to_ns, spent
        while end_ns > from_ns:
            if to_ns > start_ns:
                key = doing, named, python
                until_ns = to_ns if to_ns < end_ns else end_ns  # noqa: FURB136 -- twice as fast
                since_ns = from_ns if from_ns > start_ns else start_ns  # noqa: FURB136 -- as above
                spent[key] = spent.get(key, 0) + until_ns - since_ns
                if to_ns > end_ns:
                    break
            _settle(asked, spent, gaps)
            asked, spent = next(waiting, _NO_QUESTION), {}
            from_ns, to_ns, *_ = asked
        return from_ns

    host_time.walk(thread, from_ns, take)
    while asked is not _NO_QUESTION:
        _settle(asked, spent, gaps)
        asked, spent = next(waiting, _NO_QUESTION), {}


def _settle(asked: _Question, spent: Spent, gaps: IdleGaps) -> None:
    start_ns, end_ns, rest_ns, call, gap = asked
    nothing_ns = end_ns - start_ns - sum(spent.values())
    for (doing, named, python), time_ns in spent.items():
        gaps.count(gaps.cause_of(doing, named), named, python, time_ns)
    if nothing_ns:
        gaps.count(_HOST_OTHER, NO_ROW, NO_ROW, nothing_ns)
    if rest_ns:
        gaps.count(gaps.cause_of_launch(call, rest_ns), call, NO_ROW, rest_ns)
    if spent:
        longest = max(spent, key=spent.__getitem__)
        # Nearly always: everything else took less.
        if 2 * spent[longest] > end_ns - start_ns and spent[longest] >= rest_ns:
            doing, named, python = longest
            gaps.settle(gap, gaps.cause_of(doing, named), named, python)
            return
    # None: only launch latency.
    totals: dict[int | None, int] = {None: rest_ns, _NOTHING: nothing_ns}
    for (doing, _, _), time_ns in spent.items():
        totals[doing] = totals.get(doing, 0) + time_ns
    # Of equals, the host's work rather than what only follows it.
    most = max(reversed(totals), key=totals.__getitem__)
    if most is None:
        gaps.settle(gap, gaps.cause_of_launch(call, rest_ns), call, NO_ROW)
        return
    longest_ns, place = 0, (NO_ROW, NO_ROW)
    for (doing, named, python), time_ns in spent.items():
        if doing == most and time_ns > longest_ns:
            longest_ns, place = time_ns, (named, python)
    gaps.settle(gap, gaps.cause_of(most, place[0]), *place)
