"""NCCL's communicators in the kernel side's maps: the progress of each rank's collectives."""

from collections.abc import Iterator
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.objects import BpfObject

_COMMUNICATOR: Final = slice(0, wire.COMMUNICATOR.size)
_MADE_AT: Final = wire.COMMUNICATOR.offset_of("made_ktime_ns")
_MADE: Final = slice(_MADE_AT, _MADE_AT + 8)
_NOT_MADE: Final = bytes(8)
_FLAGS: Final = wire.COMMUNICATOR.fields.index("flags")
_ENDED: Final = wire.COMMUNICATOR_ABORTED | wire.COMMUNICATOR_DESTROYED
# Maps whose entries are allocated on demand.
_GROWING: Final = ("communicators", "communicator_handles", "process_communicators")


def let_communicators_grow(bpf: BpfObject) -> None:
    """Allocate entries of communicators on demand; before ``load``."""
    for name in _GROWING:
        bpf.let_grow(name)


class CommunicatorMaps:
    """
    The kernel side's maps of communicators.

    Attributes:
        maps: Maps in which a program can leave entries. Keys begin with its start, an address and its pid.
    """

    def __init__(self, bpf: BpfObject) -> None:
        self._communicators = bpf.map("communicators")
        self.maps: tuple[BpfMap, ...] = tuple(
            map(
                bpf.map,
                ("communicator_handles", "process_communicators", "stream_works", "event_works"),
            )
        )

    def read(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each communicator as ``COMMUNICATOR``."""
        for key, value in self._communicators.entries():
            if value[_MADE] != _NOT_MADE:
                yield key, value[_COMMUNICATOR]

    def forget(self, key: bytes) -> None:
        """Delete a communicator that was destroyed, or whose program ended."""
        self._communicators.delete(key)


def is_ended(communicator: bytes) -> bool:
    """Whether the program has destroyed or aborted a communicator."""
    return bool(wire.COMMUNICATOR.unpack(communicator)[_FLAGS] & _ENDED)
