"""Processes that are not watched from their first call on are counted, and there are few."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime, workload

pytestmark = pytest.mark.kernel

NOT_WATCHED = "not_watched_from_start"
PROCESSES, CALLS = 211, 7


def test_short_processes_are_seen_under_all(receiver: OtlpReceiver, tmp_path: Path) -> None:
    """
    Hundreds of processes, each gone within milliseconds, use a library that nobody used before.
    Whoever ended before it was looked at leads to the library all the same, so that only the
    first ones are missed, and these are counted.
    """
    library = copy_of_runtime(tmp_path)
    one = f"{workload('first_call')} direct {CALLS} {library}"
    with Agent(receiver, flags=["--all", "--duration", "600"]) as agent:
        receiver.wait_for(receiver.metrics)
        done = subprocess.run(
            ["sh", "-c", f"seq {PROCESSES} | xargs -P 4 -I{{}} {one}"],
            capture_output=True,
            text=True,
            check=True,
        )
        pids = {json.loads(line)["pid"] for line in done.stdout.splitlines()}
        agent.signal(2)
        assert agent.wait().returncode == 0

    counted = {pid: calls(receiver, "cudaMalloc", pid) for pid in pids}
    exact = [pid for pid in pids if counted[pid] == CALLS]
    assert len(pids) == PROCESSES
    assert max(counted.values()) == CALLS
    assert len(exact) > PROCESSES / 2
    assert PROCESSES - len(exact) <= losses(receiver)[NOT_WATCHED] < PROCESSES / 2
