"""The names of collectives: number, communicator, and what was asked for."""

from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.state.nccl.rank_calls import Member
from otel_gpu.state.nccl.rank_comparison import RankGroup
from otel_gpu.state.nccl.rank_positions import RankState, Standing
from otel_gpu.wire.communicators import (
    DATATYPES,
    NO_REDUCTION,
    OPERATIONS,
    REDUCTIONS,
    QueuedCollective,
    Signature,
)

_MOST_RANKS = 8
_MOST_PAIRS = 4
_STUCK = "the device or the network hangs"


def operation_name(operation: int) -> str:
    """Return the name of an operation, also of an unknown one."""
    return OPERATIONS.get(operation, f"operation {operation}")


def signature_text(signature: Signature) -> str:
    """Return what a call asked for, as ``all_reduce of 1,024 float32 (sum)``."""
    datatype, reduction = signature.datatype, signature.reduction
    known = datatype < len(DATATYPES)
    what = f"{signature.elements:,} {DATATYPES[datatype] if known else f'of type {datatype}'}"
    if reduction != NO_REDUCTION:
        own = f"reduction {reduction}"
        what += f" ({REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else own})"
    root = f", root {signature.root}" if signature.root >= 0 else ""
    return f"{operation_name(signature.operation)} of {what}{root}"


def communicator_name(group: RankGroup) -> str:
    """Return the name of a communicator, or its id."""
    if name := group.name:
        return f"communicator {name}"
    return f"communicator {group.id:016x}" if group.id else "a communicator"


def rank_name(group: RankGroup, member: Member) -> str:
    """Return the name of a rank: its number, or its process if the number is not known."""
    rank = group.rank_of(member)
    return f"rank {rank}" if rank >= 0 else f"process {member.process.pid}"


def ranks_text(group: RankGroup, members: Iterable[Member]) -> str:
    """Return several ranks, as ``rank 0, rank 1``; many as ranges, as ``ranks 0-5, 8``."""
    members = tuple(members)
    numbers = sorted(map(group.rank_of, members))
    if len(members) <= _MOST_RANKS or numbers[0] < 0:
        return ", ".join(rank_name(group, one) for one in members)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "ranks " + ", ".join(
        f"{first}-{last}" if first < last else f"{first}" for first, last in ranges
    )


def late_name(identity: int, rank: int) -> str:
    """Return the name of waits for a rank that repeatedly came last."""
    return f"communicator {identity:016x}, {f'rank {rank}' if rank >= 0 else 'one rank'} last"


def standing_text(group: RankGroup, standing: Standing) -> str:
    """Return which ranks wait for which in which collective; empty: none do, or it is not known."""
    asked = standing.signatures
    operation = operation_name(asked[0][0].operation) if asked else "collective"
    which = f"{operation} {standing.number:,} of {communicator_name(group)}"
    match standing.state:
        case RankState.RANK_MISSING:
            return f"{which}: not called by {ranks_text(group, standing.lacking)}"
        case RankState.RANKS_DISAGREE:
            return f"{which}: {_disagreement(group, standing)}"
        case RankState.QUEUED:
            return f"{which}: {_queued(group, standing)}"
        case _:
            return ""


def absence_text(group: RankGroup, standing: Standing) -> str:
    """Return how many ranks wait for a missing one, and whether it can still come; else empty."""
    if standing.state != RankState.RANK_MISSING:
        return ""
    gone = [one for one in standing.lacking if not one.is_in]
    left = f"; {ranks_text(group, gone)} left it, or ended" if gone else ""
    return f"; {len(standing.waiting):,} on this host called it and wait{left}"


def _disagreement(group: RankGroup, standing: Standing) -> str:
    if standing.unmatched:
        return _mismatch(group, standing)
    parts = []
    for signature, _ in standing.signatures:
        calls = ((one, one.call_of(standing.number)) for one in group.ranks)
        ranks = [one for one, call in calls if call is not None and call.signature == signature]
        parts.append(f"{ranks_text(group, ranks)} asked for {signature_text(signature)}")
    return ", ".join(parts)


def _mismatch(group: RankGroup, standing: Standing) -> str:
    parts = []
    for sender, receiver, sent, expected in standing.unmatched[:_MOST_PAIRS]:
        if sender is None or receiver is None:
            return f"the ranks send {sent:,} elements in all, and expect {expected:,}"
        names = rank_name(group, sender), rank_name(group, receiver)
        parts.append(
            f"{names[0]} sends {sent:,} elements to {names[1]}, which expects {expected:,}"
        )
    more = len(standing.unmatched) - _MOST_PAIRS
    return "; ".join(parts) + (f"; {more:,} more pairs of ranks disagree" if more > 0 else "")


def _queued(group: RankGroup, standing: Standing) -> str:
    count = len(group.members)
    if group.absent:
        return (
            f"called by {count:,} of {group.rank_count:,} ranks, the others are not on this host or not "
            f"watched: one of them may be missing, or {_STUCK}"
        )
    all_of = f"all {count:,} ranks" if count > 1 else "its one rank"
    # If ranks exchange different amounts, these have to match, and not all calls contain them.
    asked = standing.signatures
    is_exchange = count > 1 and asked and asked[0][0].operation == wire.COLLECTIVE_ALL_TO_ALL
    calls = (one.call_of(standing.number) for one in standing.waiting)
    if is_exchange and not all(call and _is_compared(call, count) for call in calls):
        return (
            f"all {count:,} ranks called it, and none knows it to be done: {_STUCK}, or what they send each "
            "other is not what they expect, which is not known"
        )
    return f"{all_of} called it, and none knows it to be done: {_STUCK}"


def _is_compared(call: QueuedCollective, count: int) -> bool:
    # Whether a call contained what it sends to each rank, so that a mismatch would have been
    # reported.
    return len(call.sends) == len(call.receives) == count or bool(call.signature.elements)
