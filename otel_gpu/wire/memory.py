"""
Device memory as an allocator sees it: segments that it took, blocks in them, what was done.

Sizes are bytes, addresses those of the device. An allocator takes segments from the layer below
it and hands out blocks of them, whose sizes it rounds up.
"""

from array import array
from enum import IntEnum, StrEnum
from typing import NamedTuple

from otel_gpu.wire.frames import Frame

NO_STACK = 0
"""The stack of what has none."""
SHARED = (0, 0)
"""The pool that everybody is served from who has none of its own."""


class BlockState(StrEnum):
    """What a block is used for; ``PENDING`` was given back, and waits for a stream."""

    ALLOCATED = "allocated"
    PENDING = "pending"
    FREE = "free"


class Action(IntEnum):
    """What was done to memory; ``FREE_REQUESTED`` blocks may be in use until ``FREE``."""

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

    ``address`` is -1 and ``requested_bytes`` None where they are not known. ``stack`` is where
    it was allocated.
    """

    address: int
    size_bytes: int
    requested_bytes: int | None
    state: BlockState
    stack: int = NO_STACK


class Segment(NamedTuple):
    """
    Memory that an allocator took, and has not given back.

    ``pool`` is ``SHARED`` for what everybody is served from. Of an expandable segment
    ``size_bytes`` is what is mapped. ``is_small``: it serves small requests only.
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
    What was done to the memory of one device, in order, as columns.

    ``sizes_bytes`` of allocations are what was asked for, before rounding. Of
    ``OUT_OF_MEMORY`` the address is what the device had free. ``unix_us`` is 0 where no time
    is known. ``pools`` has, by its number, what asked a pool of its own and got nothing.
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
        """Return a stretch of them."""
        part = Operations()
        for name in self._COLUMNS:
            setattr(part, name, getattr(self, name)[start:end])
        part.pools = {at - start: pool for at, pool in self.pools.items() if start <= at < end}
        return part


class Phase(NamedTuple):
    """A stretch of the program with a name, such as a step of an optimizer."""

    device: int
    name: str
    start_unix_us: int
    end_unix_us: int


class MemorySnapshot(NamedTuple):
    """
    What one allocator holds of one device, and what led there.

    Attributes:
        ktime_ns: When it was made; the clock of the capture.
        device: The number of the device.
        segments: All that it holds.
        operations: What was done before, as far as it was recorded.
        stacks: The stacks that are named by their number, innermost frame first.
        phases: In order.
        is_expandable: Whether its segments can grow; None where that is not known.
        capacity_bytes: The memory of the device; 0: not known.
    """

    ktime_ns: int
    device: int
    segments: tuple[Segment, ...]
    operations: Operations
    stacks: tuple[tuple[Frame, ...], ...]
    phases: tuple[Phase, ...] = ()
    is_expandable: bool | None = None
    capacity_bytes: int = 0
