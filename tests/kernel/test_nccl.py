"""NCCL through its probes: which communicators there are, and how far each rank is with collectives."""

import itertools
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire.communicators import Communicator, CommunicatorKey, Communicators, Signature
from otel_gpu.wire.decoder import decode
from tests.kernel.agent import (
    Agent,
    calls,
    environment_for,
    losses,
    points,
    run_together,
    spans,
    total,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, StubLibraries, stub_nccl, workload

pytestmark = pytest.mark.kernel

ALL_REDUCE = wire.COLLECTIVE_ALL_REDUCE
DURATION = "gpu.nccl.call.duration"
SCENES = (
    *("address_used_again", "signatures", "children", "ranks_of_one_process", "larger"),
    *("captured", "ends", "errors"),
)

# What the stub calls three communicators: two of an id, and a child of the first.
HASHES = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
nccl = ctypes.CDLL(sys.argv[2])
nccl.stub_hash_of_id.restype = nccl.stub_hash_of_child.restype = ctypes.c_uint64
print(nccl.stub_hash_of_id(bytes(range(128))))
print(nccl.stub_hash_of_id(b"\\xff" * 128))
print(nccl.stub_hash_of_child(ctypes.c_uint64(0x6AFE1CC17717E1F4), 3, 7))
"""


class Reading(NamedTuple):
    """What was read of one communicator at one moment."""

    ktime_ns: int
    key: CommunicatorKey
    communicator: Communicator


def readings_of(recording: Path) -> list[Reading]:
    """Return what a recording says of communicators, in order."""
    rejected: Counter[str] = Counter()
    events = decode(itertools.chain.from_iterable(read_recording(recording)), rejected)
    found = [
        Reading(event.ktime_ns, *reading)
        for event in events
        if isinstance(event, Communicators)
        for reading in event.readings
    ]
    assert not rejected
    return found


def latest(recording: Path, pid: int | None = None) -> dict[CommunicatorKey, Communicator]:
    """Return the last that a recording says of each communicator, of one process."""
    readings = readings_of(recording)
    return {one.key: one.communicator for one in readings if pid in (None, one.key.pid)}


def test_a_million_collectives_are_counted_exactly(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Two threads, groups in groups, split communicators, a shared one: numbers and bytes by operation."""
    command = [workload("collectives"), stubs.runtime, stub_nccl(), "1000003"]
    flags = ("--record", str(tmp_path / "run"), "--spans", "none")
    with Agent(receiver, command, flags=flags) as agent:
        said = agent.wait().lines[0]
    found = latest(tmp_path / "run", said["pid"]).values()

    assert {f"{one.id:016x}": (one.called, one.operations) for one in found} == {
        one["id"]: (
            one["called"],
            {int(operation): tuple(both) for operation, both in one["operations"].items()},
        )
        for one in said["communicators"]
    }
    assert sum(one.called for one in found) == 1_000_003
    assert len(found) == len(said["communicators"]) == 7
    assert not any(one.flags or one.failed or one.captured for one in found)
    assert losses(receiver) == {}


class Told(NamedTuple):
    """What a scene says of itself, and what was seen of its communicators by their names."""

    said: Any
    keys: dict[CommunicatorKey, Communicator]

    def named(self, name: str) -> list[Communicator]:
        """Return the communicators of one name, by rank."""
        found = [one for one in self.keys.values() if f"{one.id:016x}" == name]
        return sorted(found, key=lambda one: one.rank)


@pytest.fixture(scope="module")
def scenes(
    stubs: StubLibraries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Told]]:
    """What one agent recorded of all scenes."""
    recording = tmp_path_factory.mktemp("nccl") / "scenes"
    program = WORKLOADS / "nccl_calls.py"
    commands = {
        scene: (
            {"LD_LIBRARY_PATH": str(stubs.folder)},
            [sys.executable, program, stubs.runtime, stub_nccl(), scene],
        )
        for scene in SCENES
    }
    with run_together(commands, "--spans", "full", "--record", str(recording)) as shared:
        assert losses(shared.receiver) == {}
        yield {
            scene: Told(finished.lines[0]["said"], latest(recording, shared.pid(scene)))
            for scene, finished in shared.finished.items()
        }


def test_the_stub_calls_communicators_what_nccl_calls_them(stubs: StubLibraries) -> None:
    """Of what getHash and eatHash of NCCL 2.30 say (src/include/bitops.h)."""
    # In a process of its own: whoever maps a CUDA library is watched by ``--all``, and so is what
    # other tests start from there.
    command = [sys.executable, "-c", HASHES, str(stubs.runtime), str(stub_nccl())]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert [int(line) for line in said.split()] == [
        *(0x6AFE1CC17717E1F4, 0xB291227E082BB663, 0x2E9B62742F827D76)
    ]


def test_an_address_that_is_used_again_is_another_communicator(scenes: dict[str, Told]) -> None:
    """Destroyed and aborted, and then a third one, all at one address."""
    said, found = scenes["address_used_again"]

    assert [
        [key.handle, f"{one.id:016x}", one.called]
        for key, one in sorted(found.items(), key=lambda pair: pair[0].generation)
    ] == said
    assert {one.called: one.flags for one in found.values()} == {
        3: wire.COMMUNICATOR_DESTROYED,
        5: wire.COMMUNICATOR_ABORTED,
        7: 0,
    }
    assert len({key.handle for key in found}) == 1


def test_what_each_call_asks_for_is_read_from_its_own_slots(scenes: dict[str, Told]) -> None:
    """Plain and with a Config, which is one argument more; a call inside another one is not two."""
    said, _ = scenes["signatures"]
    [one] = scenes["signatures"].named(said)
    elements = (5 << 32) + 11
    asked = [
        Signature(wire.COLLECTIVE_ALL_REDUCE, elements, 7, 1, -1),
        Signature(wire.COLLECTIVE_REDUCE, elements, 8, 2, 3),
        Signature(wire.COLLECTIVE_BROADCAST, elements, 9, 255, 4),
        Signature(wire.COLLECTIVE_BROADCAST, elements, 6, 255, 5),
        Signature(wire.COLLECTIVE_REDUCE_SCATTER, elements, 5, 3, -1),
        Signature(wire.COLLECTIVE_ALL_GATHER, elements, 4, 255, -1),
        Signature(wire.COLLECTIVE_ALL_TO_ALL, elements, 3, 255, -1),
        Signature(wire.COLLECTIVE_GATHER, elements, 2, 255, 6),
        Signature(wire.COLLECTIVE_SCATTER, elements, 1, 255, 7),
    ]
    expected = [*enumerate([*asked, *asked[:3], *asked[4:]], start=1)]

    assert one.called == 17
    assert [(call.number, call.signature) for call in one.recent] == expected[1:]
    assert one.operations[wire.COLLECTIVE_BROADCAST] == (3, elements * (2 + 2 + 2))
    times = [call.called_ktime_ns for call in one.recent]
    assert [one.made_ktime_ns, *times] == sorted([one.made_ktime_ns, *times])


def test_children_are_called_what_nccl_calls_them(scenes: dict[str, Told]) -> None:
    """Also those whose handles are not there before the end of a group, or an answer."""
    said, found = scenes["children"]

    assert [len(scenes["children"].named(name)) for name in said] == [1] * 5
    assert {one.called for one in found.values()} == {1}
    assert {one.flags for one in found.values()} == {0}


def test_ranks_of_one_process_are_apart(scenes: dict[str, Told]) -> None:
    """Made together, split by color, and all but one of them."""
    said, found = scenes["ranks_of_one_process"]
    together, halves, smaller = said

    ranks = scenes["ranks_of_one_process"].named(together[0])
    assert [(one.rank, one.rank_count, one.device) for one in ranks] == [
        (rank, 4, rank) for rank in range(4)
    ]
    for half in set(halves):
        assert [one.rank for one in scenes["ranks_of_one_process"].named(half)] == [0, 1]
    rest = scenes["ranks_of_one_process"].named(smaller[0])
    assert [(one.rank, one.rank_count) for one in rest] == [(0, 3), (1, 3), (2, 3)]
    assert len(found) == 4 + 4 + 3


def test_a_larger_communicator_has_one_name_on_those_that_were_and_those_that_came(
    scenes: dict[str, Told],
) -> None:
    """And the first of several ids is the name; a call that is in progress has not failed."""
    said, found = scenes["larger"]
    first, grown, joined, scalable, not_blocking = said

    assert grown == joined
    assert [(one.rank, one.rank_count) for one in scenes["larger"].named(grown)] == [
        (0, 2),
        (1, 2),
    ]
    for name in (first, scalable, not_blocking):
        [one] = scenes["larger"].named(name)
        assert (one.rank, one.rank_count, one.failed) == (0, 1, 0)
    assert len(found) == 5


def test_what_is_captured_into_a_graph_is_counted_apart(scenes: dict[str, Told]) -> None:
    """Also on a stream that joins the capture by an event; after its end, it counts again."""
    [one] = scenes["captured"].named(scenes["captured"].said)

    assert (one.called, one.captured) == (4, 4)
    assert one.operations == {ALL_REDUCE: (4, 4 * 40)}


@pytest.mark.parametrize(
    "way",
    [
        *("event_query", "event_synchronize", "stream_query", "stream_synchronize"),
        *("device_synchronize", "another_stream", "driver", "none"),
    ],
)
def test_what_is_done_is_known_when_the_program_learns_it(
    scenes: dict[str, Told], way: str
) -> None:
    """Three collectives before it asks, one after that."""
    name, called, completed = scenes["ends"].said[way]
    [one] = scenes["ends"].named(name)

    assert (one.called, one.completed, one.completions) == (called, completed, completed)
    if completed:
        first, *_, last, _ = one.recent
        assert one.completed_ktime_ns > last.called_ktime_ns
        waits = [one.completed_ktime_ns - call.called_ktime_ns for call in one.recent[:3]]
        assert one.waited_ns == sum(waits)
        assert first.number == 1
    else:
        assert (one.completed_ktime_ns, one.waited_ns) == (0, 0)


def test_failed_calls_queue_nothing(scenes: dict[str, Told]) -> None:
    """ncclInProgress is no failure; one call in another one fails once."""
    [one] = scenes["errors"].named(scenes["errors"].said)

    assert (one.called, one.failed, one.async_error) == (1, 4, 6)


def test_a_communicator_that_was_made_before_has_numbers_of_its_own(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """It has no name, and says so."""
    program = WORKLOADS / "nccl_calls.py"
    command = [sys.executable, program, stubs.runtime, stub_nccl(), "made_before"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_for(None),
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdout.readline()
        flags = ("--pid", str(running.pid), "--record", str(tmp_path / "run"))
        with Agent(receiver, flags=flags) as agent:
            receiver.wait_for(lambda: bool(receiver.metrics()))
            for _ in range(3):
                running.stdin.write("\n")
                running.stdin.flush()
                running.stdout.readline()
            running.stdin.close()
            assert agent.wait().returncode == 0
    [one] = latest(tmp_path / "run").values()

    assert (one.id, one.rank, one.flags, one.called) == (0, -1, wire.COMMUNICATOR_LATE, 3)
    assert losses(receiver) == {}


def test_children_that_find_no_room_are_counted_as_lost(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Eight of a thread are remembered until the end of a group; others have no names then."""
    program = WORKLOADS / "nccl_calls.py"
    command = [sys.executable, program, stubs.runtime, stub_nccl(), "many_in_a_group"]
    with Agent(receiver, command, flags=("--record", str(tmp_path / "run"))) as agent:
        [line] = agent.wait().lines
    found = latest(tmp_path / "run", line["pid"]).values()

    assert Counter(one.flags for one in found) == {0: 9, wire.COMMUNICATOR_LATE: 2}
    assert [f"{one.id:016x}" in line["said"] for one in found].count(True) == 9
    assert {one.called for one in found if one.flags} == {1}
    assert losses(receiver) == {"communicators_full": 2}


class Ranks(NamedTuple):
    """Four ranks that trained under an agent: what was read of each, in order, by rank."""

    readings: dict[int, list[Reading]]
    losses: dict[str, int]

    def last(self) -> list[Communicator]:
        """Return what was read last of each rank."""
        return [self.readings[rank][-1].communicator for rank in sorted(self.readings)]


def train(
    receiver: OtlpReceiver, stubs: StubLibraries, folder: Path, *how: str, limit_s: int = 60
) -> Ranks:
    """Run four ranks, no longer than a limit."""
    ranks = [workload("ranks"), stubs.runtime, stub_nccl(), "4", "100", "pace_us=1000", *how]
    command = ["timeout", "-s", "KILL", str(limit_s), *ranks]
    with Agent(receiver, command, flags=("--record", str(folder / "run"))) as agent:
        started = [line for line in agent.wait().lines if "comm" in line]
    assert {line["comm"] for line in started} == {started[0]["comm"]}
    readings: dict[int, list[Reading]] = {line["rank"]: [] for line in started}
    ranks_of = {line["pid"]: line["rank"] for line in started}
    for reading in readings_of(folder / "run"):
        readings[ranks_of[reading.key.pid]].append(reading)
        assert reading.communicator.rank == ranks_of[reading.key.pid]
        assert reading.communicator.rank_count == 4
        assert f"{reading.communicator.id:016x}" == started[0]["comm"]
    return Ranks(readings, losses(receiver))


@pytest.mark.usefixtures("counted_by")
def test_ranks_that_are_well_have_the_same_numbers(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """All is done in the end, and each waited for the others."""
    ranks = train(receiver, stubs, tmp_path)

    assert [(one.called, one.completed, one.failed) for one in ranks.last()] == [(100, 100, 0)] * 4
    assert all(one.waited_ns > 0 and one.completions > 0 for one in ranks.last())
    assert ranks.losses == {}


def test_a_rank_that_stops_has_the_lowest_number_while_others_wait(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """It says so while it lasts, within two seconds; and it waited least of all in the end."""
    stopped = train(
        receiver, stubs, tmp_path, "stop_rank=2", "stop_at=50", "stop_ms=3000", "sync_every=1"
    )

    seen = {
        rank: [one for one in readings if one.communicator.called == (49 if rank == 2 else 50)]
        for rank, readings in stopped.readings.items()
    }
    for rank, readings in seen.items():
        [first, *_] = readings
        called = first.communicator.recent[-1]
        assert first.ktime_ns - called.called_ktime_ns < 2_000_000_000
        assert first.communicator.pending == (0 if rank == 2 else 1)
    waited = [one.waited_ns for one in stopped.last()]
    assert waited[2] < min(waited[rank] for rank in (0, 1, 3)) - 2_000_000_000
    assert stopped.losses == {}


def test_a_rank_that_asks_for_something_else_has_another_signature(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """They all have queued the collective of that number, and it is never done."""
    ranks = train(receiver, stubs, tmp_path, "differ_rank=1", "differ_at=40", limit_s=3)

    asked = [
        {call.number: call.signature for call in one.recent}[40].elements for one in ranks.last()
    ]
    assert asked == [1024, 1025, 1024, 1024]
    assert [(one.called, one.completed) for one in ranks.last()] == [(40, 39)] * 4


def test_what_no_rank_sees_done_is_pending_on_all(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """The device, or the network."""
    ranks = train(receiver, stubs, tmp_path, "never_from=33", limit_s=3)

    assert [(one.called, one.completed) for one in ranks.last()] == [(40, 32)] * 4
    assert len({one.recent[-1].signature for one in ranks.last()}) == 1


@pytest.fixture
def real_nccl() -> Path:
    """The library of the wheel nvidia-nccl-cu12, 350 MB, which needs no GPU to be called."""
    path = os.environ.get("OTEL_GPU_TEST_NCCL")
    if not path:
        pytest.skip("OTEL_GPU_TEST_NCCL does not say where a libnccl.so.2 is")
    return Path(path)


def name_of_id(unique_id: bytes) -> int:
    """Return NCCL's getHash of an id."""
    mask = (1 << 64) - 1
    low, high = 1 ^ len(unique_id), 1
    for (word,) in struct.iter_unpack("<Q", unique_id):
        low = (low + high) & mask
        high ^= low
        low = (low ^ low >> 31) * 0x9DE62BBC8CEF3CE3 & mask
        high = (high ^ high >> 32) * 0x485CD6311B599E79 & mask
        low = (low + word) & mask
    low = (low ^ low >> 31) * 0xBAC3BD562846DE6B + high & mask
    return (low ^ low >> 32) * 0x995A187A14E7B445 & mask


def test_the_real_library_is_seen_as_the_stub_is(
    receiver: OtlpReceiver, stubs: StubLibraries, real_nccl: Path
) -> None:
    """All of its functions of the probe table; ids, by value; sizes; and what its calls return."""
    program = WORKLOADS / "nccl_calls.py"
    command = [sys.executable, program, stubs.runtime, real_nccl, "without_device"]
    with Agent(receiver, command, flags=("--spans", "full")) as agent:
        unique_id, result, refused = agent.wait().lines[0]["said"]

    assert name_of_id(bytes(range(128))) == 0x6AFE1CC17717E1F4
    assert (result, refused) == (1, 4)
    [made] = spans(receiver, "ncclCommInitRank")
    assert made.scope == "otel_gpu.nccl"
    assert made.attributes["gpu.nccl.comm"] == f"{name_of_id(bytes.fromhex(unique_id)):016x}"
    assert made.attributes["error.type"] == "ncclUnhandledCudaError"
    [reduced] = spans(receiver, "ncclReduce")
    assert reduced.attributes["gpu.nccl.elements"] == (5 << 32) + 11
    assert reduced.attributes["gpu.nccl.root"] == 3
    assert reduced.attributes["error.type"] == "ncclInvalidArgument"
    assert losses(receiver) == {}


def test_calls_of_nccl_have_durations_and_spans_of_their_own(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A launch inside a collective is a call of CUDA as ever; one collective inside another is one."""
    program = WORKLOADS / "nccl_calls.py"
    command = [sys.executable, program, stubs.runtime, stub_nccl(), "signatures"]
    with Agent(receiver, command, flags=("--spans", "full")) as agent:
        [line] = agent.wait().lines
    pid, name = line["pid"], line["said"]

    def calls_of(operation: str) -> int:
        found = points(receiver, DURATION, pid, gpu__nccl__operation=operation)
        return sum(point.point.count for point in found)

    assert [calls_of(one) for one in ("all_reduce", "broadcast", "ncclCommInitRank")] == [2, 3, 1]
    assert calls(receiver, "cudaLaunchKernelExC", pid) == 17
    assert total(receiver, "gpu.cuda.kernel.launch.calls", pid) == 17
    numbers = [
        span.attributes["gpu.nccl.number"]
        for operation in ("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclBcast")
        for span in spans(receiver, operation, pid)
        if "gpu.nccl.number" in span.attributes
    ]
    assert sorted(numbers) == [1, 2, 3, 4, 10, 11, 12]
    [span] = spans(receiver, "ncclBcast", pid)
    assert {key: span.attributes[key] for key in span.attributes if "nccl" in key} == {
        "gpu.nccl.comm": name,
        "gpu.nccl.operation": "broadcast",
        "gpu.nccl.number": 4,
        "gpu.nccl.elements": (5 << 32) + 11,
        "gpu.nccl.datatype": "float16",
        "gpu.nccl.root": 5,
    }
    assert span.attributes["gpu.cuda.size"] == 2 * ((5 << 32) + 11)
    assert losses(receiver) == {}
