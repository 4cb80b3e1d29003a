"""
Events that wait until their process has its final names.

Backends aggregate by resource, so a process must not change its own after anything of it has been
sent. Its first records often come before its names, which are read from /proc a moment later. So
they wait for those, for the end of the process, or for ``PATIENCE_NS`` of the stream's time. No
clock is read, so a replay uses the names of the capture.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from otel_gpu.enrich.blocks import BlocksRead, Failed
from otel_gpu.enrich.communicators import CommunicatorRead
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.identity.services import UNKNOWN_SERVICE
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import CpuSample, CudaCall, Fork, Gap, OpenCall, Stall
from otel_gpu.wire.marks import Range, Step
from otel_gpu.wire.readings import Aggregate, SeriesKey

PATIENCE_NS = 3_000_000_000
"""Longer than the agent takes to look a process up, and shorter than chains wait for effects."""
NAMELESS_PATIENCE_NS = 60_000_000_000
"""For a process that is known by its series only: the first record that is sent names it."""
_HELD_BYTES = 900
MAX_HELD = 8192
"""Events and series that wait, of all processes."""

Waiting = (
    BlocksRead
    | CommunicatorRead
    | CpuSample
    | CudaCall
    | DeviceFault
    | Failed
    | Fork
    | Gap
    | OpenCall
    | Range
    | Stall
    | Step
)


@dataclass(slots=True)
class PendingProgram:
    """
    What waits for the name of one program.

    ``series`` holds the latest value of each; ``has_times``: thread times were read as well.
    """

    since_ktime_ns: int
    events: list[Waiting] = field(default_factory=list)
    series: dict[SeriesKey, Aggregate] = field(default_factory=dict)
    has_times: bool = False


class PendingEvents:
    """Programs with pending events, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._by_program: dict[ProcessKey, PendingProgram] = {}
        self._held = 0
        CACHES.register("pending_events", self, "_by_program", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        return _HELD_BYTES * self._held

    def __iter__(self) -> Iterator[ProcessKey]:
        return iter(tuple(self._by_program))

    def __contains__(self, program: ProcessKey) -> bool:
        return program in self._by_program

    def hold(self, program: ProcessKey, event: Waiting, ktime_ns: int) -> None:
        """Add an event that waits; ``ktime_ns`` is the time of the stream."""
        self._pending(program, ktime_ns).events.append(event)
        self._held += 1

    def hold_series(
        self, program: ProcessKey, key: SeriesKey, aggregate: Aggregate, ktime_ns: int
    ) -> None:
        """Add a series that waits; it replaces its earlier value."""
        series = self._pending(program, ktime_ns).series
        self._held += key not in series
        series[key] = aggregate

    def hold_times(self, program: ProcessKey, ktime_ns: int) -> None:
        """Note that the times of a program wait."""
        self._pending(program, ktime_ns).has_times = True

    def take(self, program: ProcessKey) -> PendingProgram | None:
        """Return what waits for a program, once."""
        pending = self._by_program.pop(program, None)
        if pending is not None:
            self._held -= len(pending.events) + len(pending.series)
        return pending

    def in_excess(self) -> ProcessKey | None:
        """Return the program that waits longest, if there is more than ``MAX_HELD``; else None."""
        return next(iter(self._by_program)) if self._held > MAX_HELD else None

    def is_overdue(self, process: Program, ktime_ns: int) -> bool:
        """Return whether a program has waited for long enough."""
        pending = self._by_program.get(key_of(process))
        if pending is None:
            return False
        is_nameless = process.service_name == UNKNOWN_SERVICE
        patience_ns = NAMELESS_PATIENCE_NS if is_nameless else PATIENCE_NS
        return ktime_ns - pending.since_ktime_ns > patience_ns

    def _pending(self, program: ProcessKey, ktime_ns: int) -> PendingProgram:
        pending = self._by_program.get(program)
        if pending is None:
            pending = self._by_program[program] = PendingProgram(ktime_ns)
        return pending
