"""
The critical path of a window: what it could not be shorter without.

The path is walked from the end backwards, from each event to what it waited for, so its segments
cover the whole window. Work of a device waited for its launch, if the stream was idle when it was
launched, and else for the work before it on its stream. A call that waits for the device waited for
the work that ended last before it returned. A thread waited for what it did before, and where it
did nothing, for the thread that did something last.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.host_time import HostTime
from otel_gpu.state.traces.launches import LATENCY_NS, NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace, HostWork, Work

MAX_ROWS: Final = 200_000
"""Rows of host and device in a window; longer ones have no path."""


NO_THREAD: Final = -1


class PathBound(StrEnum):
    """What a segment of a path is: time of the host, of a device, or between the two."""

    # The one of Enum is a Python function.
    __hash__ = str.__hash__

    OPERATOR = "operator"
    CALL = "call"
    KERNEL = "kernel"
    LAUNCH = "launch"
    QUEUE = "queue"
    SYNC = "sync"
    UNKNOWN = "unknown"


class PathSegment(NamedTuple):
    """
    A segment of a path; ``row`` is of the device for work and queues, and else of the host.

    A ``LAUNCH`` begins with its call, and ends with the work that waited for it. A ``SYNC`` is from
    the end of the work to that of the call, or all of a call if that work is not known.
    """

    bound: PathBound
    row: int
    start_ns: int
    end_ns: int


class PathPart(NamedTuple):
    """All segments of one bound and name."""

    bound: PathBound
    name: str
    times: int
    time_ns: int


class CriticalPath(NamedTuple):
    """The parts of a path, the longest first; they cover the window."""

    start_ns: int
    end_ns: int
    parts: tuple[PathPart, ...]


def find_critical_path(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    links: Sequence[int],
    host_time: HostTime,
    start_ns: int,
    end_ns: int,
) -> CriticalPath | None:
    """Return the path of a window of one device and all threads; None: too many rows."""
    walk = Walk(
        trace=trace,
        timeline=timeline,
        links=links,
        host_time=host_time,
        start_ns=start_ns,
        end_ns=end_ns,
    )
    if walk.rows > MAX_ROWS:
        return None
    found: dict[tuple[PathBound, int], list[int]] = {}
    names_of = {
        bound: trace.activities.names if bound in _OF_DEVICE else trace.host.names
        for bound in PathBound
    }
    for bound, row, from_ns, to_ns in walk.segments():
        key = bound, 0 if row == NO_ROW else names_of[bound][row]
        part = found.get(key)
        if part is None:
            part = found[key] = [0, 0]
        part[0] += 1
        part[1] += to_ns - from_ns
    parts = [PathPart(bound, trace.names[name], *sums) for (bound, name), sums in found.items()]
    return CriticalPath(start_ns, end_ns, tuple(sorted(parts, key=lambda part: -part.time_ns)))


# Attribute access on an enum takes as long as a step of the walk.
_OPERATOR, _CALL, _KERNEL, _LAUNCH, _QUEUE, _SYNC, _UNKNOWN = PathBound
_CALLED, _ANNOTATED, _COPIED = int(HostWork.CALL), int(HostWork.ANNOTATION), int(Work.COPY)
_OF_DEVICE = frozenset({_KERNEL, _QUEUE})
_END_NS: Final = 1 << 63
# As PathSegment itself does it, in half the time.
_new_segment: Final = tuple.__new__


class _Line:
    # The innermost row of a thread over time; segments do not overlap.

    def __init__(self, trace: DeviceTrace, rows: Sequence[int]) -> None:
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []
        self.rows: list[int] = []
        starts_ns, durations_ns = trace.host.starts_ns, trace.host.durations_ns
        open_: list[tuple[int, int]] = []
        at_ns = 0
        for row in chain(rows, (NO_ROW,)):
            start_ns = _END_NS if row == NO_ROW else starts_ns[row]
            while open_ and open_[-1][0] <= start_ns:
                end_ns, inner = open_.pop()
                if end_ns > at_ns:
                    self._add(at_ns, end_ns, inner)
                    at_ns = end_ns
            if row == NO_ROW:
                return
            end_ns = start_ns + durations_ns[row]
            if open_:
                around_ns, inner = open_[-1]
                if start_ns > at_ns:
                    self._add(at_ns, start_ns, inner)
                end_ns = min(end_ns, around_ns)
            at_ns = start_ns
            open_.append((end_ns, row))

    def before(self, at_ns: int) -> tuple[int, int, int]:
        # Start, end and row of the last segment that begins before a time; -1: none.
        found = bisect_left(self.starts_ns, at_ns) - 1
        if found < 0:
            return -1, -1, NO_ROW
        return self.starts_ns[found], self.ends_ns[found], self.rows[found]

    def _add(self, start_ns: int, end_ns: int, row: int) -> None:
        self.starts_ns.append(start_ns)
        self.ends_ns.append(end_ns)
        self.rows.append(row)


class Walk:
    """
    The walk over a window, from its end backwards.

    Attributes:
        rows: Rows of host and device in it; more than ``MAX_ROWS`` cannot be walked over.
    """

    def __init__(
        self,
        trace: DeviceTrace,
        timeline: DeviceTimeline,
        links: Sequence[int],
        host_time: HostTime,
        start_ns: int,
        end_ns: int,
    ) -> None:
        self._trace, self._links, self._host_time = trace, links, host_time
        self._start_ns, self._end_ns = start_ns, end_ns
        start_of = trace.activities.starts_ns.__getitem__
        first = bisect_left(timeline.rows, start_ns, key=start_of)
        last = bisect_left(timeline.rows, end_ns, lo=first, key=start_of)
        work = timeline.rows[first:last]
        rows = {
            thread: host_time.rows_within(thread, start_ns, end_ns) for thread in host_time.threads
        }
        self.rows = len(work) + sum(map(len, rows.values()))
        if self.rows > MAX_ROWS:
            return
        kinds = trace.host.kinds
        # What threads did, and the program's annotations where they did nothing.
        self._lines: dict[int, _Line] = {}
        self._named: dict[int, _Line] = {}
        for thread, found in rows.items():
            marked = [row for row in found if kinds[row] in _MARKS and not host_time.is_mark(row)]
            done = [row for row in marked if kinds[row] != _ANNOTATED]
            self._lines[thread] = _Line(trace, done)
            self._named[thread] = self._lines[thread]
            if len(marked) > len(done):
                self._named[thread] = _Line(trace, marked)
        self._before: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        streams: dict[int, int] = {}
        for row in work:
            stream = trace.activities.streams[row]
            self._before[row] = streams.get(stream, NO_ROW)
            streams[stream] = row
            if trace.activities.kinds[row] == _COPIED:
                self._copies[links[row]] = row
        # Nothing waited for work that took no time.
        durations_ns = trace.activities.durations_ns
        self._by_end = sorted((row for row in work if durations_ns[row]), key=self._end_of)
        self._ends_ns = [self._end_of(row) for row in self._by_end]

    def segments(self) -> Iterator[PathSegment]:
        """Yield the segments, the last one first; they cover the window."""
        begin_ns, at_ns = self._start_ns, self._end_ns
        work, thread = NO_ROW, NO_THREAD
        while at_ns > begin_ns:
            if work != NO_ROW:
                steps, work, thread = self._of_work(work, at_ns)
            elif thread != NO_THREAD:
                steps, work, thread = self._of_thread(thread, at_ns)
            else:
                steps, work, thread = self._of_no_thread(at_ns)
            for bound, row, from_ns in steps:
                start_ns = from_ns if from_ns > begin_ns else begin_ns  # noqa: FURB136 -- twice as fast
                if start_ns < at_ns:
                    yield _new_segment(PathSegment, (bound, row, start_ns, at_ns))
                    at_ns = start_ns

    def _of_work(self, work: int, at_ns: int) -> "_Steps":
        # Over work, and from its start to what it waited for.
        host, start_ns = self._trace.host, self._trace.activities.starts_ns[work]
        done = (_KERNEL, work, start_ns)
        call, before = self._links[work], self._before[work]
        called_ns = host.starts_ns[call] if call != NO_ROW else -1
        free_ns = self._end_of(before) if before != NO_ROW else -1
        if start_ns - max(called_ns, free_ns) > LATENCY_NS:
            # It waited for another stream, or a peer.
            other = self._ended_by(min(start_ns, at_ns))
            if other != NO_ROW and self._end_of(other) > max(called_ns, free_ns):
                before, free_ns = other, self._end_of(other)
        if call != NO_ROW and free_ns < called_ns:
            return [done, (_LAUNCH, call, called_ns)], NO_ROW, host.threads[call]
        if before == NO_ROW:
            return [done], NO_ROW, NO_THREAD
        return [done, (_QUEUE, before, free_ns)], before, NO_THREAD

    def _of_thread(self, thread: int, at_ns: int) -> "_Steps":
        # Over what a thread did last, or to another thread if it did nothing for long.
        start_ns, end_ns, row = self._lines[thread].before(at_ns)
        if end_ns < at_ns:
            if at_ns - end_ns > LATENCY_NS:
                thread = max(
                    self._lines, key=lambda one: (self._reached(one, at_ns), one == thread)
                )
            reached_ns = self._reached(thread, at_ns)
            if reached_ns == at_ns:
                return [], NO_ROW, thread
            return [self._of_nothing(thread, reached_ns, at_ns)], NO_ROW, thread
        host = self._trace.host
        if host.kinds[row] != _CALLED:
            return [(_OPERATOR, row, start_ns)], NO_ROW, thread
        waited = self._copies.get(row, NO_ROW)
        is_wait = self._host_time.is_wait(row)
        if is_wait:
            waited = self._ended_by(at_ns)
        if waited != NO_ROW and host.starts_ns[row] < self._end_of(waited) <= at_ns:
            return [(_SYNC, row, self._end_of(waited))], waited, NO_THREAD
        # What it waited for can be unrecorded.
        return [(_SYNC if is_wait else _CALL, row, start_ns)], NO_ROW, thread

    def _of_no_thread(self, at_ns: int) -> "_Steps":
        # Finds what ended last.
        work = self._ended_by(at_ns)
        done_ns = self._end_of(work) if work != NO_ROW else -1
        thread = max(self._lines, key=lambda one: self._reached(one, at_ns), default=NO_THREAD)
        reached_ns = self._reached(thread, at_ns) if thread != NO_THREAD else -1
        if max(done_ns, reached_ns) <= self._start_ns:
            return [(_UNKNOWN, NO_ROW, self._start_ns)], NO_ROW, NO_THREAD
        if done_ns >= reached_ns:
            return [(_UNKNOWN, NO_ROW, done_ns)], work, NO_THREAD
        return [(_UNKNOWN, NO_ROW, reached_ns)], NO_ROW, thread

    def _of_nothing(self, thread: int, reached_ns: int, at_ns: int) -> "_Step":
        # Names an interval without recorded activity of a thread by the program's annotation.
        start_ns, end_ns, row = self._named[thread].before(at_ns)
        if end_ns >= at_ns:
            return _OPERATOR, row, max(start_ns, reached_ns)
        return _UNKNOWN, NO_ROW, max(end_ns, reached_ns)

    def _reached(self, thread: int, at_ns: int) -> int:
        return min(at_ns, self._lines[thread].before(at_ns)[1])

    def _end_of(self, work: int) -> int:
        activities = self._trace.activities
        return activities.starts_ns[work] + activities.durations_ns[work]

    def _ended_by(self, at_ns: int) -> int:
        found = bisect_right(self._ends_ns, at_ns) - 1
        return self._by_end[found] if found >= 0 else NO_ROW


_Step = tuple[PathBound, int, int]
_Steps = tuple[list[_Step], int, int]
_MARKS = frozenset({HostWork.OPERATION, HostWork.CALL, _ANNOTATED})
