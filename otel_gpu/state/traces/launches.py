"""Launches: which call enqueued the work of a device, with which delay and queue."""

import re
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_gpu.state.traces.interval_sets import union
from otel_gpu.wire.device_activity import DeviceTrace, HostWork

NO_ROW: Final = -1
GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)GraphLaunch\w*")
LATENCY_NS: Final = 30_000
"""The most that a launch takes to reach an idle device; HolisticTraceAnalysis' figure."""
QUEUE_LIMIT: Final = 1_024
"""Launches that a stream of CUDA holds; one more waits in its call."""


class Launches(NamedTuple):
    """
    Calls that enqueued work; a call that launches a graph counts once, as its first kernel does.

    Attributes:
        linked: Calls with recorded work.
        graphs: Those of them that launched a graph.
        delays_ns: From the end of the call to the start of its work, in order of the work.
        early: Calls whose work seems to begin before they do: the clocks do not agree.
        shorter: Calls that took longer than all of their work.
        most_queued: The longest queue of a stream.
        full_ns: How long the queue of any stream was full.
    """

    linked: int
    graphs: int
    delays_ns: "array[int]"
    early: int
    shorter: int
    most_queued: int
    full_ns: int

    @property
    def median_delay_ns(self) -> int | None:
        """The median delay; None: no delays."""
        return sorted(self.delays_ns)[len(self.delays_ns) // 2] if self.delays_ns else None


def link(trace: DeviceTrace) -> "array[int]":
    """Return the row of the call that enqueued each activity; ``NO_ROW``: not known."""
    host, activities, call = trace.host, trace.activities, int(HostWork.CALL)
    calls = {
        correlation: row
        for row, (correlation, kind) in enumerate(zip(host.correlations, host.kinds, strict=True))
        if correlation and kind == call
    }
    return array("i", (calls.get(one, NO_ROW) for one in activities.correlations))


def without_work(trace: DeviceTrace, rows: Sequence[int]) -> "array[int]":
    """Return those rows of calls whose work was not recorded."""
    kinds, correlations, call = trace.host.kinds, trace.host.correlations, int(HostWork.CALL)
    done = set(trace.activities.correlations)
    return array(
        "i",
        (
            row
            for row in rows
            if (correlation := correlations[row]) and correlation not in done and kinds[row] == call
        ),
    )


def measure(trace: DeviceTrace, rows: Sequence[int], links: Sequence[int]) -> Launches:
    """Return how work was enqueued; ``rows`` are of one device, by start."""
    activities, host = trace.activities, trace.host
    delays_ns = array("q")
    early = 0
    enqueued: dict[int, tuple[list[int], list[int]]] = {}
    # By call, how much longer its work took.
    longer_ns: dict[int, int] = {}
    durations_ns = activities.durations_ns
    for row in rows:
        call = links[row]
        if call == NO_ROW:
            continue
        called_ns, taken_ns = host.starts_ns[call], host.durations_ns[call]
        if call in longer_ns:
            longer_ns[call] += durations_ns[row]
            continue
        longer_ns[call] = durations_ns[row] - taken_ns
        start_ns = activities.starts_ns[row]
        if start_ns < called_ns:
            early += 1
        delay_ns = start_ns - called_ns - taken_ns
        delays_ns.append(delay_ns if delay_ns > 0 else 0)  # noqa: FURB136 -- twice as fast
        stream = activities.streams[row]
        of_stream = enqueued.get(stream)
        if of_stream is None:
            of_stream = enqueued[stream] = [], []
        of_stream[0].append(called_ns)
        of_stream[1].append(start_ns)
    most = full_ns = 0
    for calls, starts in enqueued.values():
        length, full = _queue(sorted(calls), starts)
        most, full_ns = max(most, length), max(full_ns, full)
    is_graph = [GRAPH_LAUNCH.fullmatch(name) is not None for name in trace.names]
    graphs = sum(is_graph[host.names[call]] for call in longer_ns)
    shorter = sum(more_ns < 0 for more_ns in longer_ns.values())
    return Launches(
        linked=len(longer_ns),
        graphs=graphs,
        delays_ns=delays_ns,
        early=early,
        shorter=shorter,
        most_queued=most,
        full_ns=full_ns,
    )


def _queue(calls: Sequence[int], starts: Sequence[int]) -> tuple[int, int]:
    # The greatest length of a queue, and how long it was full.
    most = begun = 0
    for enqueued, call_ns in enumerate(calls, 1):
        # Work that begins while another is enqueued leaves first.
        while begun < len(starts) and starts[begun] <= call_ns:
            begun += 1
        if enqueued - begun > most:  # noqa: PLR1730 -- max() takes as long as all else
            most = enqueued - begun
    # From the call that fills it to the start that frees an entry.
    full = union(zip(calls[QUEUE_LIMIT - 1 :], starts, strict=False))
    return most, full.length_ns
