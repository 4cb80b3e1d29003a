"""Events of a recording in a form in which two recordings of one program are equal."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire import events, readings, symbol_records
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.probe_table import APIS

# Choices that do not depend on other work of the machine.
STEADY_CHOICES = wire.CHOICE_FAILED | wire.CHOICE_FULL | wire.CHOICE_PARENT
LONG_NS = 10_000_000
# Losses because a page is not in memory, or a thread is stopped while it changes what is read.
UNSTEADY = {
    wire.COUNTER_LOST_PYTHON,
    wire.COUNTER_LOST_READ_FAULT,
    wire.COUNTER_LOST_SAMPLE,
    wire.COUNTER_LOST_STACK,
}
(SLEEPER,) = (api.number for api in APIS if api.name == "cudaStreamSynchronize")


def last_counters(recorded: Sequence[events.Event]) -> readings.Counters:
    (*_, last) = (e for e in recorded if isinstance(e, readings.Counters))
    return last


def unseen_waits(recorded: Sequence[events.Event]) -> int:
    """
    Return how many waits can lack a kernel stack.

    A walk interrupted another one on its CPU, or the kernel did not report the wait's end.
    """
    counters = last_counters(recorded).values
    return counters[wire.COUNTER_LOST_STACK] + counters[wire.COUNTER_SWITCHES_REPAIRED]


class RecordedEvents:
    """The events of a recording; values that differ between runs are left out or renumbered."""

    def __init__(self, recording: Path) -> None:
        rejected: Counter[str] = Counter()
        records = (record for batch in read_recording(recording) for record in batch)
        self.events = list(decode(records, rejected))
        assert rejected == {}
        self._numbers: dict[tuple[int, int], int] = {}
        self.stacks = {e.stack: e for e in self.events if isinstance(e, symbol_records.UserStack)}
        self.kernel_stacks = {
            e.kernel_stack: e for e in self.events if isinstance(e, symbol_records.Stack)
        }
        for event in self.events:
            if isinstance(event, events.Fork):
                self.program_number(event.pid, event.program_ktime_ns)
                self.program_number(event.child_pid, event.child_program_ktime_ns)
            elif isinstance(event, events.Exec):
                self.program_number(event.pid, event.program_ktime_ns)

    def program_number(self, pid: int, program_ktime_ns: int) -> int:
        """Return the number of a program, in the order of appearance."""
        return self._numbers.setdefault((pid, program_ktime_ns), len(self._numbers))

    def frames(self, stack: int) -> tuple[tuple[str, str], ...]:
        """Return the kinds and functions of the frames of a user stack."""
        found = self.stacks.get(stack)
        return tuple((frame.kind, frame.function) for frame in found.frames) if found else ()

    def calls(self) -> Iterator[tuple[Any, ...]]:
        for event in self.events:
            if isinstance(event, events.CudaCall):
                program = self.program_number(event.pid, event.program_ktime_ns)
                yield (
                    program,
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
                    # The agent can find the interpreter of a child later.
                    self.frames(event.user_stack) if not program else (),
                )

    def long_waits(self) -> Iterator[tuple[Any, ...]]:
        """Yield waits of `SLEEPER`; the second last field is None without a kernel stack."""
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
                child = self.program_number(event.child_pid, event.child_program_ktime_ns)
                yield (
                    "fork",
                    self.program_number(event.pid, event.program_ktime_ns),
                    child,
                    event.comm,
                )
            elif isinstance(event, events.Exec):
                program = self.program_number(event.pid, event.program_ktime_ns)
                file = (event.device, event.inode)
                yield ("exec", program, file, event.stopped, event.comm, event.path)
            elif isinstance(event, events.Exit):
                program = self.program_number(event.pid, event.program_ktime_ns)
                yield ("exit", program, event.exit_code, event.comm, event.start_boot_ns > 0)
            elif isinstance(event, events.Library):
                yield ("library", event.stopped, event.path)

    def series(self) -> Mapping[tuple[Any, ...], tuple[int, int]]:
        """Return (calls, bytes) by series, for metrics that do not depend on durations."""
        found: dict[tuple[Any, ...], tuple[int, int]] = {}
        exact = {wire.METRIC_CALL_DURATION, wire.METRIC_COPY_SIZE, wire.METRIC_FORK}
        for event in self.events:
            for key, value in event.series if isinstance(event, readings.Aggregates) else ():
                if key.metric in exact:
                    program = self.program_number(key.pid, key.program_ktime_ns)
                    found[program, *key[2:]] = (value.counted, value.size_bytes)
        return found

    def counters(self) -> Mapping[str, int]:
        """Return losses that other work of the machine does not cause, and hits of probes."""
        last = last_counters(self.events)
        names = wire.COUNTER_NAMES
        exact = {wire.COUNTER_PROBE_ENTRIES, wire.COUNTER_PROBE_RETURNS}
        exact |= {n for n, name in names.items() if name.startswith("counter_lost")} - UNSTEADY
        return {
            names[number]: value
            for number, value in enumerate(last.values)
            if value and number in exact
        }
