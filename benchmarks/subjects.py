"""What is measured: call meters in C, the agent as a process, a receiver."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.agent import Agent, environment_for
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import stub_libraries, workload

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Meter(Subject):
    """A running ``timed`` program: makes calls on request and says how long they took."""

    def __init__(self, library: Path, *more: Path) -> None:
        super().__init__((workload("timed"), library, *more))

    def nanoseconds_per_call(self, calls: int) -> float:
        """Make calls and return the mean time of one."""
        return int(self.ask(calls)) / calls


@contextmanager
def steady_load(
    calls_per_second: int, seconds: int, threads: int = 2
) -> Iterator[subprocess.Popen[str]]:
    """Run ``steady`` by itself, for an agent that attaches to it."""
    with subprocess.Popen(
        [
            workload("steady"),
            stub_libraries().runtime,
            str(calls_per_second),
            str(seconds),
            str(threads),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment_for(None),
    ) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def calls_made(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for the end of ``steady`` and return what it counted."""
    assert process.stdout
    counted: dict[str, int] = json.loads(process.stdout.readline())
    process.wait()
    return counted


@contextmanager
def agent_on(
    pid: int,
    receiver: OtlpReceiver,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Agent]:
    """Run the agent on a process and wait until its probes stand."""
    receiver.clear()
    settings = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"} | dict(env or {})
    with Agent(receiver, flags=("--pid", str(pid), *flags), env=settings) as agent:
        receiver.wait_for(
            lambda: any(key.name == "otel_gpu.coverage" for key in receiver.metrics()), 20
        )
        yield agent


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def cpu_share(pid: int, seconds: float) -> float:
    """Watch a process for a while and return its CPU time as a share of one core."""
    start_s, used_s = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - used_s) / (time.monotonic() - start_s)


def python_start_seconds() -> float:
    """Return how long an interpreter takes that does nothing."""
    start_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - start_s
