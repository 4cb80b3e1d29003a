"""Checks of lost time in a document of ``explain``: its lines, and its unexplained share."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.scenarios.truth import InjectedPlace

MOST_UNEXPLAINED = 0.05
# A failure is one however long the call took.
_LOSSES = ("slow_call", "slow_gap", "hung_call")

Json = Mapping[str, Any]


def faults_of_lines(tree: Json, lines: Iterable[tuple[str, InjectedPlace]]) -> Iterator[str]:
    """Yield nodes of a time tree whose line differs from the injected one; line 0 is any line."""
    for kind, place in lines:
        found = [
            node["where"]
            for branch in tree["children"]
            if kind in (branch["state"], *(node["state"] for node in branch["children"]))
            for node in (branch,)
        ]
        if not found:
            yield f"there is no {kind}"
        for where in found:
            if where is None or not _is_at(where, place):
                yield f"{kind}: in {where} instead of {place}"


def _is_at(where: Json, place: InjectedPlace) -> bool:
    function = where["function"].rpartition(".")[2]
    if (function, Path(where["file"]).name) != (place.function, place.file):
        return False
    return not place.last_line or place.first_line <= where["line"] <= place.last_line


def nodes(node: Json) -> Iterator[Json]:
    """Yield a node and its descendants."""
    yield node
    for child in node["children"]:
        yield from nodes(child)


def unexplained(document: Json) -> Iterator[tuple[str, float]]:
    """Yield the unexplained share of the lost time, of all chains and of all incidents."""
    chains = [one for one in document["chains"] if one["effect"]["kind"] in _LOSSES]
    kinds = {one["id"]: one["effect"]["kind"] for one in document["chains"]}
    incidents = [
        one
        for one in document["incidents"]
        if all(kinds.get(chain, _LOSSES[0]) in _LOSSES for chain in one["chains"])
    ]
    incidents_ns = sum(one["lost_ns"] for one in incidents)
    chains_ns = sum(one["effect"]["duration_ns"] for one in chains)
    # A few short effects are a small part of time that is lost in every step.
    for name, all_of, lost_ns in (
        ("chains", chains, max(chains_ns, incidents_ns)),
        ("incidents", incidents, incidents_ns),
    ):
        unseen_ns = sum(one["unexplained_ns"] + unseen_in(one["causes"]) for one in all_of)
        yield name, unseen_ns / max(1, lost_ns)


def unseen_in(causes: Iterable[Json]) -> int:
    """Return the unexplained time of causes, in ns."""
    return sum(
        cause["time_ns"] if cause["kind"] == "unexplained" else unseen_in(cause.get("via") or ())
        for cause in causes
    )
