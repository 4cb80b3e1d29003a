"""
Many short CUDA programs under one agent: a day of a busy node in a few minutes.

In ``make test`` a few hundred of them; ``make soak`` sets ``OTEL_GPU_SOAK_PROCESSES`` to as many
as a day may bring. Only then is there enough to judge whether memory is flat.
"""

import json
import logging
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agent import (
    Agent,
    bpf_objects,
    calls,
    losses,
    open_files,
    otel_gpu,
    wait_until,
)
from tests.kernel.storms import API, DELTA, counted, storm, waiting_storm
from tests.receiver import OtlpReceiver
from tests.soak.resident import Watch
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

_logger = logging.getLogger(__name__)

CALLS = 7
PAUSE_US = 3_000  # seven calls take 21 ms, and more on a busy machine
AT_ONCE = 4
MODES = "linked,opened"
PROCESSES = int(os.environ.get("OTEL_GPU_SOAK_PROCESSES", "211"))
# From so many on, warming up is over in the first third.
ENOUGH = 5_000
KEEP = {"OTEL_GPU_STORE_ENABLED": "auto"}
# A call that had begun when the probes came, or between those of entry and return, and stacks of
# programs that ended before they could be looked at. No counts are among them. What tests beside
# these lose would be, so they run alone.
SMALL_LOSSES = {"no_entry", "no_return", "sample"}
# What others on a busy host do to a program: incidents all the same.
OF_THE_HOST = {"preemption", "run_queue", "stopped"}
END_TIMEOUT_S = 120.0


def files_of(pids: AbstractSet[int], agent: int) -> list[str]:
    """What an agent has open of some processes: others may run on this host meanwhile."""
    found = ((link, re.match(r"/proc/(\d+)/", link)) for link in open_files(agent))
    return [link for link, match in found if match and int(match[1]) in pids]


def waiting(stubs: StubLibraries) -> AbstractContextManager[Any]:
    """The parent of the short processes, which waits for a line before it starts them."""
    return waiting_storm(storm(stubs, PROCESSES, AT_ONCE, CALLS, PAUSE_US, MODES))


def run_storm(process: Any, agent: Agent) -> tuple[Counter[int], Watch]:
    """Let it begin; the calls that each process made, and what the agent was seen to use."""
    maps = bpf_objects("map", agent.process.pid)
    watch = Watch(agent.process.pid)
    try:
        process.stdin.write("\n")
        *children, total = [json.loads(line) for line in process.stdout]
    finally:
        watch.close()
    _logger.info("%d processes: %s", PROCESSES, watch.describe())
    made: Counter[int] = Counter()
    for child in children:  # a pid may come again
        made[child["pid"]] += child[API]
    wait_until(lambda: not files_of(made.keys(), agent.process.pid), "closing files", 60.0)
    assert bpf_objects("map", agent.process.pid) == maps
    agent.signal(signal.SIGINT)
    finished = agent.wait(END_TIMEOUT_S)
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr, finished.stderr
    assert total["processes"] == PROCESSES
    return made, watch


@pytest.mark.alone
def test_short_programs_are_exported_exactly(stubs: StubLibraries, receiver: OtlpReceiver) -> None:
    """Each process is one resource with all its calls, and none of its own doing is an incident."""
    with (
        waiting(stubs) as process,
        Agent(receiver, flags=("--all", "--summary", "never"), env=DELTA) as agent,
    ):
        parent = json.loads(process.stdout.readline())["parent"]
        receiver.wait_for(lambda: calls(receiver, "cudaFree", parent), 60.0)
        made, watch = run_storm(process, agent)

    resources = defaultdict(set)
    for key, point in receiver.points():
        if key.pid in made:
            name = point.resource["service.instance.id"]
            resources[name].add(tuple(sorted(point.resource.items())))
    spans = receiver.spans()
    for span in spans:
        if span.resource.get("process.pid") in made:
            name = span.resource["service.instance.id"]
            resources[name].add(tuple(sorted(span.resource.items())))

    assert losses(receiver).keys() <= SMALL_LOSSES
    of_receiver = counted(receiver)
    assert {pid: of_receiver[pid] for pid in made} == made
    assert [name for name, known in resources.items() if len(known) != 1] == []
    blamed = [
        span.attributes["otel_gpu.cause.kind"]
        for span in spans
        if span.span.name == "gpu.incident" and span.resource.get("process.pid") in made
    ]
    assert set(blamed) <= OF_THE_HOST, Counter(blamed)
    watch.judge(is_long=PROCESSES >= ENOUGH)


@pytest.mark.alone
def test_short_programs_are_kept_exactly(stubs: StubLibraries, tmp_path: Path) -> None:
    """The store has each process once, with all its calls, and no incident of its own doing."""
    store = tmp_path / "storm.db"
    flags = ("--all", "--store", str(store), "--summary", "never")
    with waiting(stubs) as process, Agent(None, flags=flags, env=KEEP) as agent:
        process.stdout.readline()
        query = "SELECT sum(calls) FROM v_counts WHERE api = 'cudaFree'"
        wait_until(lambda: store.exists() and ask(store, query)[0][0], "the first calls", 30.0)
        made, watch = run_storm(process, agent)

    kept: Counter[int] = Counter()
    for pid, count in ask(
        store, f"SELECT pid, sum(calls) FROM v_counts WHERE api = '{API}' GROUP BY pid"
    ):
        if pid in made:
            kept[pid] += count
    report = json.loads(otel_gpu("explain", "--store", store, "--json", timeout_s=300).stdout)

    assert kept == made
    assert report["losses"].keys() <= SMALL_LOSSES
    incidents = incidents_of(report, made.keys())
    blamed = [incident["causes"][0]["kind"] for incident in incidents]
    assert set(blamed) <= OF_THE_HOST, Counter(blamed)
    watch.judge(is_long=PROCESSES >= ENOUGH)


def test_a_command_of_short_programs_keeps_its_exit_code(
    stubs: StubLibraries, tmp_path: Path
) -> None:
    """Run as a command, its children are kept exactly, and what it ends with is ours."""
    store = tmp_path / "command.db"
    count = PROCESSES // 2
    script = f"{' '.join(storm(stubs, count, AT_ONCE, CALLS, 100, 'linked'))}; exit 23"
    flags = ("--store", str(store), "--summary", "never")
    with Agent(None, ["/bin/sh", "-c", script], flags=flags, env=KEEP) as agent:
        finished = agent.wait(600.0 + PROCESSES / 10)

    *children, total = finished.lines
    assert finished.returncode == 23, finished.stderr
    assert total["processes"] == len(children) == count
    ((calls_kept,),) = ask(store, f"SELECT sum(calls) FROM v_counts WHERE api = '{API}'")
    assert calls_kept == sum(child["cudaMalloc"] for child in children) == count * CALLS


def incidents_of(report: dict[str, Any], pids: AbstractSet[int]) -> list[Any]:
    chains = {chain["id"] for chain in report["chains"] if chain["effect"]["pid"] in pids}
    return [found for found in report["incidents"] if chains & set(found["chains"])]


def ask(store: Path, query: str) -> list[Any]:
    done = otel_gpu("query", "--store", store, "--json", query, "--row-limit", "1000000")
    assert done.returncode == 0, done.stderr
    rows: list[Any] = json.loads(done.stdout)["rows"]
    return rows
