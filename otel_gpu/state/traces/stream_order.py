"""
Stream order: whether the recorded times of streams are possible.

Work launched to one stream begins in the order of the launches, each when the one before has ended.
The parts of one graph can run at once. Programmatic launches let the next activity begin a little
early, but not one after it. A file that contradicts this has wrong times or streams.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace

OVERLONG: Final = 0.05
"""The largest share of the time of all activities that overlong ones can run over others."""
DISORDERED: Final = 0.01
"""The largest share of launches whose work can begin before that of an earlier launch."""
EARLY_NS: Final = 5_000
"""Work that begins earlier by less than this does not count: clocks are not better."""

_SEVERAL = 2


class StreamOrder(NamedTuple):
    """
    Contradictions in the order of streams.

    Attributes:
        overlapping: Activities that begin before another launch's activity of their stream ends,
            and
          ``overlap_ns`` the sum of these overlaps.
        overlong: Rows that run over several whole activities that were launched apart: their
            durations are
          impossible.
        run_over: The most activities that one of these runs over.
        excess_ns: How long they run on after the next activity of their stream has begun.
        taken_ns: The time of all activities.
        early: Launches whose work begins before that of an earlier launch to the same stream does.
        launches: Launches, once for each stream.
    """

    overlapping: int
    overlap_ns: int
    overlong: frozenset[int]
    run_over: int
    excess_ns: int
    taken_ns: int
    early: int
    launches: int

    @property
    def has_wrong_durations(self) -> bool:
        """Whether wrong durations matter."""
        return self.excess_ns > OVERLONG * self.taken_ns

    @property
    def is_disordered(self) -> bool:
        """Whether so much begins too early that times are unreliable."""
        return self.early > DISORDERED * self.launches


def find_order(trace: DeviceTrace, rows: Sequence[int], links: Sequence[int]) -> StreamOrder:
    """
    Return the contradictions in the order of the streams of one device.

    Args:
        trace: The trace of one process.
        rows: Its activities in order of their starts.
        links: By activity, the call that enqueued it.
    """
    activities = trace.activities
    streams: dict[int, array[int]] = {}
    for row in rows:
        if activities.streams[row] >= 0:
            streams.setdefault(activities.streams[row], array("i")).append(row)
    overlapping = overlap_ns = most = excess_ns = early = launches = 0
    overlong: set[int] = set()
    for stream in streams.values():
        count, time_ns, covered = _overlaps(trace, stream)
        overlapping, overlap_ns = overlapping + count, overlap_ns + time_ns
        for row, (times, over_ns) in covered.items():
            if times >= _SEVERAL:
                overlong.add(row)
                most, excess_ns = max(most, times), excess_ns + over_ns
        begun = list(_begun(trace, stream, links))
        called_ns = [one[1] for one in begun]
        # Nearly always all work begins in the order of its calls.
        if called_ns != sorted(called_ns):
            early += _early(begun)
        launches += len(begun)
    durations_ns = activities.durations_ns
    taken_ns = sum(map(durations_ns.__getitem__, rows))
    return StreamOrder(
        overlapping=overlapping,
        overlap_ns=overlap_ns,
        overlong=frozenset(overlong),
        run_over=most,
        excess_ns=excess_ns,
        taken_ns=taken_ns,
        early=early,
        launches=launches,
    )


def _overlaps(
    trace: DeviceTrace, stream: Sequence[int]
) -> tuple[int, int, dict[int, tuple[int, int]]]:
    # How many overlap and for how long; and by row, how many it runs over and how long.
    activities = trace.activities
    starts_ns, durations_ns = activities.starts_ns, activities.durations_ns
    correlations = activities.correlations
    count = time_ns = reached_ns = 0
    covered: dict[int, tuple[int, int]] = {}
    longest, last_ns = NO_ROW, -1
    for row in stream:
        start_ns = starts_ns[row]
        end_ns = start_ns + durations_ns[row]
        if start_ns < reached_ns and start_ns > last_ns:
            launch = correlations[row]
            if not launch or launch != correlations[longest]:
                count += 1
                time_ns += min(end_ns, reached_ns) - start_ns
                times, over_ns = covered.get(longest, (0, reached_ns - start_ns))
                # Work that took no time proves nothing: rounding decides where it lies.
                covered[longest] = times + (start_ns < end_ns <= reached_ns), over_ns
        if end_ns > reached_ns:
            reached_ns, longest, last_ns = end_ns, row, start_ns
    return count, time_ns, covered


def _begun(
    trace: DeviceTrace, stream: Sequence[int], links: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    # When the first work of each call began, and when the call began and returned.
    host, starts_ns = trace.host, trace.activities.starts_ns
    seen = {NO_ROW}
    for row in stream:
        call = links[row]
        if call not in seen:
            seen.add(call)
            called_ns = host.starts_ns[call]
            yield starts_ns[row], called_ns, called_ns + host.durations_ns[call]


def _early(begun: Sequence[tuple[int, int, int]]) -> int:
    # How many begin before work that was launched before their call began.
    count, later = 0, len(begun) - 1
    # Of those that begin later, when the first call returned.
    returned_ns = 1 << 63
    for start_ns, called_ns, _ in reversed(begun):
        while begun[later][0] >= start_ns + EARLY_NS:
            returned_ns = min(returned_ns, begun[later][2])
            later -= 1
        count += returned_ns < called_ns
    return count
