"""Causes of failed requests for memory, by where free memory is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from otel_gpu.explain.chains import Failure, Pin
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.state.memory.snapshot import Hole, Kept, LineHolding, holes_of, split_of
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory_snapshot import SHARED, Action, BlockState, Operations, Segment

_MIB = 1 << 20
SMALL_BYTES: Final = _MIB
"""Requests up to this size are served from segments of their own."""
SMALL_SEGMENT_BYTES: Final = 2 * _MIB
# Above this, a segment has the requested size in whole 2 MiB.
_MIDDLING_BYTES, _MIDDLING_SEGMENT_BYTES = 10 * _MIB, 20 * _MIB
# Of a device: the least share of others that is reported. The process's own context is smaller.
_OTHERS_SHARE = 0.1
_MAX_HOLDERS = 3
# The most operations of an allocator while it tries a request.
_MAX_TRIED = 4_096

Holders = tuple[LineHolding, ...]
Key = tuple[tuple[int, int], int, bool]
"""The pool and the stream of segments, and whether they serve small requests."""
Groups = Mapping[Key, Sequence[Segment]]


def with_holes(
    known: Failure, usable: Sequence[Segment], place_of: Callable[[int], Frame]
) -> Failure:
    """Return a failure with the holes of the segments that could have served it."""
    holes = [hole for number, one in enumerate(usable) for hole in holes_of(one, number)]
    hole_bytes = sum(hole.size_bytes for hole in holes)
    return known._replace(
        whole_bytes=sum(hole.whole_bytes for hole in holes),
        hole_bytes=hole_bytes,
        largest_hole_bytes=max((hole.size_bytes for hole in holes), default=0),
        elsewhere_bytes=max(0, known.elsewhere_bytes - hole_bytes),
        pins=pins_of(usable, holes, place_of),
    )


def judge(known: Failure) -> Failure:
    """Return a failure with its cause."""
    asked, free = known.asked_bytes, known.device_free_bytes or 0
    # The device lacked a new segment.
    lacking = segment_bytes(asked) - free
    leaked = known.leaks[0].size_bytes if known.leaks else 0
    largest = known.largest_hole_bytes
    stuck = known.hole_bytes - known.whole_bytes
    # Segments that are free as a whole obstruct nothing.
    is_fragmented = stuck > 0 and asked <= known.hole_bytes + free
    others = known.outside_bytes or 0
    if others < known.capacity_bytes * _OTHERS_SHARE:
        others = 0
    kept, kept_bytes = _largest_holding_of(known, lacking) if lacking > 0 else (None, 0)
    if lacking > 0 and largest is not None and largest >= asked:
        cause = CauseKind.FITTING_HOLE
        known = known._replace(kept=tuple(one for one in known.kept if one[:2] != _own(known)))
    elif kept is not None and kept_bytes > max(stuck if is_fragmented else 0, leaked, others):
        cause = kept
    elif lacking > 0 and is_fragmented:
        # Memory that is never freed also keeps the holes apart.
        leaking = {one.place for one in known.leaks}
        is_pinned = bool(known.pins) and known.pins[0].place in leaking
        is_leak = is_pinned and leaked >= lacking
        cause = CauseKind.LEAK if is_leak else CauseKind.FRAGMENTATION
    elif max(leaked, others) < max(lacking, 1):
        cause = CauseKind.EXHAUSTED
    else:
        cause = CauseKind.LEAK if leaked >= others else CauseKind.OTHER_PROCESS
    return known._replace(cause=cause)


def _largest_holding_of(known: Failure, lacking_bytes: int) -> tuple[CauseKind | None, int]:
    # What keeps enough free memory, and how much; None: nothing does.
    # A pool is released when nothing uses it any more; before that, not even its free segments are.
    in_pools = [one for one in known.kept if one.pool != SHARED]
    pooled_bytes = sum(one.whole_bytes for one in in_pools)
    if pooled_bytes >= lacking_bytes or _fits(in_pools, known.asked_bytes):
        largest = max((one.largest_hole_bytes for one in in_pools), default=0)
        return CauseKind.PRIVATE_POOL, max(pooled_bytes, largest)
    # Before an allocator fails, it releases all free segments, except while a graph is captured.
    cached_bytes = sum(one.whole_bytes for one in known.kept if one.pool == SHARED)
    if not known.kept:
        # A live capture does not see pools.
        cached_bytes = known.whole_bytes
    if cached_bytes >= lacking_bytes:
        return CauseKind.KEPT_CACHE, cached_bytes
    elsewhere = [one for one in known.kept if one.pool == SHARED and one.stream != known.stream]
    if known.pool == SHARED and _fits(elsewhere, known.asked_bytes):
        return CauseKind.OTHER_STREAM, max(one.largest_hole_bytes for one in elsewhere)
    return None, 0


def _own(known: Failure) -> tuple[tuple[int, int], int]:
    return known.pool, known.stream


def _fits(kept: Sequence[Kept], asked_bytes: int) -> bool:
    is_small = asked_bytes <= SMALL_BYTES
    return any(one.largest_hole_bytes >= asked_bytes for one in kept if one.is_small == is_small)


def kept_of(
    known: Failure,
    segments: Iterable[Segment],
    holders_of: Callable[[Groups], Mapping[Key, Holders]],
) -> tuple[Kept, ...]:
    """
    Return the free memory that could not serve a request, the most first.

    Args:
        known: The request.
        segments: All segments of the allocator.
        holders_of: Returns the lines that allocated in groups of segments, the most first.
    """
    groups: dict[Key, list[Segment]] = {}
    for one in segments:
        groups.setdefault((one.pool, one.stream, one.is_small), []).append(one)
    own = known.pool, known.stream, known.asked_bytes <= SMALL_BYTES
    splits = {key: split_of(members) for key, members in groups.items()}
    # In its own pool, only what is not released although nothing obstructs it.
    kept = {
        key: split
        for key, split in splits.items()
        if (split.whole_free + split.pooled if key == own else split.free)
    }
    holders = holders_of({key: groups[key] for key in kept})
    found = (
        Kept(
            *key,
            one.free,
            one.pooled + one.whole_free,
            one.largest_hole,
            holders.get(key, ())[:_MAX_HOLDERS],
        )
        for key, one in kept.items()
    )
    return tuple(sorted(found, key=lambda one: (-one.free_bytes, one[:3])))


def was_freed_late(
    operations: Operations, at: int, holes: Iterable[Hole], asked_bytes: int
) -> bool:
    """
    Return whether a hole that is large enough became free only while a request was tried.

    An allocator without memory waits for streams that still use freed blocks, and asks the device
    once more. PyTorch does not search its own memory again after that.
    """
    fitting = [hole for hole in holes if hole.size_bytes >= asked_bytes]
    actions, addresses, times = operations.actions, operations.addresses, operations.unix_us
    for index in range(at - 1, max(-1, at - 1 - _MAX_TRIED), -1):
        if actions[index] == Action.ALLOCATE:
            break
        address = addresses[index]
        is_inside = any(0 <= address - hole.address < hole.size_bytes for hole in fitting)
        if actions[index] != Action.FREE or not is_inside:
            continue
        is_next = (actions[index - 1], addresses[index - 1]) == (Action.FREE_REQUESTED, address)
        if not (index and is_next and times[index - 1] == times[index]):
            return True
    return False


def segment_bytes(asked_bytes: int) -> int:
    """Return what an allocator asks the device for, to serve a request of a size."""
    if asked_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if asked_bytes < _MIDDLING_BYTES:
        return _MIDDLING_SEGMENT_BYTES
    return -(-asked_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES


def pins_of(
    segments: Sequence[Segment], holes: Sequence[Hole], place_of: Callable[[int], Frame]
) -> tuple[Pin, ...]:
    """Return the lines whose blocks keep holes apart, the most bytes first."""
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
