"""Rows of communicators, made from the state of their ranks."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.explain.nccl.collective_names import (
    absence_text,
    operation_name,
    signature_text,
    standing_text,
)
from otel_gpu.report.nccl.types import CommunicatorReport, OperationCalls, Rank, RankState
from otel_gpu.report.wording.formats import count_of
from otel_gpu.state.code_lines import Where
from otel_gpu.state.memory.code_locations import find_allocating_place
from otel_gpu.state.nccl.communicators import CommunicatorStates
from otel_gpu.state.nccl.rank_calls import Member
from otel_gpu.state.nccl.rank_comparison import RankGroup

MAX_COMMUNICATORS: Final = 256
"""In a document: hanging ones, then those with most waiting time."""

_PER_RANK = frozenset(
    {wire.COLLECTIVE_ALL_GATHER, wire.COLLECTIVE_REDUCE_SCATTER, wire.COLLECTIVE_ALL_TO_ALL}
)
"""Operations whose calls state the size of one rank's part."""
_POINT_TO_POINT = frozenset({wire.COLLECTIVE_SEND, wire.COLLECTIVE_RECEIVE})
_BROADCASTS = frozenset({wire.COLLECTIVE_BROADCAST, wire.COLLECTIVE_REDUCE})
_HANGS = frozenset({RankState.RANK_MISSING, RankState.RANKS_DISAGREE})
_NS_PER_S = 1e9


class _Counted(NamedTuple):
    called: int
    completions: int
    waited_ns: int
    captured: int
    failed: int
    operations: dict[int, tuple[int, int]]


def communicator_rows(
    communicators: CommunicatorStates, end_unix_ns: int, chosen: Collection[int] = ()
) -> tuple[tuple[CommunicatorReport, ...], tuple[str, ...]]:
    """
    Return rows of communicators, and notes on what is not known.

    Args:
        communicators: The state of their ranks.
        end_unix_ns: The time of that state.
        chosen: Only communicators of these pids; empty: all.
    """
    groups = [
        group
        for group in communicators.groups()
        if not chosen or any(one.process.pid in chosen for one in group.members.values())
    ]
    now = communicators.ktime_of(end_unix_ns)
    rows = sorted((_row(group, now) for group in groups), key=_order)
    return tuple(rows[:MAX_COMMUNICATORS]), tuple(_notes(communicators, rows))


def _row(group: RankGroup, now: int) -> CommunicatorReport:
    standing, members = group.standing(), group.ranks
    algorithm, bus = _bandwidths(group)
    return CommunicatorReport(
        id=f"{group.id:016x}" if group.id else None,
        rank_count=group.rank_count or None,
        absent=group.absent if group.rank_count else None,
        state=standing.state,
        number=standing.number,
        waiting=standing_text(group, standing) + absence_text(group, standing),
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=bus,
        ranks=tuple(_rank(group, one, now) for one in members),
    )


def _rank(group: RankGroup, member: Member, now: int) -> Rank:
    last, counted = member.last, _counted(member)
    oldest = member.called_at_most_ktime_ns(last.completed + 1) if last.pending else 0
    asked = next((call.signature for call in reversed(member.calls)), None)
    # The place where it waits, if it does.
    stack = member.stack_of(last.completed + 1)
    place = find_allocating_place(stack.frames) if stack else None
    return Rank(
        process=member.process,
        rank=rank if (rank := group.rank_of(member)) >= 0 else None,
        device=last.device if last.device >= 0 else None,
        called=last.called,
        completed=last.completed,
        pending=last.pending,
        pending_ns=max(0, now - oldest) if oldest and now else None,
        calls=tuple(sorted(_operations(counted), key=lambda one: (-one.size_bytes, one.operation))),
        captured=counted.captured,
        failed=counted.failed,
        completions=counted.completions,
        in_flight_ns=counted.waited_ns,
        waited_for_others_ns=member.lag_ns,
        kept_others_waiting_ns=member.late_ns,
        last=signature_text(asked) if asked else "",
        async_error=last.async_error,
        is_late=not member.has_numbers,
        has_left=not member.is_in,
        stack=stack,
        where=Where(place.function, place.file, place.line) if place is not None else None,
    )


def _operations(counted: _Counted) -> Iterator[OperationCalls]:
    for number, (calls, size_bytes) in counted.operations.items():
        if calls:
            yield OperationCalls(operation_name(number), calls, size_bytes)


def _counted(member: Member) -> _Counted:
    last, before = member.last, member.before
    if before is None:
        return _Counted(
            called=last.called,
            completions=last.completions,
            waited_ns=last.waited_ns,
            captured=last.captured,
            failed=last.failed,
            operations=last.operations,
        )
    operations = {}
    for number, (calls, size_bytes) in last.operations.items():
        calls_before, bytes_before = before.operations.get(number, (0, 0))
        operations[number] = max(0, calls - calls_before), max(0, size_bytes - bytes_before)
    return _Counted(
        called=max(0, last.called - before.called),
        completions=max(0, last.completions - before.completions),
        waited_ns=max(0, last.waited_ns - before.waited_ns),
        captured=max(0, last.captured - before.captured),
        failed=max(0, last.failed - before.failed),
        operations=operations,
    )


def _bandwidths(group: RankGroup) -> tuple[float | None, float | None]:
    # Bytes per second, of the algorithm and of the bus, of the rank that waited least.
    counted = [_counted(one) for one in group.members.values()]
    done = [one for one in counted if one.completions and one.waited_ns and one.called]
    if not done or group.rank_count < 1:
        return None, None
    least = min(done, key=lambda one: one.waited_ns / one.completions)
    algorithm = bus = 0.0
    for operation, (_, size_bytes) in least.operations.items():
        if operation not in _POINT_TO_POINT:
            whole = size_bytes * (group.rank_count if operation in _PER_RANK else 1)
            algorithm += whole
            bus += whole * bus_factor(operation, group.rank_count)
    # Calls that are not known to be complete count in the bytes, but not in the time.
    share = min(1.0, least.completions / least.called)
    per_s = share / least.waited_ns * _NS_PER_S
    return algorithm * per_s, bus * per_s


def bus_factor(operation: int, rank_count: int) -> float:
    """Return how often the bytes of a collective cross each link, by the formula of nccl-tests."""
    if operation == wire.COLLECTIVE_ALL_REDUCE:
        return 2 * (rank_count - 1) / rank_count
    return 1.0 if operation in _BROADCASTS else (rank_count - 1) / rank_count


def _notes(communicators: CommunicatorStates, rows: Iterable[CommunicatorReport]) -> Iterator[str]:
    rows = tuple(rows)
    if not rows:
        return
    yield (
        "Collectives are in flight from the call until the program learned that they are done, which is "
        "no shorter than they took: bandwidths are lower bounds."
    )
    if captured := sum(one.captured for row in rows for one in row.ranks):
        yield (
            f"{count_of(captured, 'collective')} became part of graphs: how often those ran is not seen."
        )
    if late := sum(any(one.is_late for one in row.ranks) for row in rows):
        yield (
            f"{count_of(late, 'communicator')} had been made before the capture began: who is behind in "
            "them is not known."
        )
    if communicators.left_out:
        yield f"{count_of(communicators.left_out, 'rank')} of communicators found no room."
    if left := len(rows[MAX_COMMUNICATORS:]):
        yield f"{count_of(left, 'communicator')} not listed: those in which least time was spent."


def _order(row: CommunicatorReport) -> tuple[bool, bool, int, int, str]:
    waited_ns = sum(one.waited_for_others_ns for one in row.ranks)
    size_bytes = sum(made.size_bytes for one in row.ranks for made in one.calls)
    return (
        row.state not in _HANGS,
        row.state != RankState.QUEUED,
        -waited_ns,
        -size_bytes,
        row.id or "",
    )
