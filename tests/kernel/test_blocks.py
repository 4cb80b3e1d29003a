"""Blocks that an allocator hands out: who holds them, exactly, against what programs say themselves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.decode.blocks import (
    BlockStack,
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryTotals,
)
from otel_gpu.decode.decoder import decode
from otel_gpu.decode.events import Counters, Event, UserStack
from otel_gpu.demo.build import build_allocator
from tests.kernel.agent import Agent
from tests.stubs.build import workload

pytestmark = pytest.mark.kernel

Kind = TypeVar("Kind")

ALLOCATIONS = 1_000_003
# Whatever a loss is, none may be here.
LOSSES = [
    number
    for number, name in wire.COUNTER_NAMES.items()
    if name.startswith("counter_lost") and number != wire.COUNTER_LOST_NO_ENTRY
]
UNLIMITED = {
    "OTEL_GPU_MEMORY_BLOCKS_PER_SECOND": "10000000",
    "OTEL_GPU_MEMORY_STACKS_PER_SECOND": "100000",
}


class Captured(NamedTuple):
    """What was recorded of a program's memory."""

    events: Sequence[Event]
    said: Sequence[Mapping[str, Any]]

    @property
    def totals(self) -> dict[DeviceKey, MemoryTotals]:
        """The last reading of each device."""
        readings = (event for event in self.events if isinstance(event, Memory))
        return {key: totals for reading in readings for key, totals in reading.totals}

    @property
    def holders(self) -> dict[HolderKey, Holder]:
        """The last reading of each holder."""
        readings = (event for event in self.events if isinstance(event, Holders))
        return {key: holder for reading in readings for key, holder in reading.holders}

    @property
    def frames(self) -> dict[tuple[int, int], tuple[Any, ...]]:
        """The frames of each key, by pid."""
        stacks = {
            event.stack: event.frames for event in self.events if isinstance(event, UserStack)
        }
        return {
            (event.pid, event.stack): stacks.get(event.user_stack, ())
            for event in self.events
            if isinstance(event, BlockStack)
        }

    @property
    def losses(self) -> dict[str, int]:
        """The losses that were counted."""
        values = self.of(Counters)[-1].values
        return {wire.COUNTER_NAMES[number]: values[number] for number in LOSSES if values[number]}

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def by_function(self, prefix: str) -> dict[str, Holder]:
        """What is held by each function whose name begins so; "": by none of these."""
        found: dict[str, list[int]] = {}
        frames = self.frames
        for key, holder in self.holders.items():
            names = [frame.function for frame in frames.get((key.pid, key.stack), ())]
            name = next((name for name in names if name.startswith(prefix)), "")
            sums = found.setdefault(name, [0] * len(holder))
            sums[:] = map(sum, zip(sums, holder, strict=True))
        return {name: Holder._make(sums) for name, sums in found.items()}


def events_of(path: Path) -> list[Event]:
    rejected: Counter[str] = Counter()
    records = (record for batch in read_recording(path) for record in batch)
    events = list(decode(records, rejected))
    assert not rejected
    return events


def capture(
    folder: Path, command: Sequence[str | Path], mode: str, env: Mapping[str, str] | None = None
) -> Captured:
    """Run a program under the agent, and return what was recorded of it."""
    path = folder / "blocks.otelgpu"
    flags = ("--record", str(path), "--summary", "never", "--spans", "none")
    settings = {"OTEL_GPU_MEMORY_BLOCKS": mode} | UNLIMITED | dict(env or {})
    with Agent(None, command, flags=flags, env=settings) as agent:
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    return Captured(events_of(path), finished.lines)


@pytest.mark.parametrize(("is_old", "allocations"), [(False, ALLOCATIONS), (True, 100_003)])
def test_each_place_holds_what_the_program_says(
    tmp_path: Path, is_old: bool, allocations: int
) -> None:
    """A million blocks from four threads, to the byte; and no report disagrees with what was seen."""
    allocator = build_allocator(tmp_path, is_old=is_old)
    captured = capture(tmp_path, [workload("blocks"), allocator, str(allocations), "4"], "all")
    [said] = captured.said

    [totals] = captured.totals.values()
    assert totals.allocations == allocations
    assert totals.frees == said["freed"]
    assert totals.allocated_bytes == said["allocated_bytes"]
    assert (totals.unequal, totals.before_bytes, totals.before_freed_bytes) == (0, 0, 0)
    assert (totals.unsampled_bytes, totals.withheld_bytes) == (0, 0)
    assert captured.losses == {}
    held = captured.by_function("place_")
    assert {name: holder[:4] for name, holder in held.items()} == {
        f"place_{number}": tuple(sums) for number, sums in enumerate(said["places"])
    }
