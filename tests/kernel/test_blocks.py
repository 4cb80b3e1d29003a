"""Blocks that an allocator hands out: who holds them, exactly, against what programs say themselves."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire.blocks import (
    BlockStack,
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryMap,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import Event
from otel_gpu.wire.probe_table import API_BY_NUMBER
from otel_gpu.wire.readings import Counters, Status
from otel_gpu.wire.symbol_records import UserStack
from tests.kernel.agent import Agent, bpf_objects, bpftool, otel_gpu, points, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, allocator, workload

pytestmark = pytest.mark.kernel

Kind = TypeVar("Kind")

ALLOCATIONS = 1_000_003
MIB = 1 << 20
OUT_OF_MEMORY = 2
PYTHON_WORKLOAD = WORKLOADS / "blocks.py"
PLACES = {
    *("weights", "activations", "gradients", "optimizer_state"),
    *("caches", "losses", "workspaces"),
}
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
    built = allocator(is_old=is_old)
    captured = capture(tmp_path, [workload("blocks"), built, str(allocations), "4"], "all")
    [said] = captured.said

    [totals] = captured.totals.values()
    assert totals.allocations == allocations
    assert totals.frees == said["freed"]
    assert totals.allocated_bytes == said["allocated_bytes"]
    assert (totals.unequal, totals.before_bytes, totals.before_freed_bytes) == (0, 0, 0)
    assert (totals.unsampled_bytes, totals.rate_limited_bytes) == (0, 0)
    assert captured.losses == {}
    held = captured.by_function("place_")
    assert {name: holder[:4] for name, holder in held.items()} == {
        f"place_{number}": tuple(sums) for number, sums in enumerate(said["places"])
    }


def by_python(captured: Captured) -> dict[str, Holder]:
    """What each function of the Python workload holds."""
    found: dict[str, list[int]] = {}
    for key, holder in captured.holders.items():
        frames = captured.frames.get((key.pid, key.stack), ())
        names = {frame.function.rpartition(".")[2] for frame in frames}
        [name] = (names & PLACES) or {""}
        sums = found.setdefault(name, [0] * len(holder))
        sums[:] = map(sum, zip(sums, holder, strict=True))
    return {name: Holder._make(sums) for name, sums in found.items()}


def python(name: str, *more: object) -> list[str | Path]:
    return [sys.executable, PYTHON_WORKLOAD, name, *map(str, more)]


def test_lines_of_python_hold_what_the_program_says(tmp_path: Path) -> None:
    """Random blocks of seven functions; the first that hold any have the same totals."""
    captured = capture(tmp_path, python("places", allocator(), 20_011), "all")
    [said] = captured.said

    held = by_python(captured)

    assert {name: [*holder[:2]] for name, holder in held.items()} == said["places"]
    assert captured.losses == {}


def test_a_recording_replays_to_the_same_events(tmp_path: Path) -> None:
    """Whatever is known of memory is in the recording, as it was sent."""
    first = capture(tmp_path, python("places", allocator(), 503), "all")

    again = tmp_path / "again.jsonl", tmp_path / "other.jsonl"
    for output in again:
        assert (
            otel_gpu("replay", tmp_path / "blocks.otelgpu", "--otlp-file", output).returncode == 0
        )

    assert again[0].read_bytes() == again[1].read_bytes()
    assert events_of(tmp_path / "blocks.otelgpu") == list(first.events)


def test_blocks_from_before_the_attach_are_one_sum(receiver: OtlpReceiver, tmp_path: Path) -> None:
    """It is exact when the capture begins, and when all of them are free again."""
    built = allocator()
    command = [workload("blocks"), built, "20011", "2", "211"]
    path = tmp_path / "late.otelgpu"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin
        assert program.stdout
        before = json.loads(program.stdout.readline())
        flags = ("--record", str(path), "--pid", str(program.pid), "--summary", "never")
        settings = {"OTEL_GPU_MEMORY_BLOCKS": "all"} | UNLIMITED
        with Agent(receiver, flags=(*flags, "--spans", "none"), env=settings) as agent:
            receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"))
            program.stdin.write(b"\n")
            program.stdin.close()
            said = json.loads(program.stdout.readline())
            agent.wait()

    captured = Captured(events_of(path), [said])
    [totals] = captured.totals.values()
    assert totals.before_bytes == totals.before_freed_bytes == before["before_bytes"] > 0
    assert totals.unequal == 0
    assert totals.allocated_bytes == said["allocated_bytes"]
    held = captured.by_function("place_")
    assert sum(holder.live_bytes for holder in held.values()) == said["allocated_bytes"]
    assert captured.losses == {}


def test_small_blocks_are_sampled_in_proportion_to_bytes(tmp_path: Path) -> None:
    """
    Large ones are exact. The estimate of small ones is within five standard deviations.

    Of n blocks of s bytes each is sampled with probability p = 1 - exp(-s / mean), and stands for
    s / p: the deviation of the sum is s sqrt(n (1 - p) / p), here 3 % of it.
    """
    count, size = 20_000, 51_200
    mean = MIB
    command = python("small", allocator(), count, size)
    captured = capture(tmp_path, command, "large")

    held = by_python(captured)
    assert held["weights"] == (21 * MIB, 7, 21 * MIB, 7, 21 * MIB)
    chance = 1 - math.exp(-size / mean)
    deviation = size * math.sqrt(count * (1 - chance) / chance)
    estimate = held["losses"].live_bytes + held["caches"].live_bytes
    assert estimate == pytest.approx(count * size, abs=5 * deviation)
    for place in ("losses", "caches"):
        assert held[place].live_bytes == pytest.approx(count * size / 2, abs=5 * deviation)
        assert held[place].large_live_bytes == 0
        blocks = held[place].live_bytes / held[place].live_blocks
        assert blocks == pytest.approx(size, rel=0.01)
    [totals] = captured.totals.values()
    # Each sample stands for so many bytes, to 0.1 %.
    sampled = (count * size - totals.unsampled_bytes) // size
    assert estimate / sampled == pytest.approx(size / chance, rel=0.001)
    assert (totals.unequal, totals.rate_limited_bytes) == (0, 0)
    assert captured.losses == {}


def test_totals_alone_have_no_holders(tmp_path: Path) -> None:
    """And off is off."""
    command = python("one", allocator())

    totals = capture(tmp_path, command, "totals")
    off = capture(tmp_path, command, "off")

    [known] = totals.totals.values()
    assert (known.allocated_bytes, known.peak_allocated_bytes) == (7 * MIB, 7 * MIB)
    assert known.reserved_bytes == 20 * MIB
    assert totals.holders == off.holders == off.totals == {}


def test_a_program_without_frame_pointers_is_not_merged(tmp_path: Path) -> None:
    """A chain that leaves functions out is found out, and each block from then on is on its own."""
    built = allocator(has_frames=False)
    captured = capture(tmp_path, [workload("blocks"), built, "3001", "1"], "all")
    [said] = captured.said

    [totals] = captured.totals.values()
    assert totals.unequal == 0
    holders = captured.holders.values()
    assert sum(holder.live_bytes for holder in holders) == said["allocated_bytes"]
    held = captured.by_function("place_")
    for name, holder in held.items():
        if name:
            place = said["places"][int(name.removeprefix("place_"))]
            assert holder.live_bytes <= place[0]


def failures(folder: Path, name: str, **memory: str) -> Captured:
    command = python(name, allocator())
    return capture(folder, command, "all", memory)


def test_the_map_is_as_it_was_when_memory_ran_out(tmp_path: Path) -> None:
    """Although the program frees everything right after, and gives it back to the device."""
    captured = failures(tmp_path, "out_of_memory", STUB_DEVICE_BYTES=str(100 * MIB))
    [said] = captured.said

    [failed] = captured.of(OutOfMemory)
    assert said["failed"]
    assert (failed.source, failed.asked_bytes) == (wire.OUT_OF_MEMORY_FRAMEWORK, 41 * MIB)
    assert failed.reserved_bytes == said["reserved_bytes"]
    assert failed.allocated_bytes == sum(size for _, size in said["blocks"])
    assert failed.device_total_bytes == 100 * MIB
    assert failed.device_free_bytes == 100 * MIB - said["reserved_bytes"]
    assert 0 < failed.device_ktime_ns < failed.ktime_ns
    stacks = {event.stack: event.frames for event in captured.of(UserStack)}
    assert "gradients" in {frame.function for frame in stacks[failed.user_stack]}

    [found] = captured.of(MemoryMap)
    assert found.ktime_ns == failed.ktime_ns
    assert [list(row[:2]) for row in found.info["blocks"]] == said["blocks"]
    assert sum(size for _, size in found.info["segments"]) == said["reserved_bytes"]
    assert (found.info["left_out"], found.info["smallest_bytes"]) == (0, 0)
    places = {
        frame.function
        for _, _, stack in found.info["blocks"]
        for frame in captured.frames[failed.pid, stack]
    }
    assert {"weights", "activations"} <= places
    assert "caches" not in places
    assert captured.losses == {}


def test_a_retry_that_succeeds_is_no_failure(tmp_path: Path) -> None:
    """The first attempt failed, as the device had no more until the cache was given back."""
    captured = failures(tmp_path, "retry", STUB_DEVICE_BYTES=str(64 * MIB))

    assert captured.said[0]["found"]
    assert captured.of(OutOfMemory) == []


@pytest.mark.parametrize("name", ["refused_call", "refused_beside"])
def test_a_call_that_is_refused_memory_is_a_failure(tmp_path: Path, name: str) -> None:
    """With a framework beside it, as soon as it is known that there is no other attempt."""
    captured = failures(tmp_path, name, STUB_DEVICE_BYTES=str(64 * MIB))

    assert captured.said[0]["refused"] == OUT_OF_MEMORY
    [failed] = captured.of(OutOfMemory)
    assert (failed.source, failed.asked_bytes) == (wire.OUT_OF_MEMORY_CALL, 47 * MIB)
    assert API_BY_NUMBER[failed.api].name == "cudaMalloc"
    stacks = {event.stack: event.frames for event in captured.of(UserStack)}
    assert stacks[failed.user_stack][0].function == "cudaMalloc"
    assert "refused_call" in {frame.function for frame in stacks[failed.user_stack]}
    [found] = captured.of(MemoryMap)
    assert 23 * MIB in {size for _, size in found.info["segments"]}


def test_children_hold_nothing_that_they_inherited(tmp_path: Path) -> None:
    """What a child frees of its parent's is the parent's still. A program that it executes is new."""
    captured = failures(tmp_path, "forks")
    said = captured.said[-1]

    totals = {key.pid: totals for key, totals in captured.totals.items()}
    assert totals.keys() == {said["pid"], said["other"]}
    assert totals[said["pid"]].allocated_bytes == said["allocated_bytes"] == 15 * MIB
    assert (totals[said["other"]].allocated_bytes, totals[said["other"]].before_bytes) == (
        7 * MIB,
        0,
    )
    live = {key.pid: holder.live_bytes for key, holder in captured.holders.items()}
    assert live == {said["pid"]: 15 * MIB, said["other"]: 7 * MIB}
    assert captured.losses == {}


def test_a_child_that_begins_to_use_the_device_has_blocks(tmp_path: Path) -> None:
    """Its parent had none."""
    captured = failures(tmp_path, "forked_first")

    [key] = captured.totals
    assert key.pid == captured.said[0]["child"]
    [holder] = captured.holders.values()
    assert holder.live_bytes == 3 * MIB


def test_reports_that_cannot_be_do_no_harm(tmp_path: Path) -> None:
    """Sizes near 2^63, null pointers, double frees: numbers stay numbers, and all is decoded."""
    captured = failures(tmp_path, "hostile")

    [(key, totals)] = captured.totals.items()
    assert key.device == 1
    assert totals.unequal > 0
    assert totals.peak_allocated_bytes <= 1 << 48
    assert all(failed.asked_bytes == (1 << 63) - 1 for failed in captured.of(OutOfMemory))
    assert len(captured.of(OutOfMemory)) == 3
    assert captured.losses == {}


def real_allocator() -> tuple[Path, str]:
    """The libc10.so of the PyTorch that OTEL_GPU_TEST_TORCH has, and its spelling."""
    interpreter = os.environ.get("OTEL_GPU_TEST_TORCH")
    if not interpreter:
        pytest.skip("OTEL_GPU_TEST_TORCH names no interpreter that has PyTorch")
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    said = subprocess.run([interpreter, "-c", find], capture_output=True, text=True, check=True)
    path = Path(said.stdout.strip()) / "lib" / "libc10.so"
    names = path.read_bytes()
    return path, next(name for name in ("lmm", "lll") if b"ProfilerEPv%b" % name.encode() in names)


def test_the_real_library_is_followed(tmp_path: Path) -> None:
    """It loads alone; what is reported to it is there to the byte."""
    path, spelling = real_allocator()
    captured = capture(tmp_path, python("real", path, spelling, 1009), "all")

    [totals] = captured.totals.values()
    assert totals.allocated_bytes == 1009 * MIB
    assert (totals.allocations, totals.frees, totals.unequal) == (2018, 1009, 0)
    held = by_python(captured)
    assert held["weights"][:2] == (1009 * MIB, 1009)
    assert held["activations"][:4] == (0, 0, 2018 * MIB, 1009)
    assert captured.losses == {}


def test_too_many_reports_are_seen_in_windows(tmp_path: Path) -> None:
    """Totals are right with each window; what is held is that of the last one, and pauses are said."""
    built = allocator()
    limit = {"OTEL_GPU_MEMORY_BLOCKS_PER_SECOND": "1000"}
    command = [workload("blocks"), built, "1500007", "1"]
    captured = capture(tmp_path, command, "all", limit)
    [said] = captured.said

    [totals] = captured.totals.values()
    assert 0 < totals.allocations < 1_500_007
    # A report that disagrees begins each window but the first.
    paused = captured.of(Status)[-1].info["blocks"]
    assert paused["pauses"] > 0
    assert totals.unequal <= paused["pauses"]
    seen = totals.handed_out_bytes - totals.taken_back_bytes
    assert totals.before_bytes + seen == totals.allocated_bytes
    assert said["allocated_bytes"] > 0
    # Nobody holds more than there is, whatever was missed.
    live = sum(holder.live_bytes for holder in captured.holders.values())
    assert live <= totals.allocated_bytes
    assert captured.losses == {}


def test_nothing_is_left_of_a_program_that_ended(tmp_path: Path) -> None:
    """Its blocks, holders and devices go from the kernel's maps with it; others may come."""
    built = allocator()
    command = [workload("blocks"), built, "1009", "2"]
    script = 'for i in 1 2 3; do "$@"; done; read line'
    flags = ("--record", str(tmp_path / "run.otelgpu"), "--summary", "never", "--spans", "none")
    env = {"OTEL_GPU_MEMORY_BLOCKS": "all"} | UNLIMITED
    inside = ["sh", "-c", script, "sh", *command]
    with Agent(None, inside, flags=flags, env=env, stdin=subprocess.PIPE) as agent:
        for _ in range(3):
            agent.next_line()
        names = ("blocks", "holders", "device_memories")
        own = bpf_objects("map", agent.process.pid)
        shown = [found for found in bpftool("map", "show") if found["id"] in own]
        maps = {found["name"]: found["id"] for found in shown if found.get("name") in names}
        assert len(maps) == len(names)
        wait_until(lambda: not any(map(entries_of, maps.values())), "empty maps")
        agent.send_line()
        assert agent.wait().returncode == 0


def entries_of(number: int) -> list[dict[str, Any]]:
    return bpftool("map", "dump", "id", str(number))
