"""Checks of a document's outcome for a scenario: the verdict, the culprit, and the first advice."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from otel_gpu.enrich.known_work import ADVICE
from otel_gpu.explain.advice import IDLE_CPU_ADVICE, LINES_ADVICE
from otel_gpu.explain.rules import RULES
from tests.scenarios.truth import InjectedCause, Truth

Json = Mapping[str, Any]


class Outcome(NamedTuple):
    """
    What a report has to say of a scenario.

    Attributes:
        verdict: What bounds the loop.
        bounds: The classes that the verdict names at least.
        cause: The kind of the cause that the first advice is about; empty: there is nothing to advise about.
        by: Who is behind the class that the scenario makes: the name of a thread, or a kind of cause.
        is_close: How fast the disk is, or how the scheduler divides a CPU, decides between this verdict and
            ``mixed``.
    """

    verdict: str
    bounds: tuple[str, ...]
    cause: str = ""
    by: str = ""
    is_close: bool = False


OUTCOMES: Mapping[str, Outcome] = {
    "clean": Outcome("gpu-bound", ("gpu",)),
    "preemption": Outcome("mixed", ("gpu", "starved"), "preemption", "hog"),
    "late-wakeup": Outcome("mixed", ("gpu", "starved"), "run_queue", "hog"),
    "cpu-quota": Outcome("cpu-starved", ("starved",), "cpu_quota", "cpu_quota", is_close=True),
    "lock": Outcome("mixed", ("gpu", "lock"), "sleep", "holder"),
    "gil": Outcome("gpu-bound", ("gpu", "lock"), "sleep", "holder"),
    "starved-loader": Outcome("mixed", ("gpu", "data"), "run_queue", "loader"),
    "disk": Outcome("mixed", ("gpu", "data"), "io", "loader", is_close=True),
    "large-fork": Outcome("cpu-bound", ("cpu", "gpu"), "fork", is_close=True),
    "memory-limit": Outcome("gpu-bound", ("gpu", "memory"), "reclaim", is_close=True),
    "stopped": Outcome("mixed", ("gpu", "stopped"), "stopped", "stopper"),
    "gpu-wait": Outcome("gpu-bound", ("gpu",), "gpu_wait"),
    "gpu-backpressure": Outcome("gpu-bound", ("gpu",), "gpu_backpressure"),
    "first-call": Outcome("gpu-bound", ("gpu", "memory"), "first_call"),
    "allocator-churn": Outcome("allocation-bound", ("memory", "gpu"), "allocator_churn"),
    "two-causes": Outcome("mixed", ("gpu", "starved"), "preemption", "hog"),
    "garbage-collection": Outcome("cpu-bound", ("cpu", "gpu"), "host_work"),
    "busy-loader": Outcome("data-bound", ("data",), "host_work", "loader"),
    "slow-python": Outcome("cpu-bound", ("cpu",), "host_work"),
    "gil-holder": Outcome("lock-bound", ("lock",), "gil", "holder"),
    "steady-loader": Outcome("data-bound", ("data",), "host_work", "loader"),
    "steady-sleep": Outcome("idle", ("sleep",), "sleep"),
    "steady-host-work": Outcome("cpu-bound", ("cpu",), "host_work"),
    "steady-contention": Outcome(
        "cpu-bound", ("cpu", "starved"), "run_queue", "hog", is_close=True
    ),
    "full-queue": Outcome("gpu-bound", ("gpu",)),
    "long-synchronize": Outcome("mixed", ("gpu", "starved"), "run_queue", "hog"),
    "checkpoint": Outcome("gpu-bound", ("gpu",), "io", is_close=True),
    "noisy-neighbour": Outcome(
        "cpu-bound", ("cpu", "starved"), "run_queue", "neighbour", is_close=True
    ),
    "idle-server": Outcome("idle", ("idle",)),
    "remote-read": Outcome("data-bound", ("data",), "network"),
    "memory-leak": Outcome("gpu-bound", ("gpu",), "leak"),
    "memory-fragmentation": Outcome("gpu-bound", ("gpu",), "fragmentation"),
    "memory-exhaustion": Outcome("gpu-bound", ("gpu",), "exhausted"),
    "device-shared": Outcome("gpu-bound", ("gpu",), "other_process"),
    "empty-cache": Outcome("allocation-bound", ("memory", "gpu"), "empty_cache"),
    "allocator-bypass": Outcome("gpu-bound", ("gpu",), "allocator_bypass"),
    "healthy-memory": Outcome("gpu-bound", ("gpu",)),
}
"""What a report says of each scenario, on a machine that does nothing else."""


# To the thread it is one loss.
WAITS_FOR_A_CPU = {"preemption": "run_queue"}
KIND_BY_ADVICE = {
    **{rule.advice: WAITS_FOR_A_CPU.get(rule.kind, rule.kind) for rule in RULES},
    **dict.fromkeys((LINES_ADVICE, *ADVICE.values()), "host_work"),
    IDLE_CPU_ADVICE: "run_queue",
}
"""The kind of cause that an advice is about."""

MUCH_NOISE = 0.05
"""The share of its time for which others than those of the scenario may have the loop's CPU."""
NAMED_SHARE = 0.2
_STARVING = ("run_queue", "preemption", "cpu_quota")


def noise_of(truth: Truth) -> float:
    """Return for how much of its time the loop waited for a CPU that nobody of the scenario had."""
    injected_ns = sum(cause.time_ns for cause in _causes(truth) if cause.kind in _STARVING)
    return max(0, truth.waited_ns - injected_ns) / max(1, truth.took_ns)


def made_of(truth: Truth) -> float:
    """Return for how much of its time the loop waited for what the scenario did, by its own clocks."""
    return sum(cause.time_ns for cause in _causes(truth)) / max(1, truth.took_ns)


def _causes(truth: Truth) -> Iterator[InjectedCause]:
    yield from truth.losses
    for effect in truth.effects:
        yield from effect.causes


def faults_of_outcome(
    document: Json, pid: int, outcome: Outcome, noise: float = 0.0, made: float = 1.0
) -> Iterator[str]:
    """
    Say in which ways a document has another outcome.

    Args:
        document: What ``explain --json`` prints.
        pid: The loop's process.
        outcome: What it has to say.
        noise: For how much of its time the loop waited for a CPU that others had.
        made: For how much of its time it waited for what the scenario did.
    """
    (process,) = (one for one in document["processes"] if one["pid"] == pid)
    expected = {outcome.verdict} | ({"mixed"} if outcome.is_close else set())
    shares = process["verdict_shares"]
    named = {one["name"]: one for one in process.get("verdict_bounds", ())}
    missing = set(outcome.bounds) - set(named)
    if noise > MUCH_NOISE and "starved" in named:
        # What others do to the loop is in its verdict too: it is true.
        expected |= {"mixed", "cpu-starved"}
        missing = {name for name in missing if shares[name] >= NAMED_SHARE}
    if outcome.is_close and made < NAMED_SHARE + MUCH_NOISE:
        # Where the disk is fast, that is too little for a name; causes and their times are the same.
        missing = {name for name in missing if shares[name] >= NAMED_SHARE}
    if process["verdict"] not in expected:
        yield f"{process['verdict']} instead of {sorted(expected)}: {shares}"
    if missing:
        yield f"does not name {missing}: {sorted(named)}"
    steps = [node for one in named.values() for node in one["path"]]
    who = {str(node["who"]["comm"]) for node in steps if node["who"]} | {
        node["state"] for node in steps
    }
    # Whoever has the CPU that a quota keeps the loop from is named by the account: with a quota it is
    # nobody only where nobody else wants that CPU. The advice has to be about the quota all the same.
    starved = named.get("starved", {"path": ()})["path"]
    is_taken = outcome.by == "cpu_quota" and any(node["who"] for node in starved)
    if outcome.by and outcome.by not in who and not is_taken:
        yield f"{outcome.by} is not behind it: {sorted(who)}"
    yield from _faults_of_advice(document, pid, outcome)


def _faults_of_advice(document: Json, pid: int, outcome: Outcome) -> Iterator[str]:
    cause = WAITS_FOR_A_CPU.get(outcome.cause, outcome.cause)
    chains = {chain["id"] for chain in document["chains"] if chain["effect"]["pid"] == pid}
    incidents = [
        one
        for one in document["incidents"]
        if (one["pid"] == pid if one.get("pid") else chains & set(one["chains"]))
    ]
    kinds = [_kind_of(one) for one in incidents]
    # That others of this machine take the CPU is another incident, and no part of the scenario.
    ours = [kind for kind in kinds if kind != "run_queue" or cause == "run_queue"]
    if not cause:
        high = [
            one for one in incidents if one["severity"] == "high" and _kind_of(one) != "run_queue"
        ]
        if high:
            yield f"high, and nothing is wrong: {high[0]['causes'][0]}"
    elif not ours or ours[0] != cause:
        yield f"advises about {kinds} and not first about {cause}"


def _kind_of(incident: Json) -> str:
    """Return the kind that the first advice is about: of memory that ran out its cause."""
    leading = incident["causes"][0]["kind"] if incident["causes"] else ""
    return KIND_BY_ADVICE.get(incident["advice"][0], leading) if incident["advice"] else ""
