"""What a recording says, so that two recordings of the same program can be compared."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire import events, readings, symbol_records
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.probe_table import APIS

# What a call says of itself whatever the machine's other work is.
STEADY_CHOICES = wire.CHOICE_FAILED | wire.CHOICE_FULL | wire.CHOICE_PARENT
LONG_NS = 10_000_000
# Losses where a page is not in memory, or a thread is stopped while it changes what is read.
UNSTEADY = {
    wire.COUNTER_LOST_PYTHON,
    wire.COUNTER_LOST_READ_FAULT,
    wire.COUNTER_LOST_SAMPLE,
    wire.COUNTER_LOST_STACK,
}
(SLEEPER,) = (api.number for api in APIS if api.name == "cudaStreamSynchronize")


class Told:
    """A recording's events, with what differs from run to run left out or renamed."""

    def __init__(self, recording: Path) -> None:
        rejected: Counter[str] = Counter()
        records = (record for batch in read_recording(recording) for record in batch)
        self.events = list(decode(records, rejected))
        assert rejected == {}
        self._images: dict[tuple[int, int], int] = {}
        self.stacks = {e.stack: e for e in self.events if isinstance(e, symbol_records.UserStack)}
        self.kernel_stacks = {
            e.kernel_stack: e for e in self.events if isinstance(e, symbol_records.Stack)
        }
        for event in self.events:
            if isinstance(event, events.Fork):
                self.image(event.pid, event.program_ktime_ns)
                self.image(event.child_pid, event.child_program_ktime_ns)
            elif isinstance(event, events.Exec):
                self.image(event.pid, event.program_ktime_ns)

    def image(self, pid: int, program_ktime_ns: int) -> int:
        """Number images in the order of their appearance."""
        return self._images.setdefault((pid, program_ktime_ns), len(self._images))

    def frames(self, stack: int) -> tuple[tuple[str, str], ...]:
        """Functions of a user stack; code outside of Python's own is where it is."""
        found = self.stacks.get(stack)
        return tuple((frame.kind, frame.function) for frame in found.frames) if found else ()

    def calls(self) -> Iterator[tuple[Any, ...]]:
        for event in self.events:
            if isinstance(event, events.CudaCall):
                image = self.image(event.pid, event.program_ktime_ns)
                yield (
                    image,
                    event.api,
                    event.variant,
                    event.depth,
                    bool(event.parent_start_ktime_ns),
                    event.root_start_ktime_ns == event.start_ktime_ns,
                    event.status,
                    event.size_bytes,
                    event.copy_kind,
                    event.device,
                    event.weight,
                    event.grid,
                    event.block,
                    event.choices & STEADY_CHOICES,
                    event.comm,
                    event.api == SLEEPER and event.blocked_ns > LONG_NS,
                    # Of a child, the agent may not know the interpreter at once.
                    self.frames(event.user_stack) if not image else (),
                )

    def long_waits(self) -> Iterator[tuple[Any, ...]]:
        """Yield waits of `SLEEPER`; the second last is None where the kernel's stack was not found."""
        for event in self.events:
            if (
                isinstance(event, events.Stall)
                and event.switch_type == wire.SWITCH_VOLUNTARY
                and event.call_api == SLEEPER
                and event.runnable_ktime_ns - event.start_ktime_ns > LONG_NS
            ):
                kernel = self.kernel_stacks.get(event.kernel_stack)
                yield (
                    event.call_api,
                    event.call_depth,
                    event.system_call,
                    event.flags & (wire.STALL_GIL | wire.STALL_FAULT),
                    event.comm,
                    kernel.functions if kernel else None,
                    self.frames(event.user_stack),
                )

    def life(self) -> Iterator[tuple[Any, ...]]:
        for event in self.events:
            if isinstance(event, events.Fork):
                child = self.image(event.child_pid, event.child_program_ktime_ns)
                yield ("fork", self.image(event.pid, event.program_ktime_ns), child, event.comm)
            elif isinstance(event, events.Exec):
                image = self.image(event.pid, event.program_ktime_ns)
                file = (event.device, event.inode)
                yield ("exec", image, file, event.stopped, event.comm, event.path)
            elif isinstance(event, events.Exit):
                image = self.image(event.pid, event.program_ktime_ns)
                yield ("exit", image, event.exit_code, event.comm, event.start_boot_ns > 0)
            elif isinstance(event, events.Library):
                yield ("library", event.stopped, event.path)

    def series(self) -> Mapping[tuple[Any, ...], tuple[int, int]]:
        """(calls, bytes) by series, of what is counted whatever the durations are."""
        found: dict[tuple[Any, ...], tuple[int, int]] = {}
        exact = {wire.METRIC_CALL_DURATION, wire.METRIC_COPY_SIZE, wire.METRIC_FORK}
        for event in self.events:
            for key, value in event.series if isinstance(event, readings.Aggregates) else ():
                if key.metric in exact:
                    image = self.image(key.pid, key.program_ktime_ns)
                    found[image, *key[2:]] = (value.counted, value.size_bytes)
        return found

    def unseen_waits(self) -> int:
        """
        How many waits may be without a stack of the kernel.

        A walk interrupted another one on its CPU, or the kernel did not tell of the wait's end.
        """
        counters = self._last_counters().values
        return counters[wire.COUNTER_LOST_STACK] + counters[wire.COUNTER_SWITCHES_REPAIRED]

    def _last_counters(self) -> readings.Counters:
        (*_, last) = (e for e in self.events if isinstance(e, readings.Counters))
        return last

    def counters(self) -> Mapping[str, int]:
        """The losses that no other work of the machine causes, and the probes' hits."""
        last = self._last_counters()
        names = wire.COUNTER_NAMES
        exact = {wire.COUNTER_PROBE_ENTRIES, wire.COUNTER_PROBE_RETURNS}
        exact |= {n for n, name in names.items() if name.startswith("counter_lost")} - UNSTEADY
        return {
            names[number]: value
            for number, value in enumerate(last.values)
            if value and number in exact
        }
