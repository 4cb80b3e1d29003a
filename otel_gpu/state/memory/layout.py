"""The layout of segments before an operation: later operations are undone."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from otel_gpu.state.memory.history import Live
from otel_gpu.wire.memory_snapshot import (
    SHARED,
    Action,
    Block,
    BlockState,
    MemorySnapshot,
    Operations,
    Segment,
)

_SMALL_SEGMENT_BYTES = 2 << 20
_BLOCK_BYTES = 512
# Moved addresses while segments are undone, each counted per 64; no real program has more.
_MAX_MOVED, _MOVED_AT_ONCE = 5_000_000, 64


def segments_before(
    snapshot: MemorySnapshot, at: int, live: dict[int, Live]
) -> tuple[Segment, ...]:
    """Return the segments before an operation, with the blocks that were in use then."""
    later = snapshot.operations.part(at + 1, len(snapshot.operations))
    if not len(later):
        return snapshot.segments
    known = _Layout(snapshot.segments).before(later)
    starts = sorted(known)
    blocks: dict[int, list[Block]] = {start: [] for start in starts}
    for address, one in live.items():
        number = bisect_right(starts, address) - 1
        if address < 0 or number < 0:
            continue
        size_bytes = -(-one.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        block = Block(address, size_bytes, None, BlockState.ALLOCATED, one.stack)
        if address < starts[number] + known[starts[number]].size_bytes:
            blocks[starts[number]].append(block)
    return tuple(known[start]._replace(blocks=tuple(blocks[start])) for start in starts)


class _Layout:
    # Segments by address, while operations on them are undone.

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._known = {segment.address: segment for segment in segments}
        self._starts = sorted(self._known)

    def before(self, later: Operations) -> dict[int, Segment]:
        moved = 0
        for at in range(len(later) - 1, -1, -1):
            action, address = later.actions[at], later.addresses[at]
            size_bytes = later.sizes_bytes[at]
            if not Action.SEGMENT_ALLOCATE <= action <= Action.SEGMENT_UNMAP:
                continue
            moved += 1 + len(self._starts) // _MOVED_AT_ONCE
            if moved > _MAX_MOVED:
                break
            if action == Action.SEGMENT_ALLOCATE:
                self._remove(address)
            elif action == Action.SEGMENT_MAP:
                self._cut(address, address + size_bytes)
            else:
                is_small = size_bytes <= _SMALL_SEGMENT_BYTES
                can_grow = action == Action.SEGMENT_UNMAP
                stream = later.streams[at]
                self._add(Segment(0, address, size_bytes, stream, SHARED, is_small, can_grow, ()))
        return {segment.address: segment for segment in self._merged()}

    def _add(self, segment: Segment) -> None:
        if segment.address not in self._known:
            self._known[segment.address] = segment
            insort(self._starts, segment.address)

    def _remove(self, address: int) -> None:
        if self._known.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def _cut(self, start: int, end: int) -> None:
        # Removes a range from the segments in it, which can leave parts of them.
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_left(self._starts, end)
        for address in self._starts[first:last]:
            segment = self._known[address]
            if address + segment.size_bytes <= start:
                continue
            self._remove(address)
            for left in _rest(segment, start, end):
                self._add(left)

    def _merged(self) -> Iterator[Segment]:
        # By address; segments that were mapped one after the other are merged.
        last: Segment | None = None
        for address in self._starts:
            segment = self._known[address]
            if last is not None and _goes_on(last, segment):
                last = last._replace(size_bytes=last.size_bytes + segment.size_bytes)
                continue
            if last is not None:
                yield last
            last = segment
        if last is not None:
            yield last


def _goes_on(segment: Segment, following: Segment) -> bool:
    can_grow = segment.is_expandable and following.is_expandable
    is_next = segment.address + segment.size_bytes == following.address
    is_same_pool = (segment.stream, segment.pool) == (following.stream, following.pool)
    return can_grow and is_next and is_same_pool


def _rest(segment: Segment, start: int, end: int) -> Iterator[Segment]:
    first, last = segment.address, segment.address + segment.size_bytes
    if first < start:
        yield segment._replace(size_bytes=start - first)
    if end < last:
        yield segment._replace(address=end, size_bytes=last - end)
