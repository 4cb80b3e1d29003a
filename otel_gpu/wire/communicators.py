"""
Communicators of NCCL: how far each rank is with its collectives.

The n-th collective that a rank queues on a communicator is part of the n-th one of all its ranks,
so numbers compare where clocks do not. A rank that queued fewer than the others is the one that
they wait for; ranks whose n-th call differs in what they ask for will never finish it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from otel_gpu import wire

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
"""The names of what NCCL does, by ``enum collective_operation``."""

DATATYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"),
)
"""The names of ``ncclDataType_t``, by its values."""
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
"""The names of ``ncclRedOp_t``; larger ones are the program's own."""
NO_REDUCTION = 255

MAX_SPLITS = 1_024
"""Ranks of which a call keeps what it exchanges with each of them."""

_INT64_MAX = (1 << 63) - 1
_CALLS = wire.COMMUNICATOR.fields.index("calls_0")
_BYTES = wire.COMMUNICATOR.fields.index("bytes_0")


class CommunicatorKey(NamedTuple):
    """
    One communicator in one process image.

    ``generation`` tells those apart that had the same ``handle`` one after the other.
    """

    program_ktime_ns: int
    handle: int
    pid: int
    generation: int


class Signature(NamedTuple):
    """
    What all ranks have to ask for alike; ``root`` -1 and ``reduction`` 255: the call has none.

    ``elements`` are of ``datatype``, which is an ``ncclDataType_t``.
    """

    operation: int
    elements: int
    datatype: int
    reduction: int
    root: int


class QueuedCollective(NamedTuple):
    """
    The call that queued the collective of a number, and when that was.

    Attributes:
        number: It is the same on all ranks.
        called_ktime_ns: When it was called.
        signature: What all ranks have to ask for alike.
        stack: The id of the user stack that made the call; 0: not known.
        sends: Of an operation in which ranks exchange different amounts, the elements for each rank, in the
            order of the group. One number is their sum, and how it is split is not known. Empty: not
            known, or all exchange the same.
        receives: The same of what it expects from each rank.
    """

    number: int
    called_ktime_ns: int
    signature: Signature
    stack: int = 0
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


class Communicator(NamedTuple):
    """
    One rank of a communicator: cumulative.

    Attributes:
        id: The same on all ranks; 0: not known.
        called: The number of the last collective that was queued.
        completed: Up to which number the program learned that they are done.
        completed_ktime_ns: When it learned that; 0: it never asked.
        completions: How many ``waited_ns`` is of.
        waited_ns: From calls to when the program learned that they are done.
        captured: Calls that became part of a graph, whose replays are not seen.
        failed: Calls that failed.
        made_ktime_ns: When the communicator was made, or first seen.
        rank: Of this process; -1: not known.
        rank_count: 0: not known.
        device: As the process sees it; -1: not known.
        async_error: The ``ncclResult_t`` that the program was last told; 0: none.
        flags: Of ``enum communicator_flag``.
        operations: Calls and bytes by ``enum collective_operation``; none that were never called.
        recent: The last collectives, in order.
        name: What the program calls it; empty: not known.
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
        """Return how many collectives are queued that the program does not know to be done."""
        return max(self.called - self.completed, 0)


class Communicators(NamedTuple):
    """What was read of communicators at one moment."""

    ktime_ns: int
    readings: tuple[tuple[CommunicatorKey, Communicator], ...]


def name_of(names: Sequence[str], number: int) -> str:
    """Return what NCCL calls a type or a reduction; of those that it has no name for the number."""
    return names[number] if number < len(names) else str(number)


def asked_by(grid: Sequence[int], block: Sequence[int]) -> tuple[int, Signature] | None:
    """
    Return the number and signature of a call of NCCL, of what its record has as shape.

    The number is 0 where the call was captured, or is a send or receive. None: it is no collective.
    """
    low, high, packed = grid
    root, number_low, number_high = block
    operation = packed >> 16
    if not operation:
        return None
    root -= (root >> 31) << 32
    elements = min(low | high << 32, _INT64_MAX)
    signature = Signature(operation, elements, packed & 0xFF, packed >> 8 & 0xFF, root)
    return number_low | number_high << 32, signature


def communicator_of(values: tuple[Any, ...]) -> Communicator:
    """Return what the values of a ``struct communicator`` say; counts are cut to 63 bits."""
    identity, *numbers, recent = values
    counts = [min(number, _INT64_MAX) for number in numbers]
    called, scalars = counts[0], counts[: _CALLS - 1]
    operations = enumerate(zip(counts[_CALLS - 1 : _BYTES - 1], counts[_BYTES - 1 :], strict=True))
    known = {operation: made for operation, made in operations if made[0]}
    latest = tuple(sorted(_recent(recent, called)))
    return Communicator._make((identity, *scalars, known, latest, ""))


def _recent(recent: bytes, called: int) -> Iterator[QueuedCollective]:
    rows = wire.COLLECTIVE.iter_unpack(recent)
    for number, elements, ktime_ns, root, operation, datatype, reduction in rows:
        # One that is being written is not yet among the called.
        if 0 < number <= called:
            asked = operation, min(elements, _INT64_MAX), datatype, reduction, root
            yield QueuedCollective(number, ktime_ns, Signature._make(asked))
