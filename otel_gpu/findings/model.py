"""
The nouns of a report: what a capture adds up to.

All immutable. Times are nanoseconds. A report is about a window of a capture; what is
not known about it is said in its ``notes``.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Chain, Culprit, Incident, Verdict


class Window(NamedTuple):
    """A part of a capture; None where it is open."""

    start_unix_ns: int | None = None
    end_unix_ns: int | None = None

    def overlaps(self, start_unix_ns: int, end_unix_ns: int) -> bool:
        """Whether something that took this long touches the window."""
        if self.start_unix_ns is not None and end_unix_ns < self.start_unix_ns:
            return False
        return self.end_unix_ns is None or start_unix_ns <= self.end_unix_ns


class ApiRow(NamedTuple):
    """
    All calls of one API by one process image, also those inside other calls.

    Percentiles are read from the kernel's buckets; NaN where there are none. All else is
    exact.
    """

    process: ProcessImage
    api: str
    layer: str
    calls: int
    errors: int
    p50_ns: float
    p99_ns: float
    max_ns: float
    sum_ns: int
    size_bytes: int


class Memory(NamedTuple):
    """Device memory that one process asked for and gave back, by successful calls."""

    process: ProcessImage
    allocations: int
    allocated_bytes: int
    frees: int
    freed_bytes: int


class OffCpu(NamedTuple):
    """
    Time that threads of a process did not run, for one reason.

    ``context`` is an enumerator of ``bpf/events.h``; ``reason`` is empty for the run
    queue.
    """

    process: ProcessImage
    context: int
    state: int
    reason: str
    time_ns: int
    times: int


class Blame(NamedTuple):
    """Time that one culprit cost the effects of one process, in one way."""

    process: ProcessImage
    culprit: Culprit
    kind: str
    time_ns: int
    effects: int


class Throttled(NamedTuple):
    """How long the CPU quota of a cgroup held its threads back."""

    cgroup: str
    throttled_ns: int
    throttled_periods: int
    periods: int


class Load(NamedTuple):
    """
    What the host said of its load: context, never a cause.

    ``stalled`` is by resource the share of time in which some thread of the host waited
    for it.
    """

    most_load: float
    cpus: int
    stalled: Mapping[str, float]
    swapped_in_pages: int
    swapped_out_pages: int
    throttled: tuple[Throttled, ...]


class Slot(NamedTuple):
    """What happened in one stretch of the window; ``process`` is None for all together."""

    process: ProcessImage | None
    start_unix_ns: int
    end_unix_ns: int
    calls: float
    call_ns: float
    synchronize_ns: float
    allocate_calls: float
    allocate_ns: float
    run_queue_ns: float
    lost_ns: float


class Report(NamedTuple):
    """
    Everything that a reader is told, ready to be written as text or as a document.

    ``incidents`` are in order of lost time, ``chains`` in order of time. ``slots`` holds
    rows for all processes together, then for each.
    """

    source: str
    start_unix_ns: int
    end_unix_ns: int
    processes: tuple[ProcessImage, ...]
    verdicts: tuple[Verdict, ...]
    apis: tuple[ApiRow, ...]
    memory: tuple[Memory, ...]
    incidents: tuple[Incident, ...]
    chains: tuple[Chain, ...]
    blames: tuple[Blame, ...]
    off_cpu: tuple[OffCpu, ...]
    slots: tuple[Slot, ...]
    load: Load | None
    losses: Mapping[str, int]
    notes: tuple[str, ...]
