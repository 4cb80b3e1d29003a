"""
What holds the memory of a device, and its layout.

The layers hold the same memory: a framework's allocator takes segments from the runtime, which
takes them from the driver. So figures of two layers are never added.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.memory_snapshot import SHARED, Block, BlockState, Segment
from otel_gpu.wire.probe_table import ApiLayer

BEFORE = Frame(FrameType.NONE, "(older than the recording)")
"""The place of memory from before the recording."""
NOWHERE = Frame(FrameType.NONE, "(without a stack)")
"""The place of memory without a stack, as in a backward pass."""
BEFORE_ATTACH = Frame(FrameType.NONE, "(before the attach)")
"""The place of memory from before the capture that is still in use."""
NOT_SAMPLED = Frame(FrameType.NONE, "(not sampled)")
"""The place of blocks without a sampled stack, or whose stack was rate-limited or lost."""

_MIB = 1 << 20
# The pages of small and of large blocks that PyTorch maps in a segment that can grow.
_SMALL_PAGE_BYTES, _LARGE_PAGE_BYTES = 2 * _MIB, 20 * _MIB


class Layer(StrEnum):
    """The source of figures on held memory."""

    DRIVER = ApiLayer.DRIVER
    RUNTIME = ApiLayer.RUNTIME
    FRAMEWORK = "framework"


class Split(NamedTuple):
    """
    What reserved memory is used for, in bytes.

    ``reserved = requested + rounding + pending + stuck + pooled + whole_free``. ``whole_free`` can
    be released to the device. ``stuck`` is free between blocks in use. ``pooled`` is free as a
    whole in private pools, which release nothing while anything uses them. If requested sizes are
    not known, ``requested`` and ``rounding`` are None, and ``allocated`` is their sum.
    """

    reserved: int
    allocated: int
    requested: int | None
    rounding: int | None
    pending: int
    stuck: int
    pooled: int
    whole_free: int
    largest_hole: int

    @property
    def free(self) -> int:
        """All memory that is reserved and not in use."""
        return self.stuck + self.pooled + self.whole_free


class Hole(NamedTuple):
    """
    Free memory between blocks; ``segment`` is its number, and ``whole_bytes`` can be released.
    """

    segment: int
    address: int
    size_bytes: int
    whole_bytes: int


class LineHolding(NamedTuple):
    """What one line of a program holds: ``size_bytes`` in ``blocks``."""

    place: Frame
    size_bytes: int
    blocks: int


class Kept(NamedTuple):
    """
    Free memory of an allocator that is kept for other requests, or that is not released.

    Attributes:
        pool: Its pool; ``SHARED`` is the one of all.
        stream: Its stream.
        is_small: Whether it serves small requests only.
        free_bytes: How much is free.
        whole_bytes: Part of it that no block is beside, so that the device could have it back.
        largest_hole_bytes: The largest hole.
        holders: The lines that allocated there, the most first.
    """

    pool: tuple[int, int]
    stream: int
    is_small: bool
    free_bytes: int
    whole_bytes: int
    largest_hole_bytes: int
    holders: tuple[LineHolding, ...]


def split_of(segments: Iterable[Segment]) -> Split:
    """Return what the memory of segments is used for."""
    reserved = allocated = requested = pending = free = whole = pooled = largest = 0
    is_known = True
    for segment in segments:
        reserved += segment.size_bytes
        used = 0
        for block in segment.blocks:
            if block.state is BlockState.FREE:
                continue
            used += block.size_bytes
            if block.state is BlockState.PENDING:
                pending += block.size_bytes
                continue
            allocated += block.size_bytes
            is_known = is_known and block.requested_bytes is not None
            requested += block.requested_bytes or 0
        free += segment.size_bytes - used
        for hole in holes_of(segment):
            whole += hole.whole_bytes
            pooled += hole.whole_bytes if segment.pool != SHARED else 0
            largest = max(largest, hole.size_bytes)
    return Split(
        reserved=reserved,
        allocated=allocated,
        requested=requested if is_known else None,
        rounding=allocated - requested if is_known else None,
        pending=pending,
        stuck=free - whole,
        pooled=pooled,
        whole_free=whole - pooled,
        largest_hole=largest,
    )


def holes_of(segment: Segment, number: int = 0) -> Iterator[Hole]:
    """Yield the holes of a segment: each range between blocks in use."""
    used = [block for block in segment.blocks if block.state is not BlockState.FREE]
    is_unused = not used
    for address, size_bytes in _between(segment, used):
        whole = size_bytes if is_unused else _pages(segment, address, size_bytes)
        yield Hole(segment=number, address=address, size_bytes=size_bytes, whole_bytes=whole)


def _between(segment: Segment, used: Iterable[Block]) -> Iterator[tuple[int, int]]:
    at, end = segment.address, segment.address + segment.size_bytes
    for block in sorted(used, key=lambda block: block.address):
        if block.address > at:
            yield at, min(block.address, end) - at
        # A block outside its segment, or inside another block, does not count.
        at = min(max(at, block.address + block.size_bytes), end)
    if end > at:
        yield at, end - at


def _pages(segment: Segment, address: int, size_bytes: int) -> int:
    # How much of a hole a segment that can grow could release.
    if not segment.is_expandable:
        return 0
    page = _SMALL_PAGE_BYTES if segment.is_small else _LARGE_PAGE_BYTES
    start = address - segment.address
    first, end = -(-start // page), (start + size_bytes) // page
    return max(0, end - first) * page


def rank(
    sizes: Iterable[tuple[int, int]], place_of: Callable[[int], Frame]
) -> tuple[LineHolding, ...]:
    """
    Return the lines that hold memory, the most first.

    Args:
        sizes: The stack and size of each block.
        place_of: Returns the code location of a stack.
    """
    totals: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for stack, size_bytes in sizes:
        totals[stack] += size_bytes
        counts[stack] += 1
    places: dict[Frame, list[int]] = {}
    for stack, size_bytes in totals.items():
        held = places.setdefault(place_of(stack), [0, 0])
        held[0] += size_bytes
        held[1] += counts[stack]
    holders = (LineHolding(place, *held) for place, held in places.items())
    return tuple(sorted(holders, key=lambda one: (-one.size_bytes, one.place)))
