"""Claims: what effects say that causes took, so that no chronic cause tells of it again."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.explain.accounting.chronic import Chronic
from otel_gpu.explain.chains import Cause, Effect
from otel_gpu.explain.rules import REPEATED_KINDS
from otel_gpu.limits.recent import Fifo

_NS_PER_S = 1_000_000_000
# Stretches are looked at every few seconds.
_MAX_SECONDS = 64
# What effects know better than an account.
_BETTER: Mapping[str, frozenset[str]] = {
    "run_queue": frozenset({"cpu_quota"}),
    "host_work": frozenset({"fork"}),
    "mmap_lock": frozenset({"fork"}),
    "page_fault": frozenset({"fork"}),
}


# The account does not tell a CPU that was taken away from one that was not free.
_SAME: Mapping[str, str] = {"run_queue": "preemption"}


class AttributedTime(NamedTuple):
    """What so many effects say that a cause took."""

    time_ns: int = 0
    effects: int = 0

    def plus(self, time_ns: int, effects: int) -> "AttributedTime":
        """Return it with more of both."""
        return AttributedTime(self.time_ns + time_ns, self.effects + effects)


_Claims = dict[tuple[str, int], AttributedTime]
"""By kind, and the pid of the culprit."""
_NOTHING = AttributedTime()


class AttributedTimes:
    """What effects say that causes took, by program and second; bounded."""

    def __init__(self, max_programs: int) -> None:
        self._claims: Fifo[ProcessKey, dict[int, _Claims]] = Fifo(max_programs)

    def add(self, effect: Effect, causes: Iterable[Cause]) -> None:
        """Take in the causes of an effect; each no more than the effect was too long."""
        seconds = self._claims.setdefault(key_of(effect.process), {})
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        claims = seconds.setdefault(end_unix_ns // _NS_PER_S, {})
        for cause in causes:
            key = (cause.kind, cause.culprit.pid if cause.culprit else 0)
            claims[key] = claims.get(key, _NOTHING).plus(min(cause.time_ns, effect.excess_ns), 1)
        if len(seconds) > _MAX_SECONDS:
            del seconds[min(seconds)]

    def take(self, process: Program, unix_ns: int) -> Mapping[tuple[str, int], AttributedTime]:
        """Return what effects of a program claim that ended by then, each once."""
        seconds = self._claims.get(key_of(process), {})
        taken: _Claims = {}
        for second in [second for second in seconds if second * _NS_PER_S <= unix_ns]:
            for key, claim in seconds.pop(second).items():
                taken[key] = taken.get(key, _NOTHING).plus(*claim)
        if not seconds:
            self._claims.pop(key_of(process), None)
        return taken


def claimed(
    chronic: Chronic, claims: Mapping[tuple[str, int], AttributedTime]
) -> tuple[AttributedTime, int]:
    """
    Return how much of the time of a chronic cause the effects tell of, in nanoseconds.

    Under the same name, with how many there are of the same culprit, and under another one, by
    which they know better what it was.
    """
    better = _BETTER.get(chronic.cause.kind, frozenset())
    same, better_ns = _NOTHING, 0
    for (kind, culprit_pid), claim in claims.items():
        is_its = not culprit_pid or culprit_pid in chronic.pids
        is_its = is_its or (not chronic.pids and kind in REPEATED_KINDS)
        if is_its and kind in (chronic.cause.kind, _SAME.get(chronic.cause.kind)):
            # Those of others are incidents of their own.
            is_one = culprit_pid == chronic.culprit_pid
            same = same.plus(claim.time_ns, claim.effects if is_one else 0)
        elif kind in better:
            better_ns += claim.time_ns
    return same, better_ns
