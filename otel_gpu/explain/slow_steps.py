"""The causes of a slow step: those of its slow calls and gaps in that time."""

from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Culprit, ProcessKey, key_of
from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.state.steps import SlowStep

ThreadChains = dict[tuple[ProcessKey, int], list[Chain]]


class StepCauses(NamedTuple):
    """
    Why a step was slow.

    ``unexplained_ns`` is the time over the usual duration that has no cause.
    """

    causes: tuple[Cause, ...]
    unexplained_ns: int


def chains_by_thread(chains: Iterable[Chain]) -> ThreadChains:
    """Return the chains of each thread."""
    found: ThreadChains = {}
    for chain in chains:
        found.setdefault((key_of(chain.effect.process), chain.effect.tid), []).append(chain)
    return found


def causes_of_step(step: SlowStep, chains: ThreadChains) -> StepCauses:
    """
    Return the causes of what was slow in a step, the longest first.

    If an effect reaches beyond the step, each cause counts by the part inside the step.
    """
    activity = step.activity
    duration_ns = max(1, step.duration_ns)
    found: dict[tuple[str, Culprit | None], Cause] = {}
    for chain in chains.get((key_of(activity.process), activity.event.tid), ()):
        part = _part_inside(chain, activity.start_unix_ns, activity.end_unix_ns)
        for cause in chain.causes if part else ():
            time_ns = int(cause.time_ns * part)
            known = found.get((cause.kind, cause.culprit))
            # The longest one has the location.
            most = cause if known is None or time_ns > known.time_ns else known
            time_ns += known.time_ns if known else 0
            evidence = (*known.evidence, *cause.evidence) if known else cause.evidence
            found[cause.kind, cause.culprit] = most._replace(
                time_ns=time_ns, share=min(1.0, time_ns / duration_ns), evidence=evidence
            )
    causes = tuple(sorted(found.values(), key=lambda one: -one.time_ns))
    known_ns = sum(cause.time_ns for cause in causes)
    return StepCauses(causes, max(0, step.excess_ns - known_ns))


def _part_inside(chain: Chain, start_unix_ns: int, end_unix_ns: int) -> float:
    effect = chain.effect
    if effect.duration_ns <= 0:
        return 0.0
    until = min(end_unix_ns, effect.start_unix_ns + effect.duration_ns)
    return max(0, until - max(start_unix_ns, effect.start_unix_ns)) / effect.duration_ns
