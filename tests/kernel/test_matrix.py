"""The time account says who kept a thread from going on, and all of it while it passes."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import Config
from otel_gpu.enrich.activities import TimesActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, Event, Exec, Exit
from otel_gpu.wire.readings import Counters, Times, TimesEntry, TimesKey
from tests.kernel.agent import FIRST, Agent
from tests.stubs.build import StubLibraries, workload

# Other agents would look at each switch, too.
pytestmark = [pytest.mark.kernel, pytest.mark.alone(among="kernel")]

MS, S = 1_000_000, 1_000_000_000
LONG = os.environ.get("OTEL_GPU_TEST_LONG") == "1"
ACCOUNT = Path(__file__).resolve().parents[1] / "workloads" / "account.py"
LOADED = ACCOUNT.with_name("loaded.py")
INTERVAL_NS = 500 * MS
SETTINGS = {
    "OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": str(INTERVAL_NS / S),
    "OTEL_GPU_EXPLAIN_ENABLED": "false",
}
WAITS = 10_007
SEED = 20_011


class Recorded(NamedTuple):
    """What a workload said of itself, and what was recorded of it."""

    said: dict[str, Any]
    events: Sequence[Event]

    def readings(self) -> Iterator[tuple[int, Counter[tuple[int, int]]]]:
        """Yield when the account was read, and what it was then: by state and context."""
        entries: dict[TimesKey, int] = {}
        for event in self.events:
            if type(event) is not Times:
                continue
            entries |= {e.key: e.time_ns for e in event.entries if e.key.pid == self.said["pid"]}
            sums: Counter[tuple[int, int]] = Counter()
            for key, time_ns in entries.items():
                sums[key.state, key.context] += time_ns
            yield event.ktime_ns, sums

    def times(self) -> list[ThreadTime]:
        """Return the last word of the account of the last image of the process."""
        last: Sequence[ThreadTime] = ()
        for activity in Enricher().enrich(self.events):
            if isinstance(activity, TimesActivity):
                times = [t for t in activity.times if t.process.pid == self.said["pid"]]
                last = times or last
        newest = max(time.process.program_ktime_ns for time in last)
        return [time for time in last if time.process.program_ktime_ns == newest]

    def losses(self) -> dict[str, int]:
        """Return what was lost, by reason."""
        *_, counters = (event for event in self.events if type(event) is Counters)
        return {
            name: count
            for number, name in wire.COUNTER_NAMES.items()
            if name.startswith("counter_lost_") and (count := counters.values[number])
        }


def record(
    folder: Path, command: Sequence[object], settings: dict[str, str], inside: Sequence[str] = FIRST
) -> Recorded:
    path = folder / "matrix.otelgpu"
    flags = ("--record", str(path), "--spans", "full", "--summary", "never")
    with Agent(None, [*map(str, command)], flags=flags, env=settings, inside=inside) as agent:
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    rejected: Counter[str] = Counter()
    events = [event for batch in read_recording(path) for event in decode(batch, rejected)]
    assert not rejected
    *_, said = finished.lines
    return Recorded(said, events)


@pytest.mark.parametrize("does", ["spins", "sleeps"])
def test_a_call_is_in_the_account_while_it_lasts(
    tmp_path: Path, stubs: StubLibraries, does: str
) -> None:
    """
    At every reading during one long synchronize, all time since it began is that of waiting for
    the device, within 1 %, whether the driver spins or sleeps.
    """
    long_ns = (20 if LONG else 5) * S
    times = (long_ns, 0) if does == "spins" else (0, long_ns)
    command = [sys.executable, ACCOUNT, stubs.runtime, "spin_and_sleep", 1, *times]
    recorded = record(tmp_path, command, SETTINGS)
    [call] = (e for e in recorded.events if type(e) is CudaCall and e.tid == recorded.said["tid"])
    readings = [
        (ktime_ns - call.start_ktime_ns, sums)
        for ktime_ns, sums in recorded.readings()
        if call.start_ktime_ns + S < ktime_ns < call.end_ktime_ns
    ]

    assert len(readings) >= (long_ns - 2 * S) // INTERVAL_NS / 2
    states = (wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED)
    for elapsed_ns, sums in readings:
        inside = [sums[state, wire.CONTEXT_SYNCHRONIZE] for state in states]
        # The reader may have to wait for a CPU itself.
        assert sum(inside) == pytest.approx(elapsed_ns, rel=0.01, abs=20 * MS)
        if does == "spins":
            assert sum(inside[:2]) >= 0.99 * sum(inside)
            assert inside[0] > 0
        else:
            assert inside[2] >= 0.99 * sum(inside)
    # What others booked in between is not booked again.
    inside = [recorded_ns(recorded, state, wire.CONTEXT_SYNCHRONIZE) for state in states]
    assert sum(inside) == call.end_ktime_ns - call.start_ktime_ns
    assert inside[2] == call.blocked_ns
    assert inside[1] == call.run_queue_ns
    assert recorded.losses() == {}


def recorded_ns(recorded: Recorded, state: int, context: int) -> int:
    return sum(t.ended_ns for t in recorded.times() if (t.state, t.context) == (state, context))


def test_all_time_of_a_thread_is_in_the_account(tmp_path: Path, stubs: StubLibraries) -> None:
    """
    The rows of a process sum to the time that its thread existed; and where no wait is open, all
    of it has ended, to the nanosecond.
    """
    command = [sys.executable, ACCOUNT, stubs.runtime, "gap", 40, 3 * MS, 12 * MS]
    recorded = record(tmp_path, command, SETTINGS | {"OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.1"})
    pid = recorded.said["pid"]
    *_, begin = (e for e in recorded.events if type(e) is Exec and e.pid == pid)
    [end] = (e for e in recorded.events if type(e) is Exit and e.pid == pid)
    times = recorded.times()

    assert {time.process.program_ktime_ns for time in times} == {begin.program_ktime_ns}
    assert sum(time.time_ns for time in times) == pytest.approx(
        end.ktime_ns - begin.ktime_ns, rel=0.001, abs=5 * MS
    )
    assert sum(time.ended_ns for time in times) == sum(time.time_ns for time in times)
    assert recorded.losses() == {}


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Waits for two threads, while hogs come and go on the same CPU."""
    cpu = max(os.sched_getaffinity(0))
    command = [workload("waited"), WAITS, cpu, SEED]
    # Not below the command, so that they are not watched.
    with subprocess.Popen([workload("hogs"), str(cpu), str(SEED)], stdin=subprocess.PIPE):
        return record(tmp_path_factory.mktemp("waited"), command, SETTINGS, inside=())


def test_waits_are_told_by_who_ended_them(waited: Recorded) -> None:
    """10,007 of known length: within 1 % of what the threads say, by who woke the first one."""
    blocked: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for time in waited.times():
        if time.state == wire.STATE_BLOCKED and time.wait.who and time.reason == "lock":
            blocked[time.wait.who.tid] += time.ended_ns
            counts[time.wait.who.tid] += time.count

    assert sum(waker["waits"] for waker in waited.said["wakers"]) == WAITS
    for waker in waited.said["wakers"]:
        assert blocked[waker["tid"]] == pytest.approx(waker["blocked_ns"], rel=0.01)
        assert counts[waker["tid"]] == pytest.approx(waker["waits"], rel=0.01)
    assert waited.losses() == {}


def test_what_the_others_did_meanwhile_is_said(waited: Recorded) -> None:
    """The one slept as long as it was asked to, the other one was busy, or waited for a CPU."""
    did: Counter[tuple[int, str]] = Counter()
    tids = {waker["tid"] for waker in waited.said["wakers"]}
    for time in waited.times():
        wait = time.wait
        if wait.end and wait.who and wait.who.tid in tids:
            did[wait.end.tid, wait.end_reason or str(wait.end_state)] += time.ended_ns
    sleeper, spinner = waited.said["wakers"]

    # It oversleeps by the slack of its timer, which is 50 us.
    assert 0.9 <= did[sleeper["tid"], "sleep"] / sleeper["asked_ns"] <= 1.2
    busy_ns = did[spinner["tid"], str(wire.STATE_ON_CPU)]
    busy_ns += did[spinner["tid"], str(wire.STATE_RUN_QUEUE)]
    assert busy_ns >= 0.95 * spinner["blocked_ns"]


def test_time_and_ended_time_are_the_same_when_no_wait_is_open(waited: Recorded) -> None:
    """To the nanosecond, in spite of readings in the midst of waits."""
    times = waited.times()

    assert sum(time.ended_ns for time in times) == sum(time.time_ns for time in times) > 0


def test_the_time_in_the_run_queue_is_that_of_who_had_the_cpu(waited: Recorded) -> None:
    """
    Of the hogs, and of whoever else runs on this machine.

    Nobody has an idle CPU, which takes time to wake up: that is told from not knowing who it was.
    """
    entries: dict[TimesKey, TimesEntry] = {}
    for event in waited.events:
        if type(event) is Times:
            entries |= {e.key: e for e in event.entries if e.key.pid == waited.said["pid"]}
    queued: Counter[str] = Counter()
    of_nobody = []
    for key, entry in entries.items():
        if key.state == wire.STATE_RUN_QUEUE:
            is_idle = not key.who_pid and key.flags & wire.STALL_IDLE_CPU
            queued["idle" if is_idle else entry.who_comm] += entry.ended_ns
            if not is_idle and not entry.who_comm:
                of_nobody.append(entry)
    said_ns = sum(waker["run_queue_ns"] for waker in waited.said["wakers"])

    assert sum(queued.values()) >= 0.95 * said_ns
    assert queued["hogs"] + queued["hog"] > 0
    assert queued[""] <= 0.1 * sum(queued.values()), of_nobody


@pytest.mark.parametrize("how", ["pipe", "queue"])
def test_a_wait_ends_at_what_the_maker_of_the_data_did(
    tmp_path: Path, stubs: StubLibraries, how: str
) -> None:
    """
    Through a pipe, and through a thread that writes into it: whoever waits for data waits for
    the CPU time that making it takes.
    """
    command = [sys.executable, LOADED, stubs.runtime, how, 101, 20 * MS]
    recorded = record(tmp_path, command, SETTINGS)
    maker, waited_ns = recorded.said["maker"], recorded.said["waited_ns"]
    waits = [
        time
        for time in recorded.times()
        if (time.state, time.context) == (wire.STATE_BLOCKED, wire.CONTEXT_GAP)
        and time.wait.who is not None
        and time.wait.who.pid == maker
    ]
    ends: Counter[tuple[int, str]] = Counter()
    for time in waits:
        end = time.wait.end
        if time.wait.end_state == wire.STATE_RUN_QUEUE and end and end.tid != maker:
            continue  # Who writes into the pipe waited for a CPU: so busy is this machine.
        # The waits of a thread for a CPU are its work, too, and of how busy this machine is.
        state = (
            wire.STATE_ON_CPU
            if time.wait.end_state == wire.STATE_RUN_QUEUE
            else time.wait.end_state
        )
        ends[state, "maker" if end and (end.pid, end.tid) == (maker, maker) else str(end)] += (
            time.ended_ns
        )

    assert sum(time.ended_ns for time in waits) >= 0.9 * waited_ns
    assert ends[wire.STATE_ON_CPU, "maker"] >= 0.95 * sum(ends.values()), ends
    # One that has ended since is known by its process only.
    writers = {time.wait.who.tid for time in waits if time.wait.who} - {0}
    assert (writers == {maker}) == (how == "pipe")


def test_time_that_finds_no_room_loses_its_details_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is lost, and where it went without is counted."""
    load = BpfObject.load

    def load_with_little_room(bpf: BpfObject) -> None:
        bpf.set_max_entries("thread_times", 4)
        load(bpf)

    monkeypatch.setattr(BpfObject, "load", load_with_little_room)
    command = ["sh", "-c", 'read line; exec "$@"', "sh", str(workload("waited")), "101", "0", "7"]
    with (
        Programs(Config(), watch_all=False) as programs,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        programs.attach()
        assert programs.processes.watch(process.pid, 0)
        process.communicate(b"\n")
        assert process.returncode == 0
        entries = [
            (TimesKey._make(wire.TIMES_KEY.unpack(key)), wire.TIMES.named(value))
            for key, value in programs.read_times()
        ]
        counters = programs.read_counters()

    program_ktime_ns = max(key.program_ktime_ns for key, _ in entries)
    sums = [value for key, value in entries if key.program_ktime_ns == program_ktime_ns]
    folded = [key for key, _ in entries if key.is_folded]
    assert sum(value["time_ns"] for value in sums) == sum(value["ended_ns"] for value in sums) > 0
    assert folded
    assert {(key.who_pid, key.end_pid, key.kernel_stack) for key in folded} == {(0, 0, -1)}
    assert counters[wire.COUNTER_TIMES_FOLDED] > 0
    assert counters[wire.COUNTER_LOST_TIMES_FULL] == 0
