"""What the agent takes from its neighbours: it runs below them, and explains what is worth it."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

PER_SECOND = 7
# The lowest priority that Linux has: the tests themselves can run at a low one.
LOWEST = 19
# Runs the agent, and says at its end how often it looked for causes, and of how many effects of which second.
COUNTING = """
import json, os, sys
from collections import Counter
from otel_gpu.cli import main
from otel_gpu.explain.causes import Causes
from otel_gpu.explain.chain_builder import ChainBuilder
find, explain, explain_example = Causes.find, ChainBuilder.explain, ChainBuilder.explain_example
counts, seconds = Counter(), Counter()
def count_find(*arguments):
    counts["found"] += 1
    return find(*arguments)
def count_effect(self, candidate):
    chain = explain(self, candidate)
    seconds[candidate.end_unix_ns // 10**9] += chain is not None
    return chain
def count_example(*arguments):
    counts["examples"] += 1
    return explain_example(*arguments)
Causes.find, ChainBuilder.explain, ChainBuilder.explain_example = count_find, count_effect, count_example
code = main(sys.argv[4:])
with open(os.environ["COUNTED"], "w") as file:
    json.dump({**counts, "seconds": list(seconds.values())}, file)
sys.exit(code)
"""


def nice_of(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


@pytest.mark.parametrize(("setting", "lowered_by"), [(None, 10), ("3", 3), ("0", 0)])
def test_the_agent_runs_below_what_it_watches(
    receiver: OtlpReceiver, stubs: StubLibraries, setting: str | None, lowered_by: int
) -> None:
    """As is configured; its command, and what that may set, is as if it ran by itself."""
    env = {} if setting is None else {"OTEL_GPU_CAPTURE_NICE": setting}
    says = (
        "import json, os, resource;"
        "print(json.dumps([os.nice(0), resource.getrlimit(resource.RLIMIT_NICE)]), flush=True);"
        f"os.execv({str(workload('steady'))!r}, ['steady', {str(stubs.runtime)!r}, '100', '30'])"
    )
    with Agent(receiver, [sys.executable, "-c", says], env=env) as agent:
        assert agent.next_line() == [nice_of(0), list(_nice_limit())]
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", pid))
        lowered = min(nice_of(0) + lowered_by, LOWEST)
        receiver.wait_for(lambda: nice_of(agent.process.pid) == lowered)
        assert nice_of(pid) == nice_of(0)
        agent.signal(15)
        agent.wait()


def _nice_limit() -> tuple[int, int]:
    import resource  # noqa: PLC0415

    return resource.getrlimit(resource.RLIMIT_NICE)


@contextlib.contextmanager
def busy_cpus(per_cpu: int) -> Iterator[None]:
    """Keep all CPUs busy with programs of usual priority."""
    hogs = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"])
        for _ in range(per_cpu * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_nothing_is_lost_on_a_busy_machine(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Others want all CPUs, and the agent is below them: each call is counted, and none of its records is lost."""
    command = [workload("short_waits"), stubs.runtime, "2", "1511"]
    with busy_cpus(2), Agent(receiver, command, flags=("--spans", "full")) as agent:
        made = agent.wait().lines[-1]

    for api in ("cudaStreamSynchronize", "cudaLaunchKernel"):
        assert calls(receiver, api, made["pid"]) == made[api] == 3_022
    assert losses(receiver) == {}


def test_many_short_waits_cost_few_explanations(stubs: StubLibraries, tmp_path: Path) -> None:
    """A thousand slow gaps a second: causes are looked for of the configured number, calls count exactly."""
    store, counted = tmp_path / "store.db", tmp_path / "counted"
    env = {
        "OTEL_GPU_EXPLAIN_CHAINS_PER_SECOND": str(PER_SECOND),
        "OTEL_GPU_STORE_ENABLED": "auto",
        "COUNTED": str(counted),
    }
    command = [workload("short_waits"), stubs.runtime, "2", "14009"]
    flags = ("--store", str(store), "--summary", "never")
    inside = (sys.executable, "-c", COUNTING)
    with Agent(None, command, flags=flags, env=env, inside=inside) as agent:
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    made, work = finished.lines[-1], json.loads(counted.read_text())

    with contextlib.closing(sqlite3.connect(store)) as database:
        calls_of = dict(
            database.execute("SELECT api, sum(calls) FROM v_counts GROUP BY api").fetchall()
        )
        (kept,) = database.execute("SELECT count(*) FROM chains").fetchone()
        lost = dict(database.execute("SELECT reason, rows FROM losses").fetchall())
    for api in ("cudaStreamSynchronize", "cudaLaunchKernel"):
        assert calls_of[api] == made[api] == 28_018
    assert max(work["seconds"]) == PER_SECOND
    assert work["found"] == sum(work["seconds"]) + work.get("examples", 0)
    assert kept == sum(work["seconds"])
    # A third of the gaps are long, and slow from the moment on at which it is known what is usual.
    assert set(lost) == {"chains_over_rate"}
    assert 50 * PER_SECOND < lost["chains_over_rate"] < 28_018
    assert finished.stderr == ""
