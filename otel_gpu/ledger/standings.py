"""How the ranks of a communicator stand to each other, by the last readings."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from otel_gpu.decode.communicators import Signature
from otel_gpu.ledger.members import OUT, Member


class State(StrEnum):
    """How the ranks of a communicator stand to each other."""

    RUNNING = "running"
    RANK_MISSING = "rank_missing"
    RANKS_DISAGREE = "ranks_disagree"
    QUEUED = "queued"
    UNKNOWN = "unknown"


class Standing(NamedTuple):
    """
    How the ranks of a communicator stand to each other by the last readings.

    Attributes:
        state: How.
        number: Of the collective that is not done; 0: none is.
        waiting: Those that called it and wait.
        lacking: Those that did not call it, or asked for something else than the most.
        since_ktime_ns: Since when the first of them waits.
        signatures: What was asked for, by how many of the ranks on this host.
    """

    state: State
    number: int = 0
    waiting: tuple[Member, ...] = ()
    lacking: tuple[Member, ...] = ()
    since_ktime_ns: int = 0
    signatures: tuple[tuple[Signature, int], ...] = ()


def going_on(members: Sequence[Member]) -> list[Member]:
    """Return those that can wait; when all processes have ended, those that did when they ended."""
    alive = [one for one in members if one.is_in]
    return alive or [one for one in members if not one.last.flags & OUT]


def disagreement(members: Sequence[Member]) -> Standing | None:
    """Return what ranks asked for that is not the same, of the first collective of which that is so."""
    least = min(one.last.called for one in members)
    done = max(one.last.completed for one in members)
    numbers = {call.number for one in members for call in one.calls}
    for number in sorted(one for one in numbers if done < one <= least):
        asked = asked_by(members, number)
        if len(asked) > 1:
            usual = asked[0][0]
            calls = [(one, one.call_of(number)) for one in members]
            known = [(one, call) for one, call in calls if call is not None]
            odd = tuple(one for one, call in known if call.signature != usual)
            waiting = tuple(going_on([one for one, _ in known]))
            if waiting:
                since = max(call.called_ktime_ns for _, call in known)
                return Standing(State.RANKS_DISAGREE, number, waiting, odd, since, asked)
    return None


def absence(members: Sequence[Member]) -> Standing | None:
    """Return who did not call what others wait for."""
    number = min(one.last.called for one in members) + 1
    lacking = tuple(one for one in members if one.last.called < number)
    waiting = tuple(one for one in going_on(members) if one.last.called >= number)
    if not waiting:
        return None
    since = min(one.called_at_most_ktime_ns(number) for one in waiting)
    return Standing(State.RANK_MISSING, number, waiting, lacking, since, asked_by(waiting, number))


def asked_by(members: Sequence[Member], number: int) -> tuple[tuple[Signature, int], ...]:
    """Return what ranks asked for in a collective, and how many of them, the most first."""
    calls = (one.call_of(number) for one in sorted(members, key=lambda one: one.last.rank))
    counts = Counter(call.signature for call in calls if call is not None)
    return tuple(counts.most_common())
