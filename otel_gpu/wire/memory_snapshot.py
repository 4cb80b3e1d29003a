"""
Device memory of an allocator: segments, blocks in them, and operations on them.

Addresses are those of the device. An allocator takes segments from the layer below it and
allocates blocks in them, whose sizes it rounds up.
"""

from array import array
from enum import IntEnum, StrEnum
from typing import NamedTuple

from otel_gpu.wire.frames import Frame

NO_STACK = 0
"""The stack is unknown."""
SHARED = (0, 0)
"""The pool of streams that have no pool of their own."""


class BlockState(StrEnum):
    """State of a block; ``PENDING`` was freed by the program, and waits for a stream."""

    ALLOCATED = "allocated"
    PENDING = "pending"
    FREE = "free"


class Action(IntEnum):
    """Operation on memory; ``FREE_REQUESTED`` blocks can be in use until ``FREE``."""

    ALLOCATE = 0
    FREE_REQUESTED = 1
    FREE = 2
    SEGMENT_ALLOCATE = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OUT_OF_MEMORY = 7


class Block(NamedTuple):
    """
    A part of a segment.

    ``address`` -1 and ``requested_bytes`` None: unknown. ``stack`` is the stack that allocated it.
    """

    address: int
    size_bytes: int
    requested_bytes: int | None
    state: BlockState
    stack: int = NO_STACK


class Segment(NamedTuple):
    """
    Memory that an allocator holds.

    For an expandable segment ``size_bytes`` is the mapped part. ``is_small``: it serves small
    requests only.
    """

    device: int
    address: int
    size_bytes: int
    stream: int
    pool: tuple[int, int]
    is_small: bool
    is_expandable: bool
    blocks: tuple[Block, ...]
    stack: int = NO_STACK


class Operations:
    """
    Operations on the memory of one device, in order, as columns.

    ``sizes_bytes`` of allocations are the requested sizes, before rounding. The address of
    ``OUT_OF_MEMORY`` is the free memory of the device in bytes. ``unix_us`` 0: unknown.
    ``pools`` has the pools of failed requests, by the number of the operation.
    """

    _COLUMNS = ("actions", "addresses", "sizes_bytes", "stacks", "streams", "unix_us")
    __slots__ = (*_COLUMNS, "pools")

    def __init__(self) -> None:
        self.actions = array("b")
        self.addresses = array("q")
        self.sizes_bytes = array("q")
        self.streams = array("q")
        self.unix_us = array("q")
        self.stacks = array("I")
        self.pools: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.actions)

    def part(self, start: int, end: int) -> "Operations":
        """Return the operations from ``start`` up to ``end``."""
        part = Operations()
        for name in self._COLUMNS:
            setattr(part, name, getattr(self, name)[start:end])
        part.pools = {at - start: pool for at, pool in self.pools.items() if start <= at < end}
        return part


class Phase(NamedTuple):
    """A named phase of the program, such as a step of an optimizer."""

    device: int
    name: str
    start_unix_us: int
    end_unix_us: int


class MemorySnapshot(NamedTuple):
    """
    What one allocator holds of one device, and the operations before.

    Attributes:
        ktime_ns: Time of the snapshot, of the clock of the capture.
        device: The number of the device.
        segments: All segments of the allocator.
        operations: Recorded operations before the snapshot.
        stacks: By number, innermost frame first.
        phases: In order.
        is_expandable: Whether segments can grow; None: unknown.
        capacity_bytes: Memory of the device; 0: unknown.
    """

    ktime_ns: int
    device: int
    segments: tuple[Segment, ...]
    operations: Operations
    stacks: tuple[tuple[Frame, ...], ...]
    phases: tuple[Phase, ...] = ()
    is_expandable: bool | None = None
    capacity_bytes: int = 0
