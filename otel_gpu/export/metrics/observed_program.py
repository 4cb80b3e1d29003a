"""The metric store's state of one program."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.sdk.resources import Resource

from otel_gpu.enrich.activities import CommunicatorActivity, OpenCallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.export.metrics.collectives import MAX_COMMUNICATORS, is_ended
from otel_gpu.export.metrics.exemplars import ExemplarReservoir
from otel_gpu.export.metrics.measures import measure_failures, measure_memory
from otel_gpu.export.metrics.points import Measurement
from otel_gpu.export.metrics.stalls import Stalls
from otel_gpu.export.metrics.steps import StepHistograms
from otel_gpu.state.time_accounting import Account
from otel_gpu.wire.blocks import MemoryTotals

# Open calls are checked every second, or every quarter of the limit from which they are reported; a
# call is at least that old when it is first reported. A call that was not reported in twice that
# time has returned.
_OPEN_CALL_PATIENCE_NS = 3_000_000_000

MAX_DEVICES: Final = 256
"""Devices of one process with memory metrics."""


@dataclass(slots=True, eq=False, kw_only=True)
class ObservedProgram(Account):
    """The latest values of everything that is counted of one program."""

    resource: Resource
    exemplars: ExemplarReservoir
    devices: dict[int, DeviceIdentity] = field(default_factory=dict)
    # Each with the time, in nanoseconds, after which it counts as returned.
    open_calls: dict[tuple[int, int], tuple[OpenCallActivity, int]] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=Stalls)
    steps: StepHistograms = field(default_factory=StepHistograms)
    # By the number of the device: the allocator's latest figures, and the count of failed requests.
    memory: dict[int, MemoryTotals] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    communicators: dict[tuple[int, int], CommunicatorActivity] = field(default_factory=dict)
    # Of an imported process: all its measurements.
    of_run: list[Measurement] = field(default_factory=list)
    updated_unix_ns: int = 0
    end_unix_ns: int | None = None
    # How many of its series are counted as final.
    final_series: int = 0
    # Numbers of readings and snapshots at its end.
    end_readings: int = 0
    end_snapshots: int = 0
    # Sinks that have its final series.
    finished: set[int] = field(default_factory=set)

    def add_open_call(self, call: OpenCallActivity) -> None:
        """Store a call that has not returned."""
        key = (call.event.tid, call.event.start_ktime_ns)
        age_ns = call.event.ktime_ns - call.event.start_ktime_ns
        if call.event.began_before_capture:
            age_ns = 0  # such a call is checked every second
        _, patience_ns = self.open_calls.get(key, (None, max(_OPEN_CALL_PATIENCE_NS, age_ns // 2)))
        self.open_calls[key] = (call, patience_ns)

    def update_memory(
        self, number: int, device: DeviceIdentity | None, totals: MemoryTotals | None
    ) -> None:
        """Store an allocator's figures of a device; None: count a failed request."""
        numbers = self.memory.keys() | self.failures.keys()
        if number not in numbers and len(numbers) >= MAX_DEVICES:
            return
        if totals is None:
            self.failures[number] += 1
        else:
            self.memory[number] = totals
        if device is not None:
            self.devices[number] = device

    def update_communicator(self, activity: CommunicatorActivity) -> bool:
        """Store a communicator's progress; False: the limit of communicators is reached."""
        known = self.communicators
        if activity.handle not in known and len(known) >= MAX_COMMUNICATORS:
            ended = (key for key, one in known.items() if is_ended(one.communicator))
            if (oldest := next(ended, None)) is None:
                return False
            del known[oldest]
        known[activity.handle] = activity
        return True

    def memory_measurements(self) -> Iterator[Measurement]:
        """Yield the memory and the failed requests of its allocators."""
        for number, totals in self.memory.items():
            yield from measure_memory(number, totals, self.devices.get(number))
        for number, count in self.failures.items():
            yield measure_failures(number, count, self.devices.get(number))

    def forget_returned_calls(self, unix_ns: int) -> None:
        """Remove open calls that were not reported for too long."""
        for key, (call, patience_ns) in list(self.open_calls.items()):
            if unix_ns - call.seen_unix_ns > patience_ns:
                del self.open_calls[key]
