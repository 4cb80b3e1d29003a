"""What can be watched: processes by pid, cgroups, everything."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import (
    Agent,
    calls,
    environment_for,
    losses,
    points,
    spans,
    wait_until,
)
from tests.kernel.meter import open_meter
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
TRAINER = f"""
import ctypes, sys, time

def train(cuda):
    while True:
        cuda.{API}(None)
        time.sleep(0.01)

train(ctypes.CDLL(sys.argv[1]))
"""


def test_a_running_process_is_watched_by_pid_from_then_on(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Once the probes stand, each of 1009 calls counts; the process goes on afterwards."""
    with open_meter(stubs) as meter:
        pid = meter.pid
        with Agent(receiver, flags=("--pid", str(pid))) as agent:
            receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"))
            meter.make(1009)
            agent.signal(signal.SIGINT)
            finished = agent.wait()
        assert calls(receiver, API, pid) == 1009
        assert losses(receiver) == {}
        assert finished.returncode == 0
        assert meter.process.poll() is None


def test_a_run_with_a_duration_ends_by_itself(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """``--duration`` ends the capture of a process that goes on."""
    with subprocess.Popen(
        [workload("steady"), stubs.runtime, "1000", "30"],
        stdout=subprocess.DEVNULL,
        env=environment_for(None),
    ) as steady:
        with Agent(receiver, flags=("--pid", str(steady.pid), "--duration", "1.5")) as agent:
            finished = agent.wait()
        assert steady.poll() is None
        steady.kill()

    assert finished.returncode == 0
    assert calls(receiver, API, steady.pid) > 100


@pytest.mark.alone(among="preload")
def test_all_finds_programs_that_start_later(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """``--all`` needs no process to be named, and skips none for being new."""
    with Agent(receiver, flags=("--all",)) as agent:
        receiver.wait_for(receiver.metrics)
        made = subprocess.run(
            [workload("steady"), stubs.runtime, "1000", "3"],
            stdout=subprocess.PIPE,
            check=True,
            env=environment_for(None),
        )
        agent.signal(signal.SIGTERM)
        agent.wait()

    services = {
        key.service
        for key in receiver.metrics()
        if key.name == "gpu.cuda.call.duration" and key.service == "steady"
    }
    assert services == {"steady"}
    assert b"cudaStreamSynchronize" in made.stdout


@pytest.mark.alone(among="preload")
def test_all_sees_the_python_frames_of_what_runs_already(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    ``--all`` looks at an interpreter when it begins to watch it, and not at the next full scan.
    """

    def stacks() -> list[str]:
        return [
            str(attributes_of(event.attributes)["code.stacktrace"])
            for span in spans(receiver, API, trainer.pid)
            for event in span.span.events
        ]

    # No full scan comes before the end of the test.
    env = {"OTEL_GPU_SPANS_MODE": "full", "OTEL_GPU_CAPTURE_DISCOVERY_INTERVAL_S": "600"}
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, stubs.runtime], env=environment_for(None)
    ) as trainer:
        try:
            with Agent(receiver, flags=("--all",), env=env) as agent:
                receiver.wait_for(lambda: any("train" in stack for stack in stacks()))
                agent.signal(signal.SIGTERM)
                agent.wait()
        finally:
            trainer.kill()

    assert "\ntrain (<string>:6)\n<module> (<string>:9)\n" in stacks()[-1]


def test_a_cgroup_is_watched_with_what_joins_it(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """``--cgroup`` watches the processes of that group and no others."""
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    roots = [mount.split()[1] for mount in mounts if mount.split()[2] == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup v2 hierarchy is mounted")
    group = Path(roots[0]) / f"otel-gpu-test-{os.getpid()}"
    group.mkdir()
    join = f"echo $$ > {group}/cgroup.procs && exec"
    steady = f"{workload('steady')} {stubs.runtime} 1000"
    try:
        with (
            subprocess.Popen(
                ["sh", "-c", f"{join} {steady} 30"], stdout=subprocess.DEVNULL
            ) as inside,
            subprocess.Popen(["sh", "-c", f"exec {steady} 30"], stdout=subprocess.DEVNULL) as out,
        ):
            wait_until(
                lambda: str(inside.pid) in (group / "cgroup.procs").read_text().split(), "joining"
            )
            with Agent(receiver, flags=("--cgroup", str(group))) as agent:
                receiver.wait_for(lambda: calls(receiver, API, inside.pid))
                agent.signal(signal.SIGTERM)
                agent.wait()
            inside.kill()
            out.kill()
        assert calls(receiver, API, out.pid) == 0
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "leaving the cgroup")
        group.rmdir()


def test_two_agents_at_once_both_count_exactly(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Agents do not disturb each other: each has its own probes."""
    with OtlpReceiver() as other, open_meter(stubs) as meter:
        pid = meter.pid
        with (
            Agent(receiver, flags=("--pid", str(pid))) as first,
            Agent(other, flags=("--pid", str(pid))) as second,
        ):
            for one in (receiver, other):
                one.wait_for(lambda one=one: points(one, "otel_gpu.coverage"))
            meter.make(1009)
            for agent in (first, second):
                agent.signal(signal.SIGTERM)
                assert agent.wait().returncode == 0
        counted = [calls(one, API, pid) for one in (receiver, other)]

    assert counted == [1009, 1009]
