"""
Why a device's memory ran out.

What is said rests on an effect: a request that failed. How fragmented memory is says nothing by
itself, for it always is: the largest hole is a few percent of what is free in healthy programs too.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu.decode.memory import Action, Block, BlockState, MemorySnapshot, Operations, Segment
from otel_gpu.ledger.memory import Holder, Hole, holes_of, split_of
from otel_gpu.ledger.memory_history import (
    History,
    Live,
    growing,
    holders_of,
    live_before,
    phase_ends,
)
from otel_gpu.stacks.frames import Frame

MAX_FAILURES: Final = 8
"""Requests that failed, the last ones, which are looked into."""

_SMALL_BYTES = 1 << 20
_SMALL_SEGMENT_BYTES = 2 << 20
_BLOCK_BYTES = 512
# Of a device: what others take that is worth a name. The process's own context is less.
_OTHERS_SHARE = 0.1
# Of addresses, in so many at once, while segments are undone; more are in no program.
_MAX_MOVED, _MOVED_AT_ONCE = 5_000_000, 64


class Cause(StrEnum):
    """Why a request for memory failed."""

    EXHAUSTED = "exhausted"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"
    LEAK = "leak"


class Pin(NamedTuple):
    """A line whose blocks keep holes from being given back; ``hole_bytes`` are those beside them."""

    place: Frame
    hole_bytes: int
    size_bytes: int
    blocks: int


class Failure(NamedTuple):
    """
    A request for memory that failed.

    Attributes:
        unix_us: When; 0: not known.
        place: Where it was made.
        asked_bytes: What was asked for.
        device_free_bytes: What the device had free.
        reserved_bytes: What the allocator held.
        live_bytes: What of it was in use.
        hole_bytes: What was free of it, where it could have served the request.
        largest_hole_bytes: The largest such piece.
        elsewhere_bytes: What was free for other streams, pools or sizes only.
        outside_bytes: What was taken by others at least, or by the process without the allocator;
            None: not known.
        cause: Why.
        holders: Who held what was in use, the most first.
        pins: Who kept the holes apart, those of the most first.
        leaks: Who allocated in each phase and freed nothing, the most first.
    """

    unix_us: int
    place: Frame
    asked_bytes: int
    device_free_bytes: int
    reserved_bytes: int
    live_bytes: int
    hole_bytes: int
    largest_hole_bytes: int
    elsewhere_bytes: int
    outside_bytes: int | None
    cause: Cause
    holders: tuple[Holder, ...]
    pins: tuple[Pin, ...]
    leaks: tuple[Holder, ...]


def find_failures(
    snapshot: MemorySnapshot, history: History, place_of: Callable[[int], Frame]
) -> tuple[Failure, ...]:
    """Return the last requests that failed, in order."""
    actions = snapshot.operations.actions
    found = [at for at, action in enumerate(actions) if action == Action.OUT_OF_MEMORY]
    return tuple(_failure(snapshot, history, at, place_of) for at in found[-MAX_FAILURES:])


def _failure(
    snapshot: MemorySnapshot, history: History, at: int, place_of: Callable[[int], Frame]
) -> Failure:
    operations = snapshot.operations
    asked, device_free = operations.sizes_bytes[at], operations.addresses[at]
    live = live_before(snapshot, at)
    segments = segments_before(snapshot, at, live)
    reserved = sum(segment.size_bytes for segment in segments)
    usable = [one for one in segments if _can_serve(one, asked, operations.streams[at])]
    holes = [hole for number, one in enumerate(usable) for hole in holes_of(one, number)]
    hole_bytes = sum(hole.size_bytes for hole in holes)
    largest = max((hole.size_bytes for hole in holes), default=0)
    leaks = growing(live, phase_ends(snapshot, at), place_of)
    outside = _outside(snapshot, history, device_free, reserved)
    made = Failure(
        operations.unix_us[at],
        place_of(operations.stacks[at]),
        asked,
        device_free,
        reserved,
        sum(one.size_bytes for one in live.values()),
        hole_bytes,
        largest,
        split_of(segments).free - hole_bytes,
        outside,
        Cause.EXHAUSTED,
        holders_of(live, place_of),
        _pins(usable, holes, place_of),
        leaks,
    )
    return made._replace(cause=_cause(made, snapshot.capacity_bytes))


def _cause(failure: Failure, capacity_bytes: int) -> Cause:
    asked, free = failure.asked_bytes, failure.device_free_bytes
    lacking = asked - free
    leaked = failure.leaks[0].size_bytes if failure.leaks else 0
    if lacking > 0 and failure.largest_hole_bytes < asked <= failure.hole_bytes + free:
        # What is never freed is also what keeps the holes apart.
        leaking = {one.place for one in failure.leaks}
        is_pinned = bool(failure.pins) and failure.pins[0].place in leaking
        return Cause.LEAK if is_pinned and leaked >= lacking else Cause.FRAGMENTATION
    others = failure.outside_bytes or 0
    if others < capacity_bytes * _OTHERS_SHARE:
        others = 0
    if max(leaked, others) < max(lacking, 1):
        return Cause.EXHAUSTED
    return Cause.LEAK if leaked >= others else Cause.OTHER_PROCESS


def _outside(
    snapshot: MemorySnapshot, history: History, device_free: int, reserved: int
) -> int | None:
    """Return what others hold: of a device of unknown size, what they took since the peak."""
    if snapshot.capacity_bytes:
        return max(0, snapshot.capacity_bytes - device_free - reserved)
    taken = history.peak_reserved_bytes - device_free - reserved
    return taken if taken > 0 else None


def _can_serve(segment: Segment, asked_bytes: int, stream: int) -> bool:
    is_small = asked_bytes <= _SMALL_BYTES
    return segment.is_small == is_small and segment.stream == stream and segment.pool == (0, 0)


def _pins(
    segments: Sequence[Segment], holes: Sequence[Hole], place_of: Callable[[int], Frame]
) -> tuple[Pin, ...]:
    stuck: dict[int, int] = {}
    for hole in holes:
        kept = hole.size_bytes - hole.whole_bytes
        stuck[hole.segment] = stuck.get(hole.segment, 0) + kept
    sums: dict[Frame, list[int]] = {}
    for number, hole_bytes in stuck.items():
        if not hole_bytes:
            continue
        seen: set[Frame] = set()
        for block in segments[number].blocks:
            if block.state is BlockState.FREE:
                continue
            place = place_of(block.stack)
            held = sums.setdefault(place, [0, 0, 0])
            held[0] += 0 if place in seen else hole_bytes
            held[1] += block.size_bytes
            held[2] += 1
            seen.add(place)
    pins = (Pin(place, *held) for place, held in sums.items())
    return tuple(sorted(pins, key=lambda pin: (-pin.hole_bytes, pin.size_bytes, pin.place)))


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
    """Where segments lie, while what was done to them is undone."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._known = {segment.address: segment for segment in segments}
        self._starts = sorted(self._known)

    def before(self, later: Operations) -> dict[int, Segment]:
        """Return the segments by address, as they were before operations."""
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
                self._add(Segment(0, address, size_bytes, stream, (0, 0), is_small, can_grow, ()))
        return {segment.address: segment for segment in self._merged()}

    def _add(self, segment: Segment) -> None:
        if segment.address not in self._known:
            self._known[segment.address] = segment
            insort(self._starts, segment.address)

    def _remove(self, address: int) -> None:
        if self._known.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def _cut(self, start: int, end: int) -> None:
        """Take a stretch away from the segments that it is of, which may leave parts of them."""
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
        """Yield segments by address; what was mapped one after the other is one segment."""
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
