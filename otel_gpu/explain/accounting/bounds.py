"""
The nodes of the time tree that dominate each class of a verdict.

A path ends where no child has most of the time, so a bystander is never named for having samples.
"""

from collections.abc import Iterable, Iterator, Mapping

from otel_gpu.enrich.identity.identities import Who, key_of
from otel_gpu.explain.accounting.time_states import state_of_kind
from otel_gpu.explain.accounting.verdicts import CLASS_BY_STATE
from otel_gpu.explain.chains import Cause, Incident, TimeNode, Verdict
from otel_gpu.explain.kinds import CauseKind, NodeKind, TimeClass, TimeState

# Time accounting names no one for these, and effects can: only they know a quota.
_STATES: Mapping[CauseKind, TimeState] = {
    CauseKind.PREEMPTION: TimeState.RUN_QUEUE,
    CauseKind.CPU_QUOTA: TimeState.RUN_QUEUE,
}
_PHRASED: Mapping[CauseKind, CauseKind] = {CauseKind.PREEMPTION: CauseKind.RUN_QUEUE}


def with_bounds(verdict: Verdict, incidents: Iterable[Incident] = ()) -> Verdict:
    """
    Return a verdict with the path of nodes behind each of its classes.

    Args:
        verdict: Has the classes and the time tree.
        incidents: Of all processes. They name culprits that time accounting does not know.
    """
    if verdict.time_tree is None or not verdict.bounds:
        return verdict
    key = key_of(verdict.process)
    causes = [
        cause
        for incident in incidents
        if any(key_of(process) == key for process in incident.processes)
        for cause in incident.causes
    ]
    return verdict._replace(
        bounds=tuple(
            one._replace(path=tuple(_path(verdict.time_tree, one.name, causes)))
            for one in verdict.bounds
        )
    )


def _path(tree: TimeNode, name: TimeClass, causes: Iterable[Cause]) -> Iterator[TimeNode]:
    branches = [node for node in tree.children if CLASS_BY_STATE.get(node.state) == name]
    if not branches:
        return
    branch = max(branches, key=lambda node: node.time_ns)
    found = [branch, *_dominant_below(branch, branch.time_ns)]
    if not any(node.who or node.resource for node in found):
        alike = [cause for cause in causes if _state_of(cause.kind) == branch.state]
        found = [branch, *(_of_effects(branch, alike) or found[1:])]
    if name == TimeClass.STARVED and len(found) == 1:
        # Many processes had the CPU for a while: name the one that had it longest.
        hogs = (node for node in branch.children if node.who)
        found += sorted(hogs, key=lambda node: -node.time_ns)[:1]
    yield from (node._replace(children=()) for node in found)


def _dominant_below(parent: TimeNode, least_ns: int) -> Iterator[TimeNode]:
    largest = max(parent.children, key=lambda node: node.time_ns, default=None)
    if (
        largest is not None
        and 2 * largest.time_ns >= least_ns
        and largest.state != NodeKind.UNKNOWN
    ):
        yield largest
        yield from _dominant_below(largest, least_ns)


def _of_effects(branch: TimeNode, causes: Iterable[Cause]) -> list[TimeNode]:
    # Nodes that the causes of effects make, if one culprit or quota dominates.
    sums: dict[tuple[CauseKind, int], list[Cause]] = {}
    for cause in causes:
        culprit_pid = cause.culprit.pid if cause.culprit else 0
        kind = _PHRASED.get(cause.kind, cause.kind)
        if culprit_pid or kind == CauseKind.CPU_QUOTA:
            sums.setdefault((kind, culprit_pid), []).append(cause)
    if not sums:
        return []
    (kind, _), alike = max(sums.items(), key=lambda item: sum(one.time_ns for one in item[1]))
    time_ns = min(branch.time_ns, sum(one.time_ns for one in alike))
    if 2 * time_ns < branch.time_ns:
        return []
    whole = branch.time_ns / branch.share if branch.share else 0.0
    longest = max(alike, key=lambda one: one.time_ns)
    who = Who(*longest.culprit) if longest.culprit else None
    found = [
        TimeNode(state=kind, time_ns=time_ns, share=time_ns / whole if whole else 0.0, who=who)
    ]
    for via in longest.via[:1]:
        if 2 * via.time_ns >= branch.time_ns:
            share = via.time_ns / whole if whole else 0.0
            found.append(
                TimeNode(
                    state=_PHRASED.get(via.kind, via.kind),
                    time_ns=via.time_ns,
                    share=share,
                    who=who,
                )
            )
    return found


def _state_of(kind: CauseKind) -> TimeState:
    return _STATES.get(kind) or state_of_kind(kind)
