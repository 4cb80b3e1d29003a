"""Ranking: the order of causes, and the sums of the causes of many effects."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.explain import rules
from otel_gpu.explain.chains import COLLECTIVE, Cause, Culprit, DeviceTrouble, Evidence
from otel_gpu.explain.evidence import keep_longest
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.state.code_lines import LineSums

_T = TypeVar("_T")

# Evidence is cut when there is this many times too much of it, not each time.
_EVIDENCE_SLACK = 4


class Added(NamedTuple):
    """A cause, and how much of its time is not usual."""

    time_ns: int
    cause: Cause


def rank(causes: Iterable[Cause], usual_ns: int) -> tuple[Cause, ...]:
    """Return causes in the order of what they add to what is usual."""
    return tuple(one.cause for one in added_to(causes, usual_ns))


def added_to(causes: Iterable[Cause], usual_ns: int) -> list[Added]:
    """
    Return what causes add to what is usual, the most first.

    A call that usually waits 50 ms for the device also does so when something else delays it: the
    usual time is assigned to the kinds that are not faults.
    """
    left_ns = usual_ns
    added: list[Added] = []
    for cause in sorted(causes, key=_order):
        usual_part_ns = 0
        if rules.RULE_BY_KIND[cause.kind].fault == rules.FaultSide.NONE:
            usual_part_ns = min(left_ns, cause.time_ns)
            left_ns -= usual_part_ns
        added.append(Added(cause.time_ns - usual_part_ns, cause))
    # Stable: of equals, the longer one stays first.
    return sorted(added, key=lambda one: -one.time_ns)


class CauseSums:
    """
    The causes of many effects, summed by kind and culprit, and by collective; bounded.

    Attributes:
        left_out_ns: Time of causes that exceeded the limit, the shortest ones.
    """

    def __init__(self, max_causes: int, max_evidence: int) -> None:
        self._max_causes = max_causes
        self._max_evidence = max_evidence
        self._sums: dict[tuple[CauseKind, int, str], _Sum] = {}
        self.left_out_ns = 0

    def add(self, causes: Iterable[Cause]) -> None:
        """Add the causes of one more effect."""
        for cause in causes:
            # Two collectives that one rank did not call are two causes.
            which = cause.resource.name if cause.kind in COLLECTIVE and cause.resource else ""
            key = (cause.kind, cause.culprit.pid if cause.culprit else 0, which)
            known = self._sums.get(key)
            if known is None:
                known = self._sums[key] = _Sum()
            known.time_ns += cause.time_ns
            if known.trouble is None or cause.time_ns > known.longest_ns:
                known.trouble = cause.trouble
            if cause.time_ns > known.longest_ns:
                known.longest_ns = cause.time_ns
                known.culprit, known.others = cause.culprit, cause.others
            known.vote.add(cause.resource, cause.time_ns)
            if not (cause.lines.is_older and known.lines.samples):
                known.lines.add_lines(cause.lines)
            known.evidence += cause.evidence
            if len(known.evidence) > _EVIDENCE_SLACK * self._max_evidence:
                known.evidence[:] = keep_longest(known.evidence, self._max_evidence)
            if cause.via:
                if known.via is None:
                    known.via = CauseSums(self._max_causes, self._max_evidence)
                known.via.add(cause.via)
        while len(self._sums) > self._max_causes:
            shortest = min(self._sums, key=lambda key: self._sums[key].time_ns)
            self.left_out_ns += self._sums.pop(shortest).time_ns

    def causes(self, duration_ns: int) -> list[Cause]:
        """Return the causes of all effects; ``duration_ns`` is the sum of theirs."""
        return [
            Cause(
                kind=kind,
                time_ns=known.time_ns,
                share=share_of(known.time_ns, duration_ns),
                culprit=known.culprit,
                evidence=keep_longest(known.evidence, self._max_evidence),
                via=() if known.via is None else rank(known.via.causes(duration_ns), 0),
                resource=known.vote.winner(),
                lines=known.lines.lines(),
                trouble=known.trouble,
                others=known.others,
            )
            for (kind, *_), known in self._sums.items()
        ]


class _Sum:
    __slots__ = (
        *(
            "culprit",
            "evidence",
            "lines",
            "longest_ns",
            "others",
            "time_ns",
            "trouble",
            "via",
            "vote",
        ),
    )

    def __init__(self) -> None:
        self.time_ns = 0
        self.longest_ns = 0
        self.culprit: Culprit | None = None
        self.others: tuple[Culprit, ...] = ()
        self.evidence: list[Evidence] = []
        self.lines = LineSums()
        self.via: CauseSums | None = None
        self.trouble: DeviceTrouble | None = None
        self.vote = _Vote()


class _Vote:
    # Finds what three quarters of some time were for, without a list of all: time of others is
    # taken from the leader's. So if half of all time is left at the end, three quarters or more
    # were the leader's.

    __slots__ = ("leader", "left_ns", "time_ns")

    def __init__(self) -> None:
        self.leader: Resource | None = None
        self.left_ns = self.time_ns = 0

    def add(self, resource: Resource | None, time_ns: int) -> None:
        self.time_ns += time_ns
        if resource == self.leader:
            self.left_ns += time_ns
        elif time_ns <= self.left_ns:
            self.left_ns -= time_ns
        else:
            self.leader, self.left_ns = resource, time_ns - self.left_ns

    def winner(self) -> Resource | None:
        return self.leader if 2 * self.left_ns >= self.time_ns else None


def clear_resource(times: Iterable[tuple[Resource | None, int]]) -> Resource | None:
    """Return what three quarters of some time, in nanoseconds each, were for; None: not known."""
    vote = _Vote()
    for resource, time_ns in times:
        vote.add(resource, time_ns)
    return vote.winner()


def scaled(cause: Cause, factor: float) -> Cause:
    """Return a cause, and those below it, with a part of their time."""
    return cause._replace(
        time_ns=int(cause.time_ns * factor),
        share=cause.share * factor,
        via=tuple(scaled(one, factor) for one in cause.via),
    )


def _order(cause: Cause) -> tuple[int, int, int, int]:
    culprit = cause.culprit
    return (
        -cause.time_ns,
        rules.RANK[cause.kind],
        culprit.pid if culprit else 0,
        culprit.tid if culprit else 0,
    )


def share_of(time_ns: int, duration_ns: int) -> float:
    """Return the part of an effect's duration, 0 if it has none."""
    return time_ns / duration_ns if duration_ns else 0.0


def fit(parts: Mapping[_T, int], most_ns: int) -> dict[_T, int]:
    """Return parts scaled down in proportion to sum to no more than ``most_ns``."""
    return spread(parts, most_ns) if sum(parts.values()) > most_ns else dict(parts)


def spread(parts: Mapping[_T, int], whole_ns: int) -> dict[_T, int]:
    """Return parts scaled in proportion to sum to ``whole_ns`` exactly."""
    total_ns = sum(parts.values())
    spread: dict[_T, int] = {}
    before_ns = 0
    for part, time_ns in parts.items():
        after_ns = before_ns + time_ns
        spread[part] = after_ns * whole_ns // total_ns - before_ns * whole_ns // total_ns
        before_ns = after_ns
    return spread
