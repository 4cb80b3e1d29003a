"""What a waited-for thread did in a window, from the time accounting of its process."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain import evidence, rules
from otel_gpu.explain.accounting.time_tree import grow
from otel_gpu.explain.chains import Culprit, TimeNode
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind, EvidenceKind, TimeState

# Of the window; readings and windows do not end at the same time.
_LEAST_SHARE = 0.005


class _Part(NamedTuple):
    kind: CauseKind
    culprit: Culprit | None
    resource: Resource | None


def account_intervals(
    other: Culprit,
    window: tuple[int, int, int],
    times: Iterable[ThreadTime],
    seen: Iterable[CauseInterval],
    left_ns: int,
) -> Iterator[CauseInterval]:
    """
    Yield what accounting knows of the rest of a window.

    Args:
        other: The thread.
        window: Start and end (ktime), and the Unix time of the start.
        times: What was spent in it.
        seen: The intervals that were observed.
        left_ns: Time beside those intervals.
    """
    start, end, start_unix_ns = window
    parts = _parts(times)
    spent_ns = sum(parts.values())
    if spent_ns <= 0:
        return
    # Several threads: what they did on average.
    scale = min(1.0, (end - start) / spent_ns)
    known: dict[CauseKind, int] = {}
    for interval in seen:
        known[interval.kind] = known.get(interval.kind, 0) + interval.time_ns
    for (kind, culprit, resource), time_ns in parts.items():
        part_ns = round(time_ns * scale)
        seen_ns = min(part_ns, known.get(kind, 0))
        known[kind] = known.get(kind, 0) - seen_ns
        part_ns = min(part_ns - seen_ns, left_ns)
        if part_ns <= _LEAST_SHARE * (end - start) or kind == CauseKind.UNEXPLAINED:
            continue
        left_ns -= part_ns
        is_followed = culprit is not None and culprit.tid != 0 and kind in rules.REPEATED_KINDS
        # A thread that nothing kept waiting kept the other one waiting itself.
        is_own = culprit is None and kind != CauseKind.RUN_QUEUE
        span = evidence.of_unseen(
            other=other,
            start_ktime_ns=start,
            start_unix_ns=start_unix_ns,
            time_ns=end - start,
            kind=EvidenceKind.ACCOUNT,
        )
        span = span._replace(id=f"{span.id}-{kind}", reason=kind)
        yield CauseInterval(
            kind=kind,
            time_ns=part_ns,
            culprit=other if is_own else culprit,
            evidence=span,
            start_ktime_ns=start,
            end_ktime_ns=end,
            is_followed=is_followed,
            resource=resource,
        )


def _parts(times: Iterable[ThreadTime]) -> dict[_Part, int]:
    # By time, the most first.
    # A thread that makes no calls waits as one does between two of them.
    tree = grow(
        (
            time._replace(context=wire.CONTEXT_GAP) if time.context == wire.CONTEXT_OTHER else time
            for time in times
        ),
        most=None,
    )
    parts: dict[_Part, int] = {}
    for branch in tree.children if tree else ():
        for node in branch.children or (branch,):
            part = _Part(_kind_of(branch, node), _culprit_of(node), node.resource)
            parts[part] = parts.get(part, 0) + node.time_ns
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def _kind_of(branch: TimeNode, node: TimeNode) -> CauseKind:
    # A wait that has not ended has the kind of its state.
    if branch.state == TimeState.HOST:
        return CauseKind.HOST_WORK
    states = node.state, branch.state
    return next(
        (rule.kind for state in states if (rule := rules.RULE_BY_KIND.get(state))),
        CauseKind.UNEXPLAINED,
    )


def _culprit_of(node: TimeNode) -> Culprit | None:
    return Culprit(*node.who[:3]) if node.who else None
