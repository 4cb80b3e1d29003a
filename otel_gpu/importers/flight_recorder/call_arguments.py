"""Arguments of the call of an entry of a Flight Recorder, in NCCL's terms."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.wire.communicators import MAX_SPLITS, Signature

_NO_ROOT: Final = -1
_NO_REDUCTION: Final = 255
_NO_DATATYPE: Final = 255
_MOST: Final = (1 << 62) - 1
_MAX_TENSORS: Final = 4_096
_MAX_DIMENSIONS: Final = 64

# The first that a name begins with.
_OPERATIONS: Final = (
    ("allreduce", wire.COLLECTIVE_ALL_REDUCE),
    ("barrier", wire.COLLECTIVE_ALL_REDUCE),
    ("allgather", wire.COLLECTIVE_ALL_GATHER),
    ("alltoall", wire.COLLECTIVE_ALL_TO_ALL),
    ("broadcast", wire.COLLECTIVE_BROADCAST),
    ("reducescatter", wire.COLLECTIVE_REDUCE_SCATTER),
    ("reduce", wire.COLLECTIVE_REDUCE),
    ("gather", wire.COLLECTIVE_GATHER),
    ("scatter", wire.COLLECTIVE_SCATTER),
    ("send", wire.COLLECTIVE_SEND),
    ("recv", wire.COLLECTIVE_RECEIVE),
)
# NCCL counts a rank's output in these, and its input in all others.
_COUNTS_OUTPUT: Final = frozenset(
    {wire.COLLECTIVE_REDUCE_SCATTER, wire.COLLECTIVE_SCATTER, wire.COLLECTIVE_RECEIVE}
)
_POINT_TO_POINT: Final = frozenset({wire.COLLECTIVE_SEND, wire.COLLECTIVE_RECEIVE})
# NCCL's number and size in bytes, by PyTorch's name.
_DATATYPES: Final[Mapping[str, tuple[int, int]]] = {
    "Char": (0, 1),
    "Byte": (1, 1),
    "Bool": (1, 1),
    "Int": (2, 4),
    "Long": (4, 8),
    "Half": (6, 2),
    "Float": (7, 4),
    "Double": (8, 8),
    "BFloat16": (9, 2),
    "Float8_e4m3fn": (10, 1),
    "Float8_e5m2": (11, 1),
}
_PEERS = re.compile(r"(?:send (\d{1,9})->\d{1,9}|recv (\d{1,9})<-\d{1,9})\Z")


class CollectiveRequest(NamedTuple):
    """
    Arguments of one call.

    Attributes:
        signature: Arguments that must be equal on all ranks.
        size_bytes: Of its input or output.
        group_rank: The rank of the caller, in sends and receives; -1: unknown.
        sends: Elements per rank, see ``QueuedCollective``.
        receives: Elements per rank, see ``QueuedCollective``.
        is_whole: Whether it stands for all calls of a group.
    """

    signature: Signature
    size_bytes: int
    group_rank: int
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    is_whole: bool = False

    @property
    def is_point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return self.signature.operation in _POINT_TO_POINT


def request_of(entry: Mapping[str, Any]) -> CollectiveRequest:
    """
    Return the arguments of an entry's call.

    Raises:
        ValueError: The name is not a text, or sizes are not numbers.
    """
    name = entry.get("profiling_name")
    if type(name) is not str:
        raise ValueError("name")
    _, _, name = name[:256].rpartition(":")
    plain = name.replace("_", "").lower()
    operation = next((number for start, number in _OPERATIONS if plain.startswith(start)), 0)
    side = "output" if operation in _COUNTS_OUTPUT else "input"
    elements = _elements(entry.get(f"{side}_sizes"))
    datatype, width = _DATATYPES.get(_first(entry.get(f"{side}_dtypes")), (_NO_DATATYPE, 0))
    peers = _PEERS.search(name)
    # Ranks can exchange different amounts, so these do not have to be equal.
    is_uneven = operation == wire.COLLECTIVE_ALL_TO_ALL or plain.endswith(("gatherv", "scatterv"))
    is_exchange = operation == wire.COLLECTIVE_ALL_TO_ALL
    return CollectiveRequest(
        signature=Signature(
            operation=operation,
            elements=0 if is_uneven else elements,
            datatype=datatype,
            reduction=_NO_REDUCTION,
            root=_NO_ROOT,
        ),
        size_bytes=min(elements * width, _MOST),
        group_rank=int(peers[1] or peers[2]) if peers else -1,
        sends=_exchanged(entry, "input") if is_exchange else (),
        receives=_exchanged(entry, "output") if is_exchange else (),
        is_whole=plain.endswith("coalesced"),
    )


def _exchanged(entry: Mapping[str, Any], side: str) -> tuple[int, ...]:
    # The elements that a rank exchanges with each other one, or their sum.
    sizes = entry.get(f"{side}_sizes")
    if type(sizes) is not list or not sizes:
        return ()
    splits = entry.get(f"{side}_split_sizes")
    if type(splits) is list and splits:
        if not all(type(one) is int and 0 <= one <= _MOST for one in splits):
            raise ValueError("splits")
    else:
        # A list of tensors has one for each rank.
        splits = list(map(_size, sizes))
    return tuple(splits) if len(splits) <= MAX_SPLITS else (min(sum(splits), _MOST),)


def _elements(sizes: object) -> int:
    if sizes is None:
        return 0
    if type(sizes) is not list or len(sizes) > _MAX_TENSORS:
        raise ValueError("sizes")
    return min(sum(map(_size, sizes)), _MOST)


def _size(dimensions: object) -> int:
    # Each is bounded before they are multiplied: a product of many would be a number of megabytes.
    if not isinstance(dimensions, list | tuple) or len(dimensions) > _MAX_DIMENSIONS:
        raise ValueError("sizes")
    if not all(type(one) is int and 0 <= one <= _MOST for one in dimensions):
        raise ValueError("sizes")
    return min(prod(dimensions), _MOST)


def _first(names: object) -> str:
    first = names[0] if isinstance(names, list | tuple) and names else ""
    return first if type(first) is str else ""
