"""
Communicators of NCCL: how far each rank is with its collectives.

The n-th collective of each rank of a communicator is the same operation, so numbers can be
compared between hosts, unlike clocks. The other ranks wait for the rank that queued the fewest.
Ranks whose n-th calls differ in operation, size or type never finish them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.wire.json_body import INT64_MAX

OPERATIONS = {
    wire.COLLECTIVE_ALL_REDUCE: "all_reduce",
    wire.COLLECTIVE_BROADCAST: "broadcast",
    wire.COLLECTIVE_REDUCE: "reduce",
    wire.COLLECTIVE_ALL_GATHER: "all_gather",
    wire.COLLECTIVE_REDUCE_SCATTER: "reduce_scatter",
    wire.COLLECTIVE_ALL_TO_ALL: "all_to_all",
    wire.COLLECTIVE_GATHER: "gather",
    wire.COLLECTIVE_SCATTER: "scatter",
    wire.COLLECTIVE_SEND: "send",
    wire.COLLECTIVE_RECEIVE: "receive",
}
"""Names by ``enum collective_operation``."""

DATATYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"),
)
"""Names by ``ncclDataType_t``."""
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
"""Names by ``ncclRedOp_t``; larger values are defined by the program."""
NO_REDUCTION = 255

MAX_SPLITS = 1_024
"""Ranks up to which a call keeps the amount that it exchanges with each."""

_CALLS = wire.COMMUNICATOR.fields.index("calls_0")
_BYTES = wire.COMMUNICATOR.fields.index("bytes_0")


class CommunicatorKey(NamedTuple):
    """
    One communicator of one program.

    ``generation`` distinguishes communicators that had the same ``handle`` one after the other.
    """

    program_ktime_ns: int
    handle: int
    pid: int
    generation: int


class Signature(NamedTuple):
    """
    The arguments that must be equal on all ranks; ``root`` -1 and ``reduction`` 255: none.

    ``datatype`` is an ``ncclDataType_t``.
    """

    operation: int
    elements: int
    datatype: int
    reduction: int
    root: int


class QueuedCollective(NamedTuple):
    """
    One collective that a rank queued.

    Attributes:
        number: The same on all ranks.
        called_ktime_ns: When it was called.
        signature: The arguments that must be equal on all ranks.
        stack: The id of the calling user stack; 0: unknown.
        sends: Elements for each rank, in the order of the group, if ranks exchange different
            amounts. A single number is their sum. Empty: unknown, or all amounts are equal.
        receives: Elements expected from each rank, in the same form.
    """

    number: int
    called_ktime_ns: int
    signature: Signature
    stack: int = 0
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


class Communicator(NamedTuple):
    """
    One rank of a communicator; counts are cumulative.

    Attributes:
        id: The same on all ranks; 0: unknown.
        called: The number of the last queued collective.
        completed: The number of the last collective that the program knows to be done.
        completed_ktime_ns: When the program learned that; 0: it never asked.
        completions: The number of collectives in ``waited_ns``.
        waited_ns: Time from calls until the program learned that they are done.
        captured: Calls that became part of a graph, whose replays are not seen.
        failed: Calls that failed.
        made_ktime_ns: When the communicator was made, or first seen.
        rank: Of this process; -1: unknown.
        rank_count: 0: unknown.
        device: The number that the process uses; -1: unknown.
        async_error: The last ``ncclResult_t`` that NCCL returned for it; 0: none.
        flags: Of ``enum communicator_flag``.
        operations: Calls and bytes by ``enum collective_operation``, of those that were called.
        recent: The last collectives, in order.
        name: The program's name for it; empty: unknown.
    """

    id: int
    called: int
    completed: int
    completed_ktime_ns: int
    completions: int
    waited_ns: int
    captured: int
    failed: int
    made_ktime_ns: int
    rank: int
    rank_count: int
    device: int
    async_error: int
    flags: int
    operations: dict[int, tuple[int, int]]
    recent: tuple[QueuedCollective, ...]
    name: str = ""

    @property
    def pending(self) -> int:
        """Queued collectives that the program does not know to be done."""
        return max(self.called - self.completed, 0)


class Communicators(NamedTuple):
    """Readings of communicators at one time."""

    ktime_ns: int
    readings: tuple[tuple[CommunicatorKey, Communicator], ...]


def name_of(names: Sequence[str], number: int) -> str:
    """Return NCCL's name of a type or reduction, or its number if it has none."""
    return names[number] if number < len(names) else str(number)


def asked_by(grid: Sequence[int], block: Sequence[int]) -> tuple[int, Signature] | None:
    """
    Return the number and signature of a call of NCCL, from the launch shape of its record.

    The number is 0 if the call was captured, or is a send or receive. None: not a collective.
    """
    low, high, packed = grid
    root, number_low, number_high = block
    operation = packed >> 16
    if not operation:
        return None
    root -= (root >> 31) << 32
    elements = min(low | high << 32, INT64_MAX)
    signature = Signature(operation, elements, packed & 0xFF, packed >> 8 & 0xFF, root)
    return number_low | number_high << 32, signature


def communicator_of(values: tuple[Any, ...]) -> Communicator:
    """Make a communicator of a ``struct communicator``; counts are cut to 63 bits."""
    identity, *numbers, recent = values
    counts = [min(number, INT64_MAX) for number in numbers]
    called, scalars = counts[0], counts[: _CALLS - 1]
    operations = enumerate(zip(counts[_CALLS - 1 : _BYTES - 1], counts[_BYTES - 1 :], strict=True))
    known = {operation: made for operation, made in operations if made[0]}
    latest = tuple(sorted(_recent(recent, called)))
    return Communicator._make((identity, *scalars, known, latest, ""))


def _recent(recent: bytes, called: int) -> Iterator[QueuedCollective]:
    rows = wire.COLLECTIVE.iter_unpack(recent)
    for number, elements, ktime_ns, root, operation, datatype, reduction in rows:
        # The kernel writes a row before it counts the call.
        if 0 < number <= called:
            asked = operation, min(elements, INT64_MAX), datatype, reduction, root
            yield QueuedCollective(number, ktime_ns, Signature._make(asked))
