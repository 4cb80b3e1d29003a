"""
The tree of causes: the walk over it, and functions that read its branches.

A cause has causes of its own if the thread that ended a wait had to wait itself; their times are
parts of its time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from otel_gpu.explain.kinds import SEVERITY_RANK
from otel_gpu.explain.rules import RULE_BY_KIND, FaultSide
from otel_gpu.report.document import (
    CallStack,
    Cause,
    Chain,
    Culprit,
    Document,
    Evidence,
    EvidenceKind,
    Frame,
    Incident,
    Severity,
    stack_of_cause,
)
from otel_gpu.report.wording.formats import describe_place

# Evidence of these kinds has the stack of the effect itself.
_KINDS_OF_EFFECTS = frozenset({EvidenceKind.CALL, EvidenceKind.GAP})
_LEADING_SHARE = 0.5

T = TypeVar("T")


class CauseStep(NamedTuple):
    """
    One cause on the walk.

    ``thread`` is the thread whose time it was, None for the effect's own; ``depth`` counts the
    threads that were followed to find it.
    """

    cause: Cause
    thread: Culprit | None
    depth: int


def walk(
    causes: Sequence[Cause],
    *,
    most: int | None = None,
    thread: Culprit | None = None,
    depth: int = 0,
) -> Iterator[CauseStep]:
    """
    Yield each cause, followed by its own causes.

    Args:
        causes: The roots.
        most: Limit of causes of an effect, and of each cause; None: all.
        thread: The thread whose time the roots are.
        depth: Threads that were followed to the roots.
    """
    for cause in causes[:most]:
        yield CauseStep(cause, thread, depth)
        yield from walk(cause.via, most=most, thread=cause.culprit, depth=depth + 1)


def write_tree(causes: Sequence[Cause], write: Callable[[CauseStep, list[T]], T]) -> list[T]:
    """
    Write causes from the leaves to the roots, for renderers with a tree as output.

    Args:
        causes: The roots.
        write: Makes the form of a cause from the cause and the forms of its own causes.
    """
    # In reverse order, the causes of a cause come directly before it, one level deeper.
    written: dict[int, list[T]] = {}
    for step in reversed(list(walk(causes))):
        inner = written.pop(step.depth + 1, [])
        written.setdefault(step.depth, []).append(write(step, inner[::-1]))
    return written.get(0, [])[::-1]


class Interval(NamedTuple):
    """Evidence, with the step of the walk that it belongs to."""

    evidence: Evidence
    cause: Cause
    thread: Culprit | None
    depth: int

    @property
    def length_ns(self) -> int:
        """Its length; a clock can have been set back."""
        return max(0, self.evidence.end_unix_ns - self.evidence.start_unix_ns)

    @property
    def stack(self) -> CallStack | None:
        """The thread's stack; None if it is that of the effect itself."""
        return None if self.evidence.kind in _KINDS_OF_EFFECTS else self.evidence.stack


def find_intervals(chain: Chain) -> list[Interval]:
    """Return the intervals of evidence of an effect's causes, each once."""
    found: dict[str, Interval] = {}
    for step in walk(chain.causes):
        for evidence in step.cause.evidence:
            found.setdefault(evidence.id, Interval(evidence, *step))
    return list(found.values())


def longest_first(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals by length; of equals the earlier one first."""
    return sorted(
        intervals, key=lambda one: (-one.length_ns, one.evidence.start_unix_ns, one.evidence.id)
    )


def in_order_of_time(interval: Interval) -> tuple[int, int, str]:
    """Sort key: by start; of equals, the effect's own thread first."""
    return interval.evidence.start_unix_ns, interval.depth, interval.evidence.id


def path_of(cause: Cause) -> tuple[Cause, ...]:
    """
    Return a cause, then its main cause, and so on, while one cause accounts for half of the time.
    """
    path = [cause]
    while cause.via:
        most = max(cause.via, key=lambda other: other.time_ns)
        if most.time_ns < _LEADING_SHARE * cause.time_ns:
            break
        path.append(most)
        cause = most
    return tuple(path)


def worst_of(chains: Iterable[Chain]) -> Chain | None:
    """Return the chain that lost most, of those with the worst severity."""
    return min(
        chains,
        key=lambda chain: (rank_of(chain.severity), -chain.effect.excess_ns, chain.id),
        default=None,
    )


def shown_of(incident: Incident) -> Chain | None:
    """Return an incident's best example, else its worst effect; failures took no time."""
    lasting = [chain for chain in incident.chains if not chain.is_failure]
    return next(iter(incident.examples), None) or worst_of(lasting)


def worst_effect(document: Document) -> Chain | None:
    """
    Return the call or gap to show first: of the worst incident that has one, else the worst of all.
    """
    shown = filter(None, map(shown_of, document.incidents))
    # A request that failed took no time.
    lasting = (chain for chain in document.chains if chain.failure is None)
    return next(shown, None) or worst_of(lasting)


def is_hosts_fault(kind: str) -> bool:
    """Return whether a cause of this kind lies on the host, not on the device."""
    rule = RULE_BY_KIND.get(kind)
    return rule is not None and rule.fault != FaultSide.NONE


def rank_of(severity: Severity) -> int:
    """Return a severity's distance from the worst; unknown ones come last."""
    return SEVERITY_RANK.get(severity, len(SEVERITY_RANK))


def ranked_places(incident: Incident) -> list[tuple[Frame, int]]:
    """Return the code locations of an incident's effects, else of their waits, with counts."""
    stacks = [chain.effect.stack or _waited_at(chain.causes) for chain in incident.chains]
    if not stacks:
        stacks = [_waited_at(incident.causes)]
    frames = [stack.place for stack in stacks if stack and stack.place]
    named = {describe_place(frame): frame for frame in frames}
    places = Counter(map(describe_place, frames))
    ranked = sorted(places.items(), key=lambda item: (-item[1], item[0]))
    return [(named[name], count) for name, count in ranked]


def was_cpu_idle(cause: Cause) -> bool:
    """Return whether no thread had the CPU for most of the measured time."""
    idle_ns = busy_ns = 0
    for evidence in cause.evidence:
        length_ns = max(0, evidence.end_unix_ns - evidence.start_unix_ns)
        if evidence.is_cpu_idle:
            idle_ns += length_ns
        else:
            busy_ns += length_ns
    return idle_ns > busy_ns


def _waited_at(causes: Iterable[Cause]) -> CallStack | None:
    found = (stack_of_cause(cause) for cause in causes)
    return next((stack for stack in found if stack is not None), None)
