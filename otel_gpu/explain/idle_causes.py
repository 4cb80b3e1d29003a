"""
Why a device did nothing: each gap has one cause.

What ends a gap was enqueued by a call. What the thread of that call did from the beginning of the
gap to the call is what the device waited for; what it did longest names the gap. What is left of
the gap after the call began is the latency of the launch.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu.decode.device import DeviceTrace
from otel_gpu.ledger.device_time import Timeline
from otel_gpu.ledger.host_time import Doing, HostTime
from otel_gpu.ledger.launches import NO_ROW

NOISE_NS: Final = 5_000
"""Shorter gaps are between any two kernels, and summed apart."""
LATENCY_NS: Final = 30_000
"""What a launch takes to reach an idle device, at most; HolisticTraceAnalysis' figure."""


class IdleCause(StrEnum):
    """What a device waited for."""

    DATA_LOADER = "data_loader"
    SYNC = "sync"
    ALLOCATOR = "allocator"
    HOST_OP = "host_op"
    PYTHON = "python"
    HOST_OTHER = "host_other"
    LAUNCH_LATENCY = "launch_latency"
    DEPENDENCY = "dependency"
    NOT_RECORDED = "not_recorded"
    NO_LAUNCH = "no_launch"
    NOISE = "noise"


_CAUSES: Final = tuple(IdleCause)
_OF_DOING: Mapping[int, IdleCause] = {
    Doing.LOADER: IdleCause.DATA_LOADER,
    Doing.SYNCHRONIZE: IdleCause.SYNC,
    Doing.ALLOCATOR: IdleCause.ALLOCATOR,
    Doing.OPERATION: IdleCause.HOST_OP,
    Doing.PYTHON: IdleCause.PYTHON,
    Doing.NOTHING: IdleCause.HOST_OTHER,
}


class Gap(NamedTuple):
    """
    A stretch in which a device did nothing.

    ``named`` is the row of the host that says what its thread did, and ``python`` the function of
    Python that did it; ``NO_ROW``: not known.
    """

    start_ns: int
    end_ns: int
    cause: IdleCause
    named: int
    python: int

    @property
    def duration_ns(self) -> int:
        """How long it was."""
        return self.end_ns - self.start_ns


class Gaps:
    """The gaps of one device as columns, in order; iterating yields each as a ``Gap``."""

    __slots__ = ("_causes", "_ends_ns", "_named", "_pythons", "_starts_ns")

    def __init__(self) -> None:
        self._starts_ns = array("q")
        self._ends_ns = array("q")
        self._causes = array("b")
        self._named = array("i")
        self._pythons = array("i")

    def __len__(self) -> int:
        return len(self._starts_ns)

    def __iter__(self) -> Iterator[Gap]:
        columns = (self._starts_ns, self._ends_ns, self._causes, self._named, self._pythons)
        for start_ns, end_ns, cause, named, python in zip(*columns, strict=True):
            yield Gap(start_ns, end_ns, _CAUSES[cause], named, python)

    def add(self, gap: Gap) -> int:
        """Add one; returns its number."""
        self._starts_ns.append(gap.start_ns)
        self._ends_ns.append(gap.end_ns)
        self._causes.append(_CAUSES.index(gap.cause))
        self._named.append(gap.named)
        self._pythons.append(gap.python)
        return len(self._starts_ns) - 1

    def settle(self, number: int, cause: IdleCause, named: int, python: int) -> None:
        """Say what one was due to."""
        self._causes[number] = _CAUSES.index(cause)
        self._named[number] = named
        self._pythons[number] = python

    def by_cause(self) -> Counter[IdleCause]:
        """Return how long the device waited for what, in nanoseconds."""
        found: Counter[IdleCause] = Counter()
        for start_ns, end_ns, cause in zip(
            self._starts_ns, self._ends_ns, self._causes, strict=True
        ):
            found[_CAUSES[cause]] += end_ns - start_ns
        return found


class _Question(NamedTuple):
    """What did a thread do in a stretch? ``rest_ns`` is the launch that followed."""

    start_ns: int
    end_ns: int
    rest_ns: int
    gap: int


def find_gaps(
    trace: DeviceTrace,
    timeline: Timeline,
    links: Sequence[int],
    lost: Sequence[int],
    host_time: HostTime,
) -> Gaps:
    """
    Return the gaps of one device, each with its cause.

    Args:
        trace: Of one process.
        timeline: Of the device.
        links: By activity, the call that enqueued it.
        lost: Rows of calls whose work was not recorded.
        host_time: What threads did; they are walked through.
    """
    host, gaps = trace.host, Gaps()
    questions: dict[int, list[_Question]] = {}
    lost_ns = sorted(host.starts_ns[row] for row in lost)
    for start_ns, end_ns, last, following in _bounds(trace, timeline):
        call = links[following]
        cause = _certain(trace, start_ns, end_ns, call)
        if cause is not IdleCause.NOISE and _was_lost(trace, lost_ns, links[last], call, start_ns):
            cause = IdleCause.NOT_RECORDED
        number = gaps.add(Gap(start_ns, end_ns, cause or IdleCause.HOST_OTHER, NO_ROW, NO_ROW))
        if cause is None:
            called_ns = min(host.starts_ns[call], end_ns)
            asked = _Question(start_ns, called_ns, end_ns - called_ns, number)
            questions.setdefault(host.threads[call], []).append(asked)
    for thread in host_time.threads:
        _answer(host_time, thread, questions.get(thread, []), gaps)
    return gaps


def _bounds(trace: DeviceTrace, timeline: Timeline) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and end of gaps, and the activities before and after each."""
    activities = trace.activities
    reached_ns, last = timeline.start_ns, timeline.rows[0] if timeline.rows else 0
    for row in timeline.rows:
        start_ns = activities.starts_ns[row]
        if start_ns > reached_ns:
            yield reached_ns, start_ns, last, row
        end_ns = start_ns + activities.durations_ns[row]
        if end_ns > reached_ns or row == last:
            reached_ns, last = end_ns, row


def _certain(trace: DeviceTrace, start_ns: int, end_ns: int, call: int) -> IdleCause | None:
    """Return the cause of a gap that does not depend on what a thread did; None: it does."""
    if end_ns - start_ns < NOISE_NS:
        return IdleCause.NOISE
    if call == NO_ROW:
        return IdleCause.NO_LAUNCH
    called_ns = trace.host.starts_ns[call]
    if called_ns > start_ns:
        return None
    returned_ns = called_ns + trace.host.durations_ns[call]
    is_short = end_ns - max(start_ns, returned_ns) <= LATENCY_NS
    return IdleCause.LAUNCH_LATENCY if is_short else IdleCause.DEPENDENCY


def _was_lost(
    trace: DeviceTrace, lost_ns: Sequence[int], last: int, call: int, start_ns: int
) -> bool:
    """Say whether something was enqueued between two calls of which nothing was recorded."""
    if not lost_ns or call == NO_ROW:
        return False
    after_ns = trace.host.starts_ns[last] if last != NO_ROW else start_ns
    at = bisect_right(lost_ns, after_ns)
    return at < len(lost_ns) and lost_ns[at] < trace.host.starts_ns[call]


def _answer(host_time: HostTime, thread: int, questions: Sequence[_Question], gaps: Gaps) -> None:
    """Walk through a thread, and settle the gaps that it ended."""
    waiting = iter(questions)
    asked = next(waiting, None)
    spent: dict[tuple[Doing, int, int], int] = {}
    for segment in host_time.walk(thread):
        while asked is not None and asked.end_ns <= segment.start_ns:
            _settle(asked, spent, gaps)
            asked, spent = next(waiting, None), {}
        while asked is not None and asked.start_ns < segment.end_ns:
            overlap_ns = min(asked.end_ns, segment.end_ns) - max(asked.start_ns, segment.start_ns)
            if overlap_ns > 0:
                key = segment.doing, segment.named, segment.python
                spent[key] = spent.get(key, 0) + overlap_ns
            if asked.end_ns > segment.end_ns:
                break
            _settle(asked, spent, gaps)
            asked, spent = next(waiting, None), {}
    while asked is not None:
        _settle(asked, spent, gaps)
        asked, spent = next(waiting, None), {}


def _settle(asked: _Question, spent: Mapping[tuple[Doing, int, int], int], gaps: Gaps) -> None:
    totals: Counter[IdleCause] = Counter({IdleCause.LAUNCH_LATENCY: asked.rest_ns})
    longest: dict[IdleCause, tuple[int, int, int]] = {}
    for (doing, named, python), time_ns in spent.items():
        cause = _OF_DOING[doing]
        totals[cause] += time_ns
        longest[cause] = max(longest.get(cause, (0, NO_ROW, NO_ROW)), (time_ns, named, python))
    untraced_ns = asked.end_ns - asked.start_ns - sum(spent.values())
    totals[IdleCause.HOST_OTHER] += untraced_ns
    cause = max(_CAUSES, key=lambda one: totals[one])
    _, named, python = longest.get(cause, (0, NO_ROW, NO_ROW))
    gaps.settle(asked.gap, cause, named, python)
