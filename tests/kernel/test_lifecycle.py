"""How a run ends, and what is left when the agent or the workload is killed."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kernel.agent import (
    Agent,
    bpf_objects,
    calls,
    existing,
    losses,
    points,
    seconds_to_end,
    state_of,
    total,
    wait_until,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, copy_of_runtime, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"


def test_kill_9_of_the_agent_leaves_the_workload_running_and_no_probe(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The workload never notices; programs and links go with the agent."""
    with Agent(receiver, [workload("timed"), stubs.runtime], stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()
        agent.send_line("1009")
        assert agent.next_line() > 0
        receiver.wait_for(lambda: calls(receiver, API, pid))
        programs = bpf_objects("prog", agent.process.pid)
        links = bpf_objects("link", agent.process.pid)
        assert programs
        assert links
        agent.signal(signal.SIGKILL)
        agent.process.wait()

        assert state_of(pid) not in (None, "T", "Z")
        wait_until(lambda: not links & existing("link"), "detaching")
        wait_until(lambda: not programs & existing("prog"), "unloading")
        agent.send_line("1009")
        assert agent.next_line() > 0


@pytest.mark.parametrize("opened", [1, 2, 3, 5])
def test_kill_9_while_probes_are_placed_leaves_no_stopped_process(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path, opened: int
) -> None:
    """A program that waits in dlopen for its probes goes on when the agent is gone."""
    copies = [copy_of_runtime(tmp_path / str(number)) for number in range(12)]
    with Agent(receiver, [workload("many"), *copies]) as agent:
        for _ in range(opened):
            pid = agent.next_line()["pid"]
        agent.signal(signal.SIGKILL)
        agent.process.wait()

        wait_until(lambda: state_of(pid) in (None, "Z"), "the end of the workload")


def test_kill_9_leaves_no_stopped_process_in_other_sessions_either(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Workers in sessions of their own, all in the middle of a dlopen, go on as well."""
    copies = [str(copy_of_runtime(tmp_path / str(number))) for number in range(8)]
    worker = f"setsid -w {workload('many')} {' '.join(copies)}"
    script = f"{worker} & {worker} & {worker} & {worker} & wait"
    with Agent(receiver, ["sh", "-c", script]) as agent:
        pids = {agent.next_line()["pid"] for _ in range(6)}
        agent.signal(signal.SIGKILL)
        agent.process.wait()
        try:
            wait_until(
                lambda: all(state_of(pid) in (None, "Z") for pid in pids), "the end of the workers"
            )
        finally:
            # They are in no process group that the fixture could end.
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_sigterm_flushes_everything_and_ends_in_bounded_time(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """SIGTERM ends the run; what the workload had called by then has arrived."""
    env = {"CUDA_STUB": f"{API}:fail=700,fail_every=100"}
    with Agent(receiver, [workload("steady"), stubs.runtime, "2000", "30"], env=env) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, API, pid) > 1000)
        took_s = seconds_to_end(agent)
        finished = agent.wait()

    made = finished.lines[-1]
    assert calls(receiver, API, pid) == made[API]
    failed = calls(receiver, API, pid, error__type="cudaErrorIllegalAddress")
    assert failed == made["failures"] > 0
    assert took_s < 8
    assert state_of(pid) is None


def test_sigterm_with_a_silent_receiver_is_bounded_too(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A receiver that never answers costs the shutdown timeout and no more."""
    env = {"OTEL_GPU_EXPORT_SHUTDOWN_TIMEOUT_S": "2"}
    with Agent(receiver, [workload("steady"), stubs.runtime, "2000", "30"], env=env) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, API, pid))
        receiver.pause()
        took_s = seconds_to_end(agent)
        agent.wait()
        receiver.resume()

    assert took_s < 8


def test_the_counts_of_a_killed_process_are_not_lost(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """SIGKILL takes the process, not what it had called."""
    command = [workload("timed"), stubs.runtime]
    with Agent(receiver, command, stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()
        agent.send_line("1009")
        assert agent.next_line() > 0
        os.kill(pid, signal.SIGKILL)
        finished = agent.wait()

    assert finished.returncode == 128 + signal.SIGKILL
    assert calls(receiver, API, pid) == 1009
    assert losses(receiver) == {}


@pytest.mark.usefixtures("counted_by_probes")
def test_self_telemetry_counts_the_agents_own_cost(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The agent reports probe hits, its CPU time and memory, and the share of symbols probed."""
    with Agent(receiver, [workload("exact"), stubs.runtime, "5003", "2"]) as agent:
        agent.wait()

    hits = total(receiver, "otel_gpu.probe.hits", otel_gpu__probe__type="entry")
    (memory,) = points(receiver, "otel_gpu.overhead.memory")
    coverage = {p.point.as_double for p in points(receiver, "otel_gpu.coverage")}
    assert hits >= 5003
    assert 0 < memory.point.as_int < 200 * 1024 * 1024
    assert coverage == {1.0}
