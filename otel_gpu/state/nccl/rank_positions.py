"""Positions of the ranks of a communicator relative to each other, by the last readings."""

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
    """How the ranks of a communicator relate to each other."""

    RUNNING = "running"
    RANK_MISSING = "rank_missing"
    RANKS_DISAGREE = "ranks_disagree"
    QUEUED = "queued"
    UNKNOWN = "unknown"


class Unmatched(NamedTuple):
    """
    Elements that one rank sends while another one expects a different number.

    Attributes:
        sender: Which rank sends them; None: all ranks, to all.
        receiver: Which rank expects them.
        sent: How many are sent.
        expected: How many are expected.
    """

    sender: Member | None
    receiver: Member | None
    sent: int
    expected: int


class Standing(NamedTuple):
    """
    The positions of the ranks of a communicator by the last readings.

    Attributes:
        state: Their relation.
        number: The collective that is not done; 0: none.
        waiting: The ranks that called it and wait.
        lacking: The ranks that did not call it, or asked for something else than most. All ranks,
            if it is
          not known which are wrong.
        since_ktime_ns: Since when the first of them waits.
        signatures: What was asked for, and by how many ranks on this host.
        unmatched: Mismatches in an exchange of different amounts.
    """

    state: RankState
    number: int = 0
    waiting: tuple[Member, ...] = ()
    lacking: tuple[Member, ...] = ()
    since_ktime_ns: int = 0
    signatures: tuple[tuple[Signature, int], ...] = ()
    unmatched: tuple[Unmatched, ...] = ()


def going_on(members: Sequence[Member]) -> list[Member]:
    """Return the ranks that can wait; if all processes have ended, those that were members then."""
    alive = [one for one in members if one.is_in]
    return alive or [one for one in members if not one.last.flags & OUT]


def disagreement(members: Sequence[Member]) -> Standing | None:
    """Return the first collective for which ranks asked for different things."""
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
    # Ranks that asked for something else than more than half of them; none without such a majority.
    usual, count = asked[0]
    if 2 * count <= len(known):
        return ()
    return tuple(one for one, call in known if call.signature != usual)


def _unmatched(known: Sequence[tuple[Member, QueuedCollective]]) -> tuple[Unmatched, ...]:
    # What ranks send each other that the other one does not expect, pair by pair.
    by_rank = {one.last.rank: (one, call) for one, call in known if call.sends and call.receives}
    size = max((one.last.rank_count for one, _ in known), default=0)
    if size < 1 or sorted(by_rank) != list(range(size)):
        # What the others send is not known.
        return ()
    ranks = [by_rank[rank] for rank in range(size)]
    if all(len(call.sends) == len(call.receives) == size for _, call in ranks):
        # What receivers expect of each sender: the transposed rows.
        expected = zip(*(call.receives for _, call in ranks), strict=True)
        rows = zip(ranks, expected, strict=True)
        found = (
            Unmatched(sender, receiver=ranks[at][0], sent=call.sends[at], expected=wanted[at])
            for (sender, call), wanted in rows
            if call.sends != wanted
            for at in range(size)
            if call.sends[at] != wanted[at]
        )
        return tuple(islice(found, _MAX_UNMATCHED))
    sent = sum(sum(call.sends) for _, call in ranks)
    wanted_in_all = sum(sum(call.receives) for _, call in ranks)
    return (
        ()
        if sent == wanted_in_all
        else (Unmatched(sender=None, receiver=None, sent=sent, expected=wanted_in_all),)
    )


def _odd_of_pairs(unmatched: Sequence[Unmatched]) -> tuple[Member, ...]:
    # The rank that is in more pairs than any other; without one, all of them.
    pairs = Counter(one for each in unmatched for one in (each.sender, each.receiver) if one)
    most = pairs.most_common(_PAIR)
    if len(most) == _PAIR and most[0][1] > most[1][1]:
        return (most[0][0],)
    return tuple(pairs)


def absence(members: Sequence[Member]) -> Standing | None:
    """Return the ranks that did not call what others wait for."""
    number = min(one.last.called for one in members) + 1
    lacking = tuple(one for one in members if one.last.called < number)
    waiting = tuple(one for one in going_on(members) if one.last.called >= number)
    if not waiting:
        return None
    since = min(one.called_at_most_ktime_ns(number) for one in waiting)
    return Standing(
        state=RankState.RANK_MISSING,
        number=number,
        waiting=waiting,
        lacking=lacking,
        since_ktime_ns=since,
        signatures=asked_by(waiting, number),
    )


def asked_by(members: Sequence[Member], number: int) -> tuple[tuple[Signature, int], ...]:
    """Return what ranks asked for in a collective, and how many of them, the most first."""
    calls = (one.call_of(number) for one in sorted(members, key=lambda one: one.last.rank))
    counts = Counter(call.signature for call in calls if call is not None)
    return tuple(counts.most_common())
