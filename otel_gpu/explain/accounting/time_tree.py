"""
The time tree: where the time of launching threads went, and what kept them waiting.

Its first level is the time budget (``states``). The second level is what was waited for, and the
third what that thread did during the wait. The children of a node sum to it, to the nanosecond.
"""

# What is accounted, and when
# ---------------------------
#
# Time accumulates while it passes. Its state is known then, and the thread that ends the wait is
# not. When the wait ends, its whole duration is added again, with the thread that ended it. So the
# states of the tree are time that passed in the window, and the nodes below are waits that ended in
# it. A part of those can be earlier. If they are more than what passed, they are scaled down. The
# missing rest has not ended, and is reported as unknown.
#
# Accounting also has how long a waited-for thread worked. Samples divide that among lines of code.
#
# Idle is not starved
# -------------------
#
# A server that gets no requests waits in the same system calls as a program whose data is late. It
# is idle if no watched process ended the wait or has the other end of it, and no answer was due: it
# waits for a connection, on one that came from outside, or for any of many. On a connection that it
# made to another host it waits for an answer, which is a cause of its own.

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Resource, Who
from otel_gpu.enrich.thread_times import NO_WAIT, ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain import rules
from otel_gpu.explain.accounting.thread_locations import ThreadLocations
from otel_gpu.explain.accounting.time_states import kind_of, kind_of_end, state_of, state_of_kind
from otel_gpu.explain.chains import NodeState, TimeNode, Where
from otel_gpu.explain.code_locations import LAUNCHING as LAUNCHING  # noqa: PLC0414 -- of the tree, too
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.kinds import CauseKind, NodeKind, TimeState
from otel_gpu.explain.ranking import clear_resource, fit, spread
from otel_gpu.explain.wakers import waker_of
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.code_lines import NO_LINES, CodeLines, Line
from otel_gpu.state.cpu_samples import AT_WORK
from otel_gpu.wire.bodies import ResourceKind

NOT_ENDED = "These waits had not ended: who will end them is not known yet."
NOT_FOLLOWED = "What it did in this time was not seen."
NO_REASON = "It was blocked; on what is not known."
NO_LINE = "Their samples have no line."

_MOST_CHILDREN = 8
_MOST_LINES = 5
# Of the whole tree; smaller nodes are summed up if there are several.
_LEAST_SHARE = 0.002
_FEW = 2
# States in which something keeps a thread from going on.
_HINDERED = frozenset(
    {TimeState.RUN_QUEUE, TimeState.LOCK, TimeState.GIL, TimeState.IO, TimeState.IPC, TimeState.SLEEP, TimeState.PAGING, TimeState.STOPPED, TimeState.OTHER}
)  # fmt: skip
# States whose culprit matters, so an unknown one is reported.
_WITH_CULPRIT = frozenset({TimeState.RUN_QUEUE, TimeState.LOCK, TimeState.GIL, TimeState.IPC})
# Kinds of waits that have not ended, if the state alone decides.
_OPEN: Mapping[TimeState, CauseKind] = {
    TimeState.IO: CauseKind.IO,
    TimeState.SLEEP: CauseKind.SLEEP,
}
_OF_CLIENTS = frozenset({ResourceKind.TCP, ResourceKind.UDP, ResourceKind.UNIX})

Resources = Mapping[tuple[int, WaitReason], Resource]
"""What the threads of a process mostly wait for, by its pid and the reason of the wait."""


class _Leaf(NamedTuple):
    state: TimeState
    kind: CauseKind | NodeKind
    who: Culprit | None = None
    resource: Resource | None = None
    end: Culprit | None = None
    end_kind: CauseKind | NodeKind | None = None
    end_resource: Resource | None = None
    note: str = ""
    end_note: str = ""


def grow(
    times: Iterable[ThreadTime],
    places: CodeLocations | None = None,
    resources: Resources | None = None,
    *,
    most: int | None = _MOST_CHILDREN,
) -> TimeNode | None:
    """
    Return the tree of one process; None: it has no launching threads.

    Args:
        times: Of the window.
        places: Where threads were, in observed intervals.
        resources: What other processes wait for.
        most: The most children of a node, others are summed up; None: no limit.
    """
    times = tuple(times)
    passed_ns: dict[TimeState, int] = {}
    for time in times:
        state = state_of(time.state, time.context, time.reason)
        if state is not None and time.time_ns > 0:
            passed_ns[state] = passed_ns.get(state, 0) + time.time_ns
    total_ns = sum(passed_ns.values())
    if not total_ns:
        return None
    leaves: dict[_Leaf, int] = {}
    if knows_waits(times):
        leaves = _leaves(times, passed_ns, resources or {})
    for leaf, time_ns in leaves.items():
        if leaf.state == TimeState.IDLE:
            passed_ns[TimeState.IDLE] = passed_ns.get(TimeState.IDLE, 0) + time_ns
            passed_ns[TimeState.IPC] -= time_ns
    locations = ThreadLocations(places, times) if places else None
    grower = _Grower(pid=times[0].process.pid, total_ns=total_ns, locations=locations, most=most)
    children = [
        grower.branch(state, time_ns, {k: v for k, v in leaves.items() if k.state == state})
        for state, time_ns in passed_ns.items()
        if time_ns > 0
    ]
    return TimeNode(NodeKind.ALL, total_ns, 1.0, children=tuple(sorted(children, key=_by_time)))


def knows_waits(times: Iterable[ThreadTime]) -> bool:
    """
    Return whether times name the threads that ended waits; those of former versions have states
    only.
    """
    return any(time.wait != NO_WAIT for time in times)


def resources_of(figures: Iterable[Figures]) -> Resources:
    """Return what the threads of each process mostly wait for, launching or not."""
    waits: dict[tuple[int, WaitReason], list[tuple[Resource | None, int]]] = {}
    for one in figures:
        for time in one.times:
            if time.state == wire.STATE_BLOCKED and time.ended_ns > 0:
                of_reason = waits.setdefault((one.process.pid, _as_before(time.reason)), [])
                of_reason.append((time.wait.resource, time.ended_ns))
    found = ((key, clear_resource(of_reason)) for key, of_reason in waits.items())
    return {key: resource for key, resource in found if resource}


def _leaves(
    times: Iterable[ThreadTime], passed_ns: Mapping[TimeState, int], resources: Resources
) -> dict[_Leaf, int]:
    # What each state consists of, scaled to the time that passed in it.
    ended: dict[TimeState, dict[_Leaf, int]] = {
        state: {} for state in passed_ns if state in _HINDERED
    }
    rows = [(state_of(time.state, time.context, time.reason), time) for time in _ranked(times)]
    # Whether any watched process ever sent it anything.
    is_fed = any(state == TimeState.IPC and _is_watched(time.wait.who) for state, time in rows)
    # One thread can have several names.
    names: dict[tuple[int, int], Culprit] = {}
    for state, time in rows:
        if state in ended and time.ended_ns > 0:
            leaf = _leaf_of(state=state, time=time, names=names, resources=resources, is_fed=is_fed)
            ended[state][leaf] = ended[state].get(leaf, 0) + time.ended_ns
    leaves: dict[_Leaf, int] = {}
    for state, found in ended.items():
        for kind in rules.REPEATED_KINDS:
            _complete(found, kind)
        scaled = fit(found, passed_ns[state])
        open_ns = passed_ns[state] - sum(scaled.values())
        if open_ns and state in _WITH_CULPRIT:
            # A process that never got data from a watched one waits for input from outside.
            is_idle = state == TimeState.IPC and not is_fed
            leaf = (
                _Leaf(TimeState.IDLE, CauseKind.IPC)
                if is_idle
                else _Leaf(state, NodeKind.UNKNOWN, note=NOT_ENDED)
            )
            scaled[leaf] = scaled.get(leaf, 0) + open_ns
        elif open_ns and scaled:
            leaf = _Leaf(state, _OPEN.get(state, NodeKind.UNKNOWN))
            scaled[leaf] = scaled.get(leaf, 0) + open_ns
        leaves |= scaled
    return leaves


def _ranked(times: Iterable[ThreadTime]) -> Iterator[ThreadTime]:
    # Not in the order of a capture or a store: order decides on names and rounding.
    by_time = sorted(times, key=_by_ended)
    for _, alike in groupby(by_time, _by_ended):
        few = tuple(alike)
        # ``repr`` is the slowest part, so only ties pay for it.
        yield from few if len(few) == 1 else sorted(few, key=lambda time: repr(time[1:]))


def _by_ended(time: ThreadTime) -> int:
    return -time.ended_ns


def _leaf_of(
    state: TimeState,
    time: ThreadTime,
    names: dict[tuple[int, int], Culprit],
    resources: Resources,
    *,
    is_fed: bool,
) -> _Leaf:
    wait = time.wait
    who, end = (
        None if one is None else names.setdefault((one.pid, one.tid), one)
        for one in (waker_of(time), wait.end)
    )
    kind = kind_of(time)
    if _is_input(time, who, is_fed=is_fed):
        return _Leaf(state=TimeState.IDLE, kind=kind, who=who, resource=wait.resource)
    note = NO_REASON if kind == NodeKind.UNKNOWN else ""
    if state in (TimeState.RUN_QUEUE, TimeState.STOPPED):
        # An earlier wait, or the process that resumed it, does not matter.
        return _Leaf(state, kind, who)
    leaf = _Leaf(state=state, kind=kind, who=who, resource=wait.resource, note=note)
    if not _is_watched(who):
        return leaf
    resource, note = None, ""
    end_kind: CauseKind | NodeKind = kind_of_end(wait)
    if wait.end_state == wire.STATE_BLOCKED:
        resource = resources.get((end.pid, _as_before(wait.end_reason))) if end else None
        if end_kind == CauseKind.IPC and resource and resource.is_network:
            end_kind = CauseKind.NETWORK
    if end_kind == CauseKind.UNEXPLAINED:
        note = NO_REASON if wait.end_state == wire.STATE_BLOCKED else NOT_FOLLOWED
        end_kind = NodeKind.UNKNOWN
    return leaf._replace(end=end or who, end_kind=end_kind, end_resource=resource, end_note=note)


def _is_input(time: ThreadTime, who: Culprit | None, *, is_fed: bool) -> bool:
    # A wait for input from outside, with no answer due.
    resource = time.wait.resource
    if time.context != wire.CONTEXT_GAP or time.reason != WaitReason.IPC or _is_watched(who):
        return False
    if resource is not None and resource.peers:
        return False
    # A timer also wakes a thread that waits for a worker with a time limit.
    is_of_clients = resource is not None and resource.kind in _OF_CLIENTS
    return who is not None or is_of_clients or not is_fed


def _complete(found: dict[_Leaf, int], kind: CauseKind) -> None:
    # Waits that a timer ended were for the only process that the others were for.
    alike = [leaf for leaf in found if leaf.kind == kind and leaf.state != TimeState.IDLE]
    known = {leaf: found[leaf] for leaf in alike if leaf.who is not None}
    unnamed = [leaf for leaf in alike if leaf.who is None]
    if unnamed and len({leaf.who.pid for leaf in known if leaf.who}) == 1:
        total_ns = sum(known.values()) + sum(map(found.pop, unnamed))
        found |= spread(known, total_ns)


def _as_before(reason: WaitReason) -> WaitReason:
    # Only a thread's own waits for data state what they were about.
    return WaitReason.IPC if reason == WaitReason.NETWORK else reason


def _is_watched(who: Culprit | None) -> bool:
    # Unwatched processes have no named threads.
    return who is not None and who.tid != 0


class _Grower:
    def __init__(
        self, pid: int, total_ns: int, locations: ThreadLocations | None, most: int | None
    ) -> None:
        self._pid = pid
        self._total_ns = total_ns
        self._locations = locations
        self._most = most

    def branch(self, state: TimeState, time_ns: int, leaves: Mapping[_Leaf, int]) -> TimeNode:
        groups: dict[
            tuple[CauseKind | NodeKind, Culprit | None, Resource | None], dict[_Leaf, int]
        ] = {}
        for leaf, part_ns in leaves.items():
            groups.setdefault((leaf.kind, leaf.who, leaf.resource), {})[leaf] = part_ns
        children = [self._of_who(state, group) for group in groups.values()]
        if len(children) == 1:
            (only,) = children
            if not (only.who or only.resource or only.children) and only.state == state:
                children = []
        place = TimeState.IPC if state == TimeState.IDLE else state
        return self._node(
            state=state, time_ns=time_ns, pid=self._pid, place=place, children=self._fold(children)
        )

    def _of_who(self, state: TimeState, leaves: Mapping[_Leaf, int]) -> TimeNode:
        first = next(iter(leaves))
        ends: dict[tuple[Culprit, CauseKind | NodeKind, Resource | None, str], int] = {}
        for leaf, time_ns in leaves.items():
            if leaf.end is not None and leaf.end_kind:
                key = (leaf.end, leaf.end_kind, leaf.end_resource, leaf.end_note)
                ends[key] = ends.get(key, 0) + time_ns
        children = [
            self._node(
                state=kind,
                time_ns=time_ns,
                pid=end.pid,
                place=state_of_kind(kind),
                tid=end.tid,
                who=Who(*end),
                resource=resource,
                note=note,
            )
            for (end, kind, resource, note), time_ns in ends.items()
        ]
        return self._node(
            state=first.kind,
            time_ns=sum(leaves.values()),
            pid=self._pid,
            place=TimeState.IPC if state == TimeState.IDLE else state,
            who=Who(*first.who) if first.who else None,
            by=first.who.pid if first.who else 0,
            resource=first.resource,
            note=first.note,
            children=self._fold(children),
        )

    def _node(
        self,
        state: NodeState,
        time_ns: int,
        pid: int,
        place: TimeState,
        *,
        by: int = 0,
        tid: int = 0,
        who: Who | None = None,
        resource: Resource | None = None,
        note: str = "",
        children: tuple[TimeNode, ...] = (),
    ) -> TimeNode:
        node = TimeNode(
            state=state,
            time_ns=time_ns,
            share=time_ns / self._total_ns,
            who=who,
            where=None,
            samples=0,
            children=children,
            resource=resource,
            note=note,
        )
        if self._locations is None:
            return node
        lines = NO_LINES
        if state in (TimeState.HOST, CauseKind.HOST_WORK):
            contexts = AT_WORK if who else LAUNCHING
            lines = self._locations.places.lines(pid, who.tid if who else None, contexts)
        if lines.first is not None and lines.weight_ns > 0:
            below = tuple(self._divide(time_ns, lines))
            return node._replace(
                where=lines.first.where, samples=lines.samples, children=below, work=lines.work
            )
        seen = self._locations.find(pid, state=place, time_ns=time_ns, by=by, tid=tid)
        frame = seen.stack.place if seen else None
        where = Where(frame.function, frame.file, frame.line) if frame else None
        is_work = place == TimeState.HOST
        return node._replace(where=where, samples=seen.count if seen and not is_work else 0)

    def _divide(self, time_ns: int, lines: CodeLines) -> Iterator[TimeNode]:
        # The lines that some work went to; smaller ones are summed up.
        # A single one is not summed up.
        is_few = len(lines.each) - _MOST_LINES < _FEW
        shown = lines.each if is_few else lines.each[:_MOST_LINES]
        rest_ns = lines.weight_ns - sum(line.weight_ns for line in shown)
        parts: dict[Line | None, int] = {line: line.weight_ns for line in shown} | {None: rest_ns}
        for line, part_ns in spread(parts, time_ns).items():
            share = part_ns / self._total_ns
            if line is not None:
                named = TimeNode(
                    state=NodeKind.LINE,
                    time_ns=part_ns,
                    share=share,
                    who=None,
                    where=line.where,
                    samples=line.samples,
                )
                yield named._replace(work=line.work)
            elif part_ns:
                others = lines.samples - sum(line.samples for line in shown)
                count = len(lines.each) - len(shown)
                state, note = (
                    (NodeKind.OTHER, f"{count:,} smaller ones.")
                    if count
                    else (NodeKind.UNKNOWN, NO_LINE)
                )
                yield TimeNode(state, part_ns, share, samples=others, note=note)

    def _fold(self, children: list[TimeNode]) -> tuple[TimeNode, ...]:
        # By time, the smallest summed up.
        ranked = sorted((node for node in children if node.time_ns > 0), key=_by_time)
        if self._most is None:
            return tuple(ranked)
        large = sum(node.share >= _LEAST_SHARE for node in ranked)
        kept = max(1, min(large, self._most - 1))
        rest = ranked[kept:]
        if len(rest) < _FEW:
            return tuple(ranked)
        time_ns = sum(node.time_ns for node in rest)
        note = f"{len(rest):,} smaller ones."
        return (
            *ranked[:kept],
            TimeNode(NodeKind.OTHER, time_ns, time_ns / self._total_ns, note=note),
        )


def _by_time(node: TimeNode) -> tuple[int, str, int, int]:
    who = node.who
    return -node.time_ns, node.state, who.pid if who else 0, who.tid if who else 0
