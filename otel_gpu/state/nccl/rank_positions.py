"""How the ranks of a communicator stand to each other, by the last readings."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from otel_gpu.state.nccl.rank_calls import OUT, Member
from otel_gpu.wire.communicators import QueuedCollective, Signature

_PAIR = 2
_MAX_UNMATCHED = 1 << 14


class RankState(StrEnum):
    """How the ranks of a communicator stand to each other."""

    RUNNING = "running"
    RANK_MISSING = "rank_missing"
    RANKS_DISAGREE = "ranks_disagree"
    QUEUED = "queued"
    UNKNOWN = "unknown"


class Unmatched(NamedTuple):
    """
    Elements that one rank sends, and that another one expects to be a different number.

    Attributes:
        sender: Who sends them; None: all ranks, to all.
        receiver: Who expects them.
        sent: How many are sent.
        expected: How many are expected.
    """

    sender: Member | None
    receiver: Member | None
    sent: int
    expected: int


class Standing(NamedTuple):
    """
    How the ranks of a communicator stand to each other by the last readings.

    Attributes:
        state: How.
        number: Of the collective that is not done; 0: none is.
        waiting: Those that called it and wait.
        lacking: Those that did not call it, or asked for something else than the most. All, where it cannot be
            told who is wrong.
        since_ktime_ns: Since when the first of them waits.
        signatures: What was asked for, by how many of the ranks on this host.
        unmatched: What of an exchange of different amounts does not match.
    """

    state: RankState
    number: int = 0
    waiting: tuple[Member, ...] = ()
    lacking: tuple[Member, ...] = ()
    since_ktime_ns: int = 0
    signatures: tuple[tuple[Signature, int], ...] = ()
    unmatched: tuple[Unmatched, ...] = ()


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
        calls = [(one, one.call_of(number)) for one in members]
        known = [(one, call) for one, call in calls if call is not None]
        asked = asked_by(members, number)
        unmatched = () if len(asked) > 1 else _unmatched(known)
        waiting = tuple(going_on([one for one, _ in known]))
        if waiting and (len(asked) > 1 or unmatched):
            odd = _odd_of_pairs(unmatched) if unmatched else _odd(known, asked)
            since = max(call.called_ktime_ns for _, call in known)
            return Standing(
                *(RankState.RANKS_DISAGREE, number, waiting, odd or tuple(one for one, _ in known)),
                *(since, asked, unmatched),
            )
    return None


def _odd(
    known: Sequence[tuple[Member, QueuedCollective]], asked: Sequence[tuple[Signature, int]]
) -> tuple[Member, ...]:
    """Return who asked for something else than more than half of the ranks; none: nobody did."""
    usual, count = asked[0]
    if 2 * count <= len(known):
        return ()
    return tuple(one for one, call in known if call.signature != usual)


def _unmatched(known: Sequence[tuple[Member, QueuedCollective]]) -> tuple[Unmatched, ...]:
    """Return what ranks send each other that is not what the other one expects, pair by pair."""
    by_rank = {one.last.rank: (one, call) for one, call in known if call.sends and call.receives}
    size = max((one.last.rank_count for one, _ in known), default=0)
    if size < 1 or sorted(by_rank) != list(range(size)):
        # What the others send is not known.
        return ()
    ranks = [by_rank[rank] for rank in range(size)]
    if all(len(call.sends) == len(call.receives) == size for _, call in ranks):
        # What each sender's receivers expect of it: their rows, turned to columns.
        expected = zip(*(call.receives for _, call in ranks), strict=True)
        rows = zip(ranks, expected, strict=True)
        found = (
            Unmatched(sender, ranks[at][0], call.sends[at], wanted[at])
            for (sender, call), wanted in rows
            if call.sends != wanted
            for at in range(size)
            if call.sends[at] != wanted[at]
        )
        return tuple(islice(found, _MAX_UNMATCHED))
    sent = sum(sum(call.sends) for _, call in ranks)
    wanted_in_all = sum(sum(call.receives) for _, call in ranks)
    return () if sent == wanted_in_all else (Unmatched(None, None, sent, wanted_in_all),)


def _odd_of_pairs(unmatched: Sequence[Unmatched]) -> tuple[Member, ...]:
    """Return the one that is in more pairs than any other; if that is not one, all of the pairs."""
    pairs = Counter(one for each in unmatched for one in (each.sender, each.receiver) if one)
    most = pairs.most_common(_PAIR)
    if len(most) == _PAIR and most[0][1] > most[1][1]:
        return (most[0][0],)
    return tuple(pairs)


def absence(members: Sequence[Member]) -> Standing | None:
    """Return who did not call what others wait for."""
    number = min(one.last.called for one in members) + 1
    lacking = tuple(one for one in members if one.last.called < number)
    waiting = tuple(one for one in going_on(members) if one.last.called >= number)
    if not waiting:
        return None
    since = min(one.called_at_most_ktime_ns(number) for one in waiting)
    return Standing(
        RankState.RANK_MISSING, number, waiting, lacking, since, asked_by(waiting, number)
    )


def asked_by(members: Sequence[Member], number: int) -> tuple[tuple[Signature, int], ...]:
    """Return what ranks asked for in a collective, and how many of them, the most first."""
    calls = (one.call_of(number) for one in sorted(members, key=lambda one: one.last.rank))
    counts = Counter(call.signature for call in calls if call is not None)
    return tuple(counts.most_common())
