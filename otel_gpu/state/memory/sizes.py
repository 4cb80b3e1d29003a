"""Sizes of memory: of blocks, of repeated allocations, of segments and holes."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from otel_gpu.state.memory.history import Live, allocated_by_stack, holders_of
from otel_gpu.state.memory.snapshot import Hole, LineHolding, holes_of, split_of
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory_snapshot import BlockState, Operations, Segment

MAX_BLOCKS: Final = 10
MAX_FILES: Final = 15
MAX_SIZES: Final = 15
MAX_HOLES: Final = 20
MAX_NAMED: Final = 3
"""Functions of one file, and lines of one size."""

_MIB = 1 << 20
_LEAST_CHURN_BYTES = _MIB
_SEGMENT_BYTES = (1024 * _MIB, 256 * _MIB, 64 * _MIB, 2 * _MIB, 0)


class FileHolder(NamedTuple):
    """
    What the lines of a file hold; what has no file is a row by itself.

    Attributes:
        functions: Those with the most of it.
    """

    file: str
    functions: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMED)]
    size_bytes: int
    blocks: int


class ChurnSize(NamedTuple):
    """Allocated blocks of one size; ``holders`` are the lines that allocated most of them."""

    block_bytes: int
    blocks: int
    holders: tuple[LineHolding, ...]


class SegmentSize(NamedTuple):
    """
    Segments of at least ``least_bytes`` and less than ``below_bytes``.

    Attributes:
        below_bytes: None: no upper limit.
    """

    least_bytes: int
    below_bytes: int | None
    segments: int
    reserved_bytes: int
    live_bytes: int
    whole_free_bytes: int


class PinnedHole(NamedTuple):
    """A hole that cannot be released whole; ``holders`` have the blocks at its ends."""

    size_bytes: int
    stuck_bytes: int
    segment_bytes: int
    holders: tuple[LineHolding, ...]


def largest_blocks(
    live: dict[int, Live], place_of: Callable[[int], Frame]
) -> tuple[LineHolding, ...]:
    """Return the largest blocks in use, each with its place of allocation."""
    found = nlargest(MAX_BLOCKS, live.items(), key=lambda item: (item[1].size_bytes, -item[0]))
    return tuple(holder for item in found for holder in holders_of(dict([item]), place_of))


def files_of(holders: Iterable[LineHolding]) -> tuple[FileHolder, ...]:
    """
    Return the files that hold memory, the most first.

    Memory without a file has a row by function. The last row is the sum of the rest.

    Args:
        holders: By line, all of them, the most first.
    """
    found: dict[tuple[str, str], list[LineHolding]] = {}
    for one in holders:
        place = one.place
        found.setdefault((place.file, "" if place.file else place.function), []).append(one)
    rows = [_file_holder(file, members) for (file, _), members in found.items()]
    rows.sort(key=lambda one: (-one.size_bytes, one.file, one.functions))
    if rest := rows[MAX_FILES:]:
        size_bytes, blocks = sum(one.size_bytes for one in rest), sum(one.blocks for one in rest)
        rows[MAX_FILES:] = [
            FileHolder(
                file="",
                functions=(f"({len(rest):,} others)",),
                size_bytes=size_bytes,
                blocks=blocks,
            )
        ]
    return tuple(rows)


def _file_holder(file: str, members: Sequence[LineHolding]) -> FileHolder:
    functions: Counter[str] = Counter()
    for one in members:
        functions[one.place.function] += one.size_bytes
    named = tuple(name for name, _ in functions.most_common(MAX_NAMED))
    return FileHolder(
        file,
        functions=named,
        size_bytes=sum(one.size_bytes for one in members),
        blocks=sum(one.blocks for one in members),
    )


def churn_sizes(operations: Operations, place_of: Callable[[int], Frame]) -> tuple[ChurnSize, ...]:
    """Return the block sizes with the most allocated bytes, from 1 MiB on."""
    counts = Counter(
        size_bytes
        for _, size_bytes in allocated_by_stack(operations)
        if size_bytes >= _LEAST_CHURN_BYTES
    )
    largest = nlargest(MAX_SIZES, counts.items(), key=lambda item: (item[0] * item[1], item[0]))
    places: dict[int, Counter[Frame]] = {size_bytes: Counter() for size_bytes, _ in largest}
    stacks = Counter(pair for pair in allocated_by_stack(operations) if pair[1] in places)
    for (stack, size_bytes), blocks in stacks.items():
        places[size_bytes][place_of(stack)] += blocks
    return tuple(
        ChurnSize(size_bytes, blocks, tuple(_most(places[size_bytes], size_bytes)))
        for size_bytes, blocks in largest
    )


def _most(places: Counter[Frame], size_bytes: int) -> Iterator[LineHolding]:
    for place, blocks in sorted(places.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED]:
        yield LineHolding(place, blocks * size_bytes, blocks)


def segment_sizes(segments: Iterable[Segment]) -> Iterator[SegmentSize]:
    """Yield segments by their size, the largest first; empty classes are left out."""
    found: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        least = next((one for one in _SEGMENT_BYTES if segment.size_bytes >= one), 0)
        found[least].append(segment)
    below: int | None = None
    for least in _SEGMENT_BYTES:
        if members := found.get(least):
            split = split_of(members)
            yield SegmentSize(
                least_bytes=least,
                below_bytes=below,
                segments=len(members),
                reserved_bytes=split.reserved,
                live_bytes=split.allocated,
                whole_free_bytes=split.whole_free,
            )
        below = least


def pinned_holes(
    segments: Sequence[Segment], live: dict[int, Live], place_of: Callable[[int], Frame]
) -> tuple[PinnedHole, ...]:
    """
    Return the holes with the most stuck memory, with the lines of the blocks at their ends.

    Args:
        segments: As they are in the end.
        live: The blocks that are in use then, by address.
        place_of: Returns the code location of a stack.
    """
    holes = (hole for number, one in enumerate(segments) for hole in holes_of(one, number))
    found = nlargest(
        MAX_HOLES,
        (hole for hole in holes if _stuck(hole)),
        key=lambda hole: (_stuck(hole), hole.size_bytes, -hole.segment, -hole.address),
    )
    used = {hole.segment: _used(segments[hole.segment]) for hole in found}
    return tuple(
        PinnedHole(
            hole.size_bytes,
            _stuck(hole),
            segment_bytes=segments[hole.segment].size_bytes,
            holders=holders_of(
                {at: live[at] for at in _beside(hole, used[hole.segment]) if at in live}, place_of
            ),
        )
        for hole in found
    )


def _stuck(hole: Hole) -> int:
    return hole.size_bytes - hole.whole_bytes


def _used(segment: Segment) -> list[int]:
    return sorted(one.address for one in segment.blocks if one.state is not BlockState.FREE)


def _beside(hole: Hole, used: Sequence[int]) -> Sequence[int]:
    after = bisect_left(used, hole.address)
    return used[max(0, after - 1) : after + 1]
