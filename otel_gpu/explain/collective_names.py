"""What a collective is called that ranks wait in: its number, its communicator, and what was asked for."""

from collections.abc import Iterable

from otel_gpu.decode.communicators import (
    DATATYPES,
    NO_REDUCTION,
    OPERATIONS,
    REDUCTIONS,
    Signature,
)
from otel_gpu.ledger.members import Member
from otel_gpu.ledger.ranks import Group
from otel_gpu.ledger.standings import Standing, State

RESOURCE = "collective"
"""The kind of a resource that is a collective; its name is a text of ours."""
_MOST_RANKS = 8


def operation_name(operation: int) -> str:
    """Return what an operation is called, also one that is not known."""
    return OPERATIONS.get(operation, f"operation {operation}")


def signature_text(signature: Signature) -> str:
    """Return what a call asked for, as ``all_reduce of 1,024 float32 (sum)``."""
    datatype, reduction = signature.datatype, signature.reduction
    known = datatype < len(DATATYPES)
    said = f"{signature.elements:,} {DATATYPES[datatype] if known else f'of type {datatype}'}"
    if reduction != NO_REDUCTION:
        own = f"reduction {reduction}"
        said += f" ({REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else own})"
    root = f", root {signature.root}" if signature.root >= 0 else ""
    return f"{operation_name(signature.operation)} of {said}{root}"


def communicator_name(group: Group) -> str:
    """Return what a communicator is called."""
    if name := group.name:
        return f"communicator {name}"
    return f"communicator {group.id:016x}" if group.id else "a communicator"


def rank_name(member: Member) -> str:
    """Return what a rank is called: its number, or its process where that is not known."""
    rank = member.last.rank
    return f"rank {rank}" if rank >= 0 else f"process {member.process.pid}"


def ranks_text(members: Iterable[Member]) -> str:
    """Return several ranks, as ``rank 0, rank 1 and 6 more``."""
    names = [rank_name(one) for one in members]
    more = f" and {len(names) - _MOST_RANKS:,} more" if len(names) > _MOST_RANKS else ""
    return ", ".join(names[:_MOST_RANKS]) + more


def late_name(identity: int, rank: int) -> str:
    """Return what was waited for where a rank came last, time and again."""
    return f"communicator {identity:016x}, {f'rank {rank}' if rank >= 0 else 'one rank'} last"


def standing_text(group: Group, standing: Standing) -> str:
    """Return who waits for whom in which collective; empty: nobody does, as far as is known."""
    asked = standing.signatures
    operation = operation_name(asked[0][0].operation) if asked else "collective"
    which = f"{operation} {standing.number:,} of {communicator_name(group)}"
    match standing.state:
        case State.RANK_MISSING:
            return f"{which}: not called by {ranks_text(standing.lacking)}"
        case State.RANKS_DISAGREE:
            return f"{which}: {_disagreement(group, standing)}"
        case State.QUEUED:
            return f"{which}: {_queued(group)}"
        case _:
            return ""


def absence_text(standing: Standing) -> str:
    """Return how many wait for a rank that is missing, and whether it can still come; else empty."""
    if standing.state != State.RANK_MISSING:
        return ""
    gone = [one for one in standing.lacking if not one.is_in]
    left = f"; {ranks_text(gone)} left it, or ended" if gone else ""
    return f"; {len(standing.waiting):,} on this host called it and wait{left}"


def _disagreement(group: Group, standing: Standing) -> str:
    parts = []
    for signature, _ in standing.signatures:
        calls = ((one, one.call_of(standing.number)) for one in group.ranks)
        ranks = [one for one, call in calls if call is not None and call.signature == signature]
        parts.append(f"{ranks_text(ranks)} asked for {signature_text(signature)}")
    return ", ".join(parts)


def _queued(group: Group) -> str:
    count = len(group.members)
    if not group.absent:
        all_of = f"all {count:,} ranks" if count > 1 else "its one rank"
        return f"{all_of} called it, and none knows it to be done: the device or the network hangs"
    return (
        f"called by {count:,} of {group.rank_count:,} ranks, the others are not on this host or not "
        "watched: one of them may be missing, or the device or the network hangs"
    )
