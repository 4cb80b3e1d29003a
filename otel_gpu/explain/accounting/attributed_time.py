"""Time that effects attribute to causes, so that no chronic cause reports it a second time."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.explain.accounting.chronic import Chronic
from otel_gpu.explain.chains import Cause, Effect
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.rules import REPEATED_KINDS
from otel_gpu.limits.recent import Fifo

_NS_PER_S = 1_000_000_000
_MAX_SECONDS = 64
# Causes that effects know more exactly than time accounting, by its own kind.
_BETTER: Mapping[CauseKind, frozenset[CauseKind]] = {
    CauseKind.RUN_QUEUE: frozenset({CauseKind.CPU_QUOTA}),
    CauseKind.HOST_WORK: frozenset({CauseKind.FORK}),
    CauseKind.MMAP_LOCK: frozenset({CauseKind.FORK}),
    CauseKind.PAGE_FAULT: frozenset({CauseKind.FORK}),
}


# Time accounting has one kind for a CPU that was taken away and one that was not free.
_SAME: Mapping[CauseKind, CauseKind] = {CauseKind.RUN_QUEUE: CauseKind.PREEMPTION}


class AttributedTime(NamedTuple):
    """The time of one cause in a number of effects."""

    time_ns: int = 0
    effects: int = 0

    def plus(self, time_ns: int, effects: int) -> "AttributedTime":
        """Return the sum of this and more."""
        return AttributedTime(self.time_ns + time_ns, self.effects + effects)


_ByCause = dict[tuple[CauseKind, int], AttributedTime]
"""By kind, and the pid of the culprit."""
_NOTHING = AttributedTime()


class AttributedTimes:
    """What effects attributed to causes, by program and second of their end; bounded."""

    def __init__(self, max_programs: int) -> None:
        self._attributed: Fifo[ProcessKey, dict[int, _ByCause]] = Fifo(max_programs)

    def add(self, effect: Effect, causes: Iterable[Cause]) -> None:
        """Add the causes of an effect, each limited to the effect's excess."""
        seconds = self._attributed.setdefault(key_of(effect.process), {})
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        attributed = seconds.setdefault(end_unix_ns // _NS_PER_S, {})
        for cause in causes:
            key = (cause.kind, cause.culprit.pid if cause.culprit else 0)
            attributed[key] = attributed.get(key, _NOTHING).plus(
                min(cause.time_ns, effect.excess_ns), 1
            )
        if len(seconds) > _MAX_SECONDS:
            del seconds[min(seconds)]

    def take(
        self, process: Program, unix_ns: int
    ) -> Mapping[tuple[CauseKind, int], AttributedTime]:
        """Return and remove what effects of a program attributed that ended before ``unix_ns``."""
        seconds = self._attributed.get(key_of(process), {})
        taken: _ByCause = {}
        for second in [second for second in seconds if second * _NS_PER_S <= unix_ns]:
            for key, claim in seconds.pop(second).items():
                taken[key] = taken.get(key, _NOTHING).plus(*claim)
        if not seconds:
            self._attributed.pop(key_of(process), None)
        return taken


def attributed_of(
    chronic: Chronic, attributed: Mapping[tuple[CauseKind, int], AttributedTime]
) -> tuple[AttributedTime, int]:
    """
    Return how much time of a chronic cause the effects already report, in nanoseconds.

    The first part has the same kind, and counts the effects of the same culprit. The second is time
    that effects attribute to a more exact kind.
    """
    better = _BETTER.get(chronic.cause.kind, frozenset())
    same, better_ns = _NOTHING, 0
    for (kind, culprit_pid), claim in attributed.items():
        is_its = not culprit_pid or culprit_pid in chronic.pids
        is_its = is_its or (not chronic.pids and kind in REPEATED_KINDS)
        if is_its and kind in (chronic.cause.kind, _SAME.get(chronic.cause.kind)):
            # Effects of other culprits are incidents of their own.
            is_one = culprit_pid == chronic.culprit_pid
            same = same.plus(claim.time_ns, claim.effects if is_one else 0)
        elif kind in better:
            better_ns += claim.time_ns
    return same, better_ns
