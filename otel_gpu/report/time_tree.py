"""The time tree in words, row by row: what launching threads waited for, and where."""

from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu.report.document import CauseKind, NodeKind, TimeNode, TimeState, VerdictClass
from otel_gpu.report.wording.formats import (
    count_of,
    describe_resource,
    describe_where,
    describe_who,
    format_share,
)
from otel_gpu.report.wording.phrases import OTHER, PHRASES, STATES, WORK, tone_of
from otel_gpu.report.wording.sentences import Name, Part, Sentence, in_line

_WORK = frozenset({TimeState.HOST, CauseKind.HOST_WORK})
_HAS_CPU = frozenset({CauseKind.RUN_QUEUE})
_LEAST_SHARE = 0.005


class TimeRow(NamedTuple):
    """
    One node of a time tree in words.

    ``depth`` is 0 for the states of the budget; ``tone`` is its colour.
    """

    node: TimeNode
    depth: int
    tone: str
    sentence: Sentence


def time_rows(tree: TimeNode | None, *, least_share: float = _LEAST_SHARE) -> Iterator[TimeRow]:
    """
    Yield the nodes of a tree below its root, each before its children.

    Args:
        tree: The tree; None: no rows.
        least_share: Nodes with a smaller share of the tree are omitted.
    """
    if tree is not None:
        yield from _rows(parent=tree, depth=0, state="", least_share=least_share, with_lines=True)


def describe_bound(bound: VerdictClass) -> Sentence:
    """Describe the main culprit of a class that a verdict names; empty: not known."""
    parts: list[Part] = []
    above = TimeNode(NodeKind.ALL, 0, 1.0)
    for depth, node in enumerate(bound.path):
        # A line of work is named only if it is a node of the path: else none has most of it.
        is_line = node.state == NodeKind.LINE or (node.state in _WORK and node.samples)
        part = _describe(node, above, depth) if depth else ()
        place = () if is_line or node.where == above.where else _describe_where(node)
        parts += [", ", *part] if parts and part else part
        parts += place if parts else ["in ", *place[1:]] if place else ()
        if 2 * node.time_ns < bound.path[0].time_ns and node.state != NodeKind.LINE:
            parts.append(f" for {format_share(node.time_ns / bound.path[0].time_ns)} of it")
        above = node
    return tuple(parts)


def largest_leaves(tree: TimeNode | None, most: int) -> list[tuple[TimeRow, ...]]:
    """
    Return the leaves with most time, each as the rows that lead to it: its state first.

    A thread's work is one leaf, with the line that has most of it.
    """
    rows = (
        list(_rows(parent=tree, depth=0, state="", least_share=_LEAST_SHARE, with_lines=False))
        if tree
        else []
    )
    path: list[TimeRow] = []
    leaves: list[tuple[TimeRow, ...]] = []
    depths = [*(row.depth for row in rows[1:]), 0]
    for row, next_depth in zip(rows, depths, strict=False):
        path[row.depth :] = [row]
        if next_depth <= row.depth:
            leaves.append(tuple(path))
    return sorted(leaves, key=lambda leaf: -leaf[-1].node.time_ns)[:most]


def _rows(
    parent: TimeNode, depth: int, state: str, least_share: float, *, with_lines: bool
) -> Iterator[TimeRow]:
    for node in parent.children:
        if node.share < least_share:
            continue
        of = state or node.state
        tone = STATES.get(of, (OTHER, ""))[0] if depth < 2 else tone_of(node.state)  # noqa: PLR2004
        lines = [child for child in node.children if child.state == NodeKind.LINE]
        tone = WORK if node.state == NodeKind.LINE else tone
        parts = _describe(node, parent, depth)
        # Several lines have rows of their own.
        is_listed = with_lines and len(node.children) > 1
        if lines:
            counted = (f": {count_of(node.samples, 'sample')}",)
            parts = (*parts, *(counted if is_listed else (", ", *_describe_line(lines[0], node))))
        elif node.state != NodeKind.LINE and node.where != parent.where:
            # A location is shown once, at the most specific node.
            parts = (*parts, *_describe_where(node))
        yield TimeRow(node=node, depth=depth, tone=tone, sentence=parts)
        if is_listed or not lines:
            yield from _rows(
                parent=node,
                depth=depth + 1,
                state=of,
                least_share=least_share,
                with_lines=with_lines,
            )


def _describe(node: TimeNode, parent: TimeNode, depth: int) -> Sentence:
    if node.state == NodeKind.LINE:
        return _describe_line(node, parent)
    return (_describe_state, _describe_waited_for, _describe_activity)[min(depth, 2)](node, parent)


def _describe_state(node: TimeNode, _: TimeNode) -> Sentence:
    return (STATES[node.state][1] if node.state in STATES else Name(node.state),)


def _describe_waited_for(node: TimeNode, parent: TimeNode) -> Sentence:
    if node.state in (NodeKind.OTHER, NodeKind.UNKNOWN):
        return _describe_note(node)
    parts: list[Part] = []
    if node.who is not None:
        who = Name(describe_who(node.who))
        if node.state == CauseKind.STOPPED:
            parts = ["until ", who, " let it go on"]
        else:
            parts = [who, " had the CPU"] if node.state in _HAS_CPU else ["for ", who]
    elif node.resource is None:
        parts = [_no_culprit(node, parent)]
    if node.resource is not None and (name := describe_resource(node.resource)):
        parts += [" at " if parts else "for ", Name(name)]
    elif not parts:
        parts = [_label_of(node.state)]
    return tuple(parts)


def _no_culprit(node: TimeNode, parent: TimeNode) -> Part:
    if node.state in _HAS_CPU:
        return "no other thread had the CPU"
    if parent.state == TimeState.IDLE:
        return "for input from outside of what is watched"
    if node.state in (CauseKind.IPC, CauseKind.LOCK, CauseKind.GIL):
        return "for whom is not known"
    return _label_of(node.state)


def _describe_activity(node: TimeNode, parent: TimeNode) -> Sentence:
    if node.state in (NodeKind.OTHER, NodeKind.UNKNOWN):
        return _describe_note(node)
    phrase = PHRASES.get(node.state)
    which = phrase.which.rpartition("|")[2] if phrase else node.state
    parts: list[Part] = [which]
    if node.who is not None and parent.who is not None and node.who[:2] != parent.who[:2]:
        parts = [Name(describe_who(node.who)), ", ", which]
    if node.resource is not None and (name := describe_resource(node.resource)):
        parts += [": ", Name(name)]
    return tuple(parts)


def _describe_note(node: TimeNode) -> Sentence:
    word = "not known" if node.state == NodeKind.UNKNOWN else "others"
    return (f"{word}: {node.note[:1].lower()}{node.note[1:]}",) if node.note else (word,)


def _describe_where(node: TimeNode) -> Sentence:
    if node.where is None:
        return ()
    no_sample = (" (no sample)",) if node.state in _WORK and not node.samples else ()
    return (", in ", Name(describe_where(node.where)), *no_sample)


def _describe_line(line: TimeNode, of: TimeNode) -> Sentence:
    share = line.time_ns / of.time_ns if of.time_ns else 0.0
    return (
        in_line(where=line.where, work=line.work, share=share, samples=of.samples)
        if line.where
        else ()
    )


def _label_of(kind: str) -> Part:
    phrase = PHRASES.get(kind)
    return phrase.name if phrase else Name(kind)
