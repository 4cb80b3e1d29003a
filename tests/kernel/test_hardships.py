"""Bad days of a host: the agent stands still, has no memory, no disk, or is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import (
    Agent,
    bpf_objects,
    calls,
    existing,
    losses,
    otel_gpu,
    state_of,
    wait_until,
)
from tests.kernel.meter import open_meter
from tests.kernel.test_faults import Sabotaged
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
STILL_S = 10.0
MIB = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")


def make(agent: Agent, count: int) -> int:
    """Have the call meter under an agent make calls; returns when they are made."""
    agent.send_line(str(count))
    assert agent.next_line() > 0
    return count


def test_an_agent_that_stands_still_for_ten_seconds_loses_no_count(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    The ring is full long before it goes on: what found no room is counted, and nothing else is lost.
    """
    env = {
        "OTEL_GPU_CAPTURE_RING_BUFFER_BYTES": "65536",
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
    }
    command = [workload("timed"), stubs.runtime]
    with Agent(
        receiver, command, flags=("--spans", "full"), env=env, stdin=subprocess.PIPE
    ) as agent:
        pid = agent.next_line()
        made = make(agent, 101)
        receiver.wait_for(lambda: calls(receiver, API, pid) == made)
        agent.signal(signal.SIGSTOP)
        wait_until(lambda: state_of(agent.process.pid) == "T", "the stop")
        began_s = time.monotonic()
        while time.monotonic() - began_s < STILL_S:
            made += make(agent, 1009)
        agent.signal(signal.SIGCONT)
        made += make(agent, 503)
        agent.process.stdin.close()
        done = agent.wait()

    lost = losses(receiver)
    assert done.returncode == 0
    assert calls(receiver, API, pid) == made
    assert lost["ring_full"] > 0
    assert set(lost) <= {"ring_full", "sample", "cpu_sample"}
    assert "otel-gpu: error" not in done.stderr


@contextmanager
def tiny_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of so many bytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_costs_the_store_its_rows_until_there_is_room(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    The exports are exact all the while; the lost rows are counted; later calls are in the store.
    """
    with tiny_disk(tmp_path / "disk", 4 * MIB) as disk:
        store, filler = disk / "store.db", disk / "filler"
        env = {"OTEL_GPU_STORE_ENABLED": "on", "OTEL_GPU_STORE_PATH": str(store)}
        command = [workload("timed"), stubs.runtime]
        with Agent(receiver, command, env=env, stdin=subprocess.PIPE) as agent:
            pid = agent.next_line()
            made = make(agent, 101)
            receiver.wait_for(lambda: calls(receiver, API, pid) == made)
            with contextlib.suppress(OSError), filler.open("wb", 0) as file:
                while True:
                    file.write(bytes(4096))
            made += make(agent, 1009)
            wait_until(lambda: "the disk is full" in agent.stderr, "the full disk")
            filler.unlink()
            made += make(agent, 503)
            agent.process.stdin.close()
            done = agent.wait()
        kept = otel_gpu(
            *("query", "--store", store, "--json"),
            f"SELECT sum(calls) FROM v_counts WHERE pid = {pid} AND api = '{API}'",
        )
        lost = otel_gpu("query", "--store", store, "SELECT * FROM v_losses").stdout

    assert done.returncode == 0
    assert calls(receiver, API, pid) == made
    assert losses(receiver) == {}
    assert "disk_full" in lost
    # What was counted while there was no room went with its rows.
    ((count,),) = json.loads(kept.stdout)["rows"]
    assert 101 + 503 <= count <= made
    assert "Traceback" not in done.stderr


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup of this host that may have so much memory."""
    is_unified = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if is_unified else CGROUPS / "memory") / f"otel-gpu-limit-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.max" if is_unified else "memory.limit_in_bytes")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of the agent")
        group.rmdir()


def inside(group: Path) -> tuple[str, ...]:
    """Return what runs a command in a cgroup."""
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


def test_the_agent_keeps_within_the_memory_of_its_cgroup(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    With 256 MiB for all of it, every call a span and an endpoint that is gone, it lives and counts.
    """
    env = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000"}
    with memory_cgroup(256 * MIB) as group, open_meter(stubs) as meter:
        flags = ("--pid", str(meter.pid), "--spans", "full")
        with Agent(receiver, flags=flags, env=env, inside=inside(group)) as agent:
            receiver.wait_for(receiver.metrics)
            receiver.stop()
            made = sum(meter.make(5003) for _ in range(4))
            receiver.start()
            agent.signal(signal.SIGTERM)
            done = agent.wait()

    assert done.returncode == 0
    assert calls(receiver, API, meter.pid) == made


def test_an_agent_that_is_out_of_memory_leaves_nothing(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The kernel kills it; no probe and no program of it stays, and the watched process goes on."""
    with memory_cgroup(256 * MIB) as group, open_meter(stubs) as meter:
        with Agent(receiver, flags=("--pid", str(meter.pid)), inside=inside(group)) as agent:
            receiver.wait_for(receiver.metrics)
            held = {kind: bpf_objects(kind, agent.process.pid) for kind in ("prog", "link")}
            # The first to go, when another one takes what the cgroup has.
            Path(f"/proc/{agent.process.pid}/oom_score_adj").write_text("1000")
            subprocess.run(
                [*inside(group), sys.executable, "-c", "bytes(range(1, 255)) * (2 << 20)"],
                stderr=subprocess.DEVNULL,
                check=False,
            )
            wait_until(lambda: agent.process.poll() is not None, "the kill")
            assert agent.process.returncode == -signal.SIGKILL
        for kind, ids in held.items():
            assert ids
            wait_until(lambda kind=kind, ids=ids: not ids & existing(kind), "detaching")

        assert state_of(meter.pid) not in (None, "T", "Z")
        assert meter.make(101) == 101


@pytest.mark.parametrize("state", ["loading", "capturing", "exporting", "failed"])
def test_kill_9_in_any_state_leaves_no_probe_and_no_stopped_process(
    receiver: OtlpReceiver, stubs: StubLibraries, state: str
) -> None:
    """
    While it loads, captures, exports the last of it, or waits for a command that it failed to watch.
    """
    place = "otel_gpu.capture.session:Session._is_over@3" if state == "failed" else ""
    script = "echo '{}'; read line; echo '{}'; read line"
    with Sabotaged(place, receiver, ["sh", "-c", script], stdin=subprocess.PIPE) as agent:
        agent_pid = agent.process.pid
        wait_until(lambda: bpf_objects("prog", agent_pid), "loading")
        held = bpf_objects("prog", agent_pid)
        (command_pid, *_) = [pid for pid in children(agent_pid) if not is_guard(pid)]
        if state != "loading":
            agent.next_line()
        if state == "exporting":
            receiver.pause()
            agent.send_line()
            agent.send_line()
            wait_until(lambda: state_of(command_pid) in (None, "Z"), "the end of the command")
        if state == "failed":
            wait_until(lambda: "goes on without it" in agent.stderr, "the failure")
        held |= bpf_objects("prog", agent_pid)
        agent.signal(signal.SIGKILL)
        agent.process.wait()
        receiver.resume()
        wait_until(lambda: not held & existing("prog"), "unloading")

        if state in ("capturing", "failed"):
            assert state_of(command_pid) not in (None, "T", "Z")
            agent.send_line()
            agent.next_line()
            agent.send_line()
        wait_until(lambda: state_of(command_pid) in (None, "Z"), "the end of the command")


def children(pid: int) -> list[int]:
    """Return the pids of the processes that a process forked, the first one first."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return sorted(map(int, text.split()))


def is_guard(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").startswith("otel-gpu-guard")
