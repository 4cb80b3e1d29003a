"""What is slow in every step is found too, and what is healthy in every step is left alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.scenarios.all_scenarios import SCENARIOS, STEADY
from tests.scenarios.explained_runs import RUNS, ExplainedRun, faults_of_place
from tests.scenarios.lost_time import nodes
from tests.scenarios.truth import InjectedCause

pytestmark = [pytest.mark.kernel, pytest.mark.alone]

HEALTHY = ("clean", "gpu-wait", "idle-server", "full-queue")
SLOW = [name for name in SCENARIOS if name in STEADY and name not in HEALTHY]
# A thread waits for a CPU that was taken from it, or that it did not get at once: one loss.
SAME = {"preemption": "run_queue"}
TOLERANCE = 0.10
MOST_UNKNOWN = 0.05
WORK = ("host", "host_work")


def process_of(explained: ExplainedRun) -> Mapping[str, Any]:
    """What the document says of the process."""
    (process,) = (
        one for one in explained.document["processes"] if one["pid"] == explained.truth.pid
    )
    found: Mapping[str, Any] = process
    return found


def kind_of(cause: Mapping[str, Any]) -> str:
    return SAME.get(cause["kind"], cause["kind"])


def chronic(explained: ExplainedRun) -> list[Mapping[str, Any]]:
    """What is always slow, and is of the scenario: that others of this machine take the CPU is not."""
    asked = any(one.kind == "run_queue" for one in explained.truth.losses)
    return [
        one
        for one in explained.document["incidents"]
        if one["chronic"] and (asked or kind_of(one["causes"][0]) != "run_queue")
    ]


def faults_of(explained: ExplainedRun, loss: InjectedCause) -> Iterator[str]:
    """Say in which ways a loss is not explained as it should be."""
    incidents = chronic(explained)
    if not incidents:
        yield f"no chronic incident of {loss}"
        return
    if kind_of(incidents[0]["causes"][0]) != loss.kind:
        yield f"{incidents[0]['causes'][0]} comes first, and not {loss}"
    causes = [cause for one in incidents for cause in one["causes"] if kind_of(cause) == loss.kind]
    found_ns = sum(cause["time_ns"] for cause in causes)
    found_ns += sum(taken_by_others(explained, loss.kind, causes))
    if abs(found_ns - loss.time_ns) > TOLERANCE * loss.time_ns:
        yield f"{found_ns / 1e6:.1f} ms instead of {loss.time_ns / 1e6:.1f} ms of {loss.kind}"
    culprits = {(cause["culprit"] or {"pid": 0})["pid"] for cause in causes}
    if loss.pid and loss.pid not in culprits:
        yield f"blames {culprits} instead of {loss.pid}"
    if loss.resource and loss.resource not in str(causes):
        yield f"{loss.resource} is not named"
    if loss.via:
        via = causes[0]["via"][0] if causes and causes[0].get("via") else None
        if via is None or (via["kind"], via["culprit"]["pid"]) != (loss.via.kind, loss.via.pid):
            yield f"{via} is behind it, and not {loss.via}"
        else:
            yield from faults_of_place(via, loss.via)
    if causes:
        yield from faults_of_place(causes[0], loss)
    if not incidents[0]["advice"]:
        yield "there is no advice"


def taken_by_others(
    explained: ExplainedRun, kind: str, causes: Sequence[Mapping[str, Any]]
) -> Iterator[int]:
    """Yield how long those had the CPU whom nobody asked to: each takes too little to be a cause."""
    named = {(cause["culprit"] or {"pid": None})["pid"] for cause in causes}
    if None in named:
        # They are a cause together.
        return
    for branch in process_of(explained)["time_tree"]["children"]:
        if kind == "run_queue" == branch["state"]:
            for node in branch["children"]:
                if (node["who"] or {"pid": None})["pid"] not in named:
                    yield node["time_ns"]


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", SLOW)
def test_what_every_step_loses_is_found(
    run_scenario: Callable[[str, int], ExplainedRun],
    name: str,
    run: int,
) -> None:
    """The cause comes first, with its time, who it was and what for, and nearly all is known."""
    explained = run_scenario(name, run)

    assert explained.truth.losses
    wrong = [fault for loss in explained.truth.losses for fault in faults_of(explained, loss)]
    assert not wrong
    assert unknown_share(explained) < MOST_UNKNOWN


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_has_no_chronic_incident(
    run_scenario: Callable[[str], ExplainedRun], name: str
) -> None:
    """The device is waited for, or there is nothing to do: neither is anybody's fault."""
    explained = run_scenario(name)

    assert chronic(explained) == []
    assert unknown_share(explained) < MOST_UNKNOWN


def test_the_tree_sums_up(run_scenario: Callable[[str], ExplainedRun]) -> None:
    """Each node is as long as what it is made of; the whole is all of the time."""
    tree = process_of(run_scenario("steady-loader"))["time_tree"]

    assert tree["share"] == 1
    for node in nodes(tree):
        if node["children"]:
            assert sum(child["time_ns"] for child in node["children"]) == node["time_ns"]


def unknown_share(explained: ExplainedRun) -> float:
    """
    How much of the time nothing is known about.

    What else has the CPUs of this machine is no matter of a scenario that takes none away.
    """
    injected = {loss.kind for loss in explained.truth.losses}
    return sum(
        unknown_below(branch)
        for branch in process_of(explained)["time_tree"]["children"]
        if branch["state"] != "run_queue" or "run_queue" in injected
    )


def unknown_below(node: Mapping[str, Any]) -> float:
    """The share of what is unknown of a node; of work, the time is known, whatever its lines are."""
    if node["state"] in WORK:
        return 0.0
    own = node["share"] if node["state"] in ("unknown", "unexplained") else 0.0
    return float(own + sum(map(unknown_below, node["children"])))
