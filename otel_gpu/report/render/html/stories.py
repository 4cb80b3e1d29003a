"""Selections of the document for a page: the leading incident, trees of causes, stacks, cards."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import filterfalse
from typing import NamedTuple

from otel_gpu.report.causes import CauseStep, find_intervals, longest_first, write_tree
from otel_gpu.report.document import (
    ApiTotals,
    Balance,
    CallStack,
    Cause,
    Chain,
    Document,
    Incident,
    ProcessReport,
    Program,
    Who,
    key_of,
    stack_of_cause,
)
from otel_gpu.report.render.html.charts import is_busy
from otel_gpu.report.render.html.shapes import SharePart, cause_parts
from otel_gpu.report.time_tree import time_rows
from otel_gpu.report.wording.formats import count_of, format_duration
from otel_gpu.report.wording.phrases import CLASSES, OTHER, tone_of
from otel_gpu.report.wording.sentences import (
    Code,
    FrameLine,
    Sentence,
    effect_parts,
    label_of,
    what_happened,
    what_it_did,
    who_of,
)
from otel_gpu.report.wording.shares import SHOWN_SHARE, largest_first

MOST_FRAMES = 64
MOST_STACKS = 5
MOST_LISTED = 10
MOST_BOXES = 2_000
MOST_PROCESSES = 24
MOST_NAMED = 12
MOST_EFFECTS = 32
MOST_DRAWN = 4
MOST_LOSSES = 32
MOST_NOTES = 64
_FRAMES_OF_WAITS = 24
_MOST_CAUSES = 8
_MOST_DEPTH = 6
_MOST_PROCESSES = 8
_LEADING_SHARE = 0.02
_MOST_LEADING = 5
_IDENTITY = ("command", "unit", "container", "pod", "owner")


def lead_parts(incident: Incident) -> list[SharePart]:
    """Return the causes of the leading incident, each with its culprit."""
    causes_shown = [cause for cause in incident.causes if cause.share >= _LEADING_SHARE]
    return [
        part._replace(name=(part.name, ": ", *who_of(cause)) if cause.culprit else part.name)
        for part, cause in zip(cause_parts(causes_shown), causes_shown, strict=True)
    ][:_MOST_LEADING]


class TreeNode(NamedTuple):
    """
    A cause in a tree, or a part of a process's time.

    One with ``rest`` sums up the smaller ones beside it; ``identity`` identifies the culprit in
    more detail.
    """

    share: float
    time_ns: int
    tone: str = ""
    kind: str = ""
    sentence: Sentence = ()
    place: FrameLine | None = None
    inner: Sequence["TreeNode"] = ()
    rest: str = ""
    identity: str = ""


def time_nodes(process: ProcessReport) -> list[TreeNode]:
    """Return the time tree of a process's launching threads."""
    levels: list[list[TreeNode]] = [[]]
    known = {process.process.pid}
    for row in time_rows(process.time_tree):
        one, inner = row.node, list[TreeNode]()
        is_new = one.who is not None and one.who.pid not in known
        identity = _identity_of(one.who, process) if one.who and is_new else ""
        known |= {one.who.pid} if one.who else set()
        shown = TreeNode(one.share, one.time_ns, row.tone, sentence=row.sentence, inner=inner)
        levels[row.depth].append(shown._replace(identity=identity))
        levels[row.depth + 1 :] = [inner]
    return levels[0]


def _identity_of(who: Who, process: ProcessReport) -> str:
    # The identity of a culprit beyond name and number; empty if it equals the process.
    if who.command == process.command:
        return ""
    known = ((name, getattr(who, name)) for name in _IDENTITY)
    return "; ".join(f"{name} {value}" for name, value in known if value)


def cause_nodes(found: Sequence[Cause], own: CallStack | None = None) -> list[TreeNode]:
    """Return causes with their places, except the effect's ``own``, and with their own causes."""

    def write(step: CauseStep, inner: list[TreeNode]) -> TreeNode:
        cause, stack = step.cause, stack_of_cause(step.cause)
        text = what_it_did(cause, step.thread) if step.depth else what_happened(cause)
        # The sentence contains the line.
        is_new = stack is not None and (own is None or stack != own) and not cause.lines.first
        place = FrameLine(stack.place) if stack and stack.place and is_new else None
        shown = _trim(inner) if step.depth < _MOST_DEPTH else []
        tone, kind = tone_of(cause.kind), Code(cause.kind)
        return TreeNode(
            share=cause.share,
            time_ns=cause.time_ns,
            tone=tone,
            kind=kind,
            sentence=text,
            place=place,
            inner=shown,
        )

    return _trim(write_tree(found, write))


def _trim(nodes: list[TreeNode]) -> list[TreeNode]:
    shown = [one for one in nodes[:_MOST_CAUSES] if one.share >= SHOWN_SHARE] or nodes[:1]
    if not (rest := [node for node in nodes if not any(node is one for one in shown)]):
        return shown
    time_ns = sum(node.time_ns for node in rest)
    words = f"{count_of(len(rest), 'smaller cause')}: {format_duration(time_ns)} together"
    return [*shown, TreeNode(0.0, time_ns, rest=words)]


def duration_of(incident: Incident) -> int:
    """Return the time that an incident's shares refer to; 0 if no cause has a share."""
    known = next((cause for cause in incident.causes if cause.share > 0), None)
    return round(known.time_ns / known.share) if known else 0


class ShownStack(NamedTuple):
    """A stack of a chain, and what the thread did there."""

    about: Sentence
    stack: CallStack
    is_open: bool = False
    most: int = MOST_FRAMES


def stacks_of(chain: Chain) -> list[ShownStack]:
    """
    Return the stack of an effect, then those of its waits and of the threads that it waited for.
    """
    effect = chain.effect
    shown: dict[int, ShownStack] = {}
    if effect.stack is not None:
        shown[effect.stack.id] = ShownStack(effect_parts(effect), effect.stack, is_open=True)
    for interval in longest_first(find_intervals(chain)):
        if (stack := interval.stack) is not None and stack.id not in shown:
            who: Sentence = (interval.thread, ": ") if interval.thread else ()
            length = f" for {format_duration(interval.length_ns)}"
            about = (*who, label_of(interval.cause.kind), length)
            shown[stack.id] = ShownStack(about, stack, most=_FRAMES_OF_WAITS)
    return list(shown.values())[:MOST_STACKS]


def judged_and_others(document: Document) -> tuple[list[ProcessReport], list[ProcessReport]]:
    """Return the processes that call CUDA, the busiest first, and the others."""
    calling = {key_of(row.process) for row in document.apis}

    def is_judged(one: ProcessReport) -> bool:
        return bool(one.budget_ns) or key_of(one.process) in calling

    judged = filter(is_judged, document.processes)
    others = filterfalse(is_judged, document.processes)
    return sorted(judged, key=lambda one: -sum(one.budget_ns.values())), list(others)


def state_parts(process: ProcessReport) -> list[SharePart]:
    """Return the time of a process's launching threads, by state."""
    return [SharePart(node.tone, node.sentence, node.share) for node in time_nodes(process)]


def tone_of_verdict(verdict: str) -> str:
    """Return the colour of a verdict."""
    name = verdict.removesuffix("-bound").removeprefix("cpu-")
    return CLASSES[name][0] if name in CLASSES and name != verdict else OTHER


def busy_processes(document: Document) -> list[Program]:
    """Return the processes that have charts of their own."""
    programs = [one.process for one in document.processes]
    busy = [program for program in programs if is_busy(document.buckets_of(program))]
    return busy[:_MOST_PROCESSES] if len(busy) > 1 else []


def by_balance(balances: Sequence[Balance]) -> list[Balance]:
    """Return balances, the most uneven first."""
    return sorted(balances, key=lambda one: -abs(one.allocated_bytes - one.freed_bytes))


def failing(apis: Iterable[ApiTotals]) -> tuple[str, int]:
    """Return the API with most errors, and their count."""
    errors: Counter[str] = Counter()
    for row in apis:
        errors[row.api] += row.errors
    return largest_first(errors)[0]
