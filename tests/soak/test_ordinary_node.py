"""
An ordinary node for as long as is given: memory stays small and flat, and every call is counted.

One program makes 2,000 calls a second of two threads; every four seconds three short programs come
and one of Python. See tests/workloads/ordinary_node.py. Where others make calls of CUDA, or of stubs,
meanwhile, OTEL_GPU_SOAK_ALONE=1 has the agent watch the cgroup of these programs, and not the whole host.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agent import CALL_DURATION, LOST, Agent, calls, environment_for
from tests.kernel.storms import DELTA
from tests.receiver import OtlpReceiver
from tests.soak.resident import Watch
from tests.stubs.build import WORKLOADS, StubLibraries, workload

pytestmark = pytest.mark.kernel

_logger = logging.getLogger(__name__)

INTERVAL = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
LONG_S = 30 * 60
TAKEN_EVERY_S = 5.0
END_TIMEOUT_S = 300.0
# Stacks of what had ended, calls that had begun when the probes came, and programs that were there
# before the agent, as that which starts the others. Of what those others made nothing is lost.
SMALL_LOSSES = {"no_entry", "no_return", "sample", "python_frames", "not_watched_from_start"}


class Counts:
    """What a receiver got, added up so that it need not keep it."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver
        self.calls: Counter[tuple[int | None, str]] = Counter()
        self.lost: Counter[str] = Counter()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(TAKEN_EVERY_S):
            self._take()
        self._take()

    def _take(self) -> None:
        for key, point in self._receiver.take():
            if key.name == CALL_DURATION:
                self.calls[key.pid, str(key.attribute("gpu.cuda.api"))] += point.point.count
            elif key.name == LOST and point.point.as_int:
                self.lost[str(key.attribute("reason"))] += point.point.as_int

    def close(self) -> None:
        """End, with all that came until now."""
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def ordinary_node(stubs: StubLibraries, seconds: int) -> Iterator[subprocess.Popen[str]]:
    """The programs of a node, which begin when they get a line."""
    script = WORKLOADS / "ordinary_node.py"
    programs = (stubs.runtime, workload("steady"), workload("storm"))
    with subprocess.Popen(
        [sys.executable, script, *programs, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment_for(None),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_node(process: Any) -> Counter[tuple[int, str]]:
    """Let it run to its end; how many calls each process made of each function."""
    process.stdin.write("\n")
    made: Counter[tuple[int, str]] = Counter()
    for line in process.stdout:
        found = json.loads(line)
        for api, count in found["made"].items():
            made[found["pid"], api] += count  # a pid may come again
    return made


@contextlib.contextmanager
def watched(pid: int) -> Iterator[tuple[str, ...]]:
    """What is watched, as flags of the agent: the host, or what a process starts."""
    if not os.environ.get("OTEL_GPU_SOAK_ALONE"):
        yield ("--all",)
        return
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    roots = [mount.split()[1] for mount in mounts if mount.split()[2] == "cgroup2"]
    assert roots, "OTEL_GPU_SOAK_ALONE: mount a cgroup v2 hierarchy"
    group = Path(roots[0]) / f"otel-gpu-soak-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield ("--cgroup", str(group))
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (Path(roots[0]) / "cgroup.procs").write_text(left)
        group.rmdir()


@pytest.mark.alone
def test_memory_of_an_ordinary_node_is_small_and_flat(
    deadline_s: float, stubs: StubLibraries, receiver: OtlpReceiver
) -> None:
    """RSS stays under 100 MiB, its last third is that of the middle one, and counts are exact."""
    seconds = round(deadline_s - time.monotonic())
    with (
        ordinary_node(stubs, seconds) as node,
        watched(node.pid) as flags,
        Agent(receiver, flags=(*flags, "--summary", "never"), env=DELTA | INTERVAL) as agent,
    ):
        assert node.stdout
        waiting = json.loads(node.stdout.readline())["pid"]
        receiver.wait_for(lambda: calls(receiver, "cudaFree", waiting), 60.0)
        counts, watch = Counts(receiver), Watch(agent.process.pid)
        try:
            made = run_node(node)
        finally:
            watch.close()
            agent.signal(signal.SIGINT)
            finished = agent.wait(END_TIMEOUT_S)
            counts.close()
    _logger.info("%d s, %d processes: %s", seconds, len({pid for pid, _ in made}), watch.describe())

    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr, finished.stderr
    assert made
    assert {key: counts.calls[key] for key in made} == made
    assert counts.lost.keys() <= SMALL_LOSSES, counts.lost
    watch.judge(is_long=seconds >= LONG_S)
