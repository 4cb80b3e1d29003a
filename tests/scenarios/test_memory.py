"""Why requests for memory fail, and what allocators lose time to, against what was done."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.demo.memory_scenarios import memory_fragmentation
from tests.scenarios import memory
from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.explained_runs import RUNS, ExplainedRun
from tests.scenarios.truth import InjectedPlace

pytestmark = [pytest.mark.kernel, pytest.mark.alone]

FAILING = [run.__name__.replace("_", "-") for run in (*memory.FAILING, memory_fragmentation)]
LOSING = [run.__name__.replace("_", "-") for run in memory.LOSING]
HEALTHY = [run.__name__.replace("_", "-") for run in memory.HEALTHY]
KINDS_OF_MEMORY = {
    *("exhausted", "fragmentation", "other_process", "leak", "allocator_churn"),
    *("empty_cache", "allocation_retry", "allocator_bypass"),
}
TOLERANCE = 0.10
MIB = 1 << 20


def row_of(explained: ExplainedRun) -> Mapping[str, Any]:
    """What the allocator of the process holds."""
    (row,) = (
        row
        for row in explained.document["memory"]
        if (row["pid"], row["layer"]) == (explained.truth.pid, "framework")
    )
    found: Mapping[str, Any] = row
    return found


def is_in(where: Mapping[str, Any], place: InjectedPlace) -> bool:
    """Whether a line of the document is a place of the truth."""
    is_file = (where["function"], Path(where["file"]).name) == (place.function, place.file)
    return is_file and place.first_line <= where["line"] <= place.last_line


def faults_of_memory(explained: ExplainedRun) -> Iterator[str]:
    """Say in which ways a request that failed is not explained as it should be."""
    truth, row = explained.truth.memory, row_of(explained)
    if truth is None:
        return
    if row["coverage"] != 1 or row["before_bytes"] or row["unknown_bytes"]:
        yield f"not all was seen: {row}"
    if len(row["ooms"]) != 1:
        yield f"{len(row['ooms'])} requests failed, and not one"
        return
    (oom,) = row["ooms"]
    if oom["cause"] != truth.cause:
        yield f"{oom['cause']} instead of {truth.cause}"
    if not is_in(oom, truth.asked):
        yield f"{oom['function']}:{oom['line']} asked, and not {truth.asked}"
    by_cause = {"leak": oom["leaks"], "fragmentation": oom["pins"]}
    blamed = by_cause.get(truth.cause, oom["holders"])
    if not blamed or not is_in(blamed[0], truth.held):
        yield f"{blamed[:1]} is blamed, and not {truth.held}"
    if sum(one["bytes"] for one in oom["holders"]) != oom["live_bytes"]:
        yield "holders do not sum up to what is in use"
    worst = explained.document["incidents"][0]
    if (worst["severity"], worst["causes"][0]["kind"]) != ("high", truth.cause):
        yield f"{worst['id']} comes first"


def faults_of_churn(explained: ExplainedRun) -> Iterator[str]:
    """Say in which ways time in calls that allocate is not explained as it should be."""
    for loss in explained.truth.losses:
        found = [
            one for one in explained.document["incidents"] if one["causes"][0]["kind"] == loss.kind
        ]
        if len(found) != 1:
            yield f"{len(found)} incidents of {loss}"
            continue
        (incident,) = found
        cause = incident["causes"][0]
        if (incident["severity"], incident["chronic"]) != ("high", True):
            yield f"{incident['id']} is {incident['severity']}"
        if abs(cause["time_ns"] - loss.time_ns) > TOLERANCE * loss.time_ns:
            yield f"{cause['time_ns']} ns instead of {loss.time_ns} ns of {loss.kind}"
        frames = explained.document["stacks"][cause["stack"]]["frames"]
        place = loss.place
        known = (frame for frame in frames if frame.get("file") and frame.get("line"))
        if place is not None and not any(is_in(frame, place) for frame in known):
            yield f"{loss.kind} is not in {place}"


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", FAILING)
def test_why_a_request_failed_is_found(
    run_scenario: Callable[[str, int], ExplainedRun], name: str, run: int
) -> None:
    """The cause, who asked, and whose blocks are to blame, with all bytes accounted for."""
    assert list(faults_of_memory(run_scenario(name, run))) == []


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", LOSING)
def test_what_calls_that_allocate_lose_is_found(
    run_scenario: Callable[[str, int], ExplainedRun], name: str, run: int
) -> None:
    """The kind, how much, and in which line."""
    assert list(faults_of_churn(run_scenario(name, run))) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_holes_alone_are_no_alarm(run_scenario: Callable[[str], ExplainedRun], name: str) -> None:
    """Of what is free the largest hole is a fiftieth, and nothing is wrong with that."""
    explained = run_scenario(name)
    row = row_of(explained)

    assert row["reserved_bytes"] - row["live_bytes"] >= 100 * MIB
    assert (row["ooms"], row["alarms"], row["advice"], row["growth"]) == ([], [], [], [])
    # What else ran on this machine may have slowed it down: that has nothing to do with memory.
    kinds = {one["causes"][0]["kind"] for one in explained.document["incidents"] if one["causes"]}
    assert kinds & KINDS_OF_MEMORY == set()


def test_all_scenarios_of_memory_are_judged() -> None:
    """None is left out by its name."""
    named = {name for name, one in SCENARIOS.items() if one.has_allocator}

    assert named == {*FAILING, *LOSING, *HEALTHY}
