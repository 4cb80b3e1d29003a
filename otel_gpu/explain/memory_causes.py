"""Why a request for memory failed, by where what is free lies."""

from collections.abc import Callable, Sequence
from typing import Final

from otel_gpu.decode.memory import BlockState, Segment
from otel_gpu.explain.chains import CauseKind, Failure, Pin
from otel_gpu.ledger.memory import Hole, holes_of
from otel_gpu.stacks.frames import Frame

_MIB = 1 << 20
SMALL_BYTES: Final = _MIB
"""Requests up to this are served from segments of their own."""
SMALL_SEGMENT_BYTES: Final = 2 * _MIB
# Of what is larger than this a segment has as much as was asked for, in whole 2 MiB.
_MIDDLING_BYTES, _MIDDLING_SEGMENT_BYTES = 10 * _MIB, 20 * _MIB
# Of a device: what others take that is worth a name. The process's own context is less.
_OTHERS_SHARE = 0.1


def with_holes(
    known: Failure, usable: Sequence[Segment], place_of: Callable[[int], Frame]
) -> Failure:
    """Return what is known with the holes of the segments that could have served it."""
    holes = [hole for number, one in enumerate(usable) for hole in holes_of(one, number)]
    hole_bytes = sum(hole.size_bytes for hole in holes)
    return known._replace(
        hole_bytes=hole_bytes,
        largest_hole_bytes=max((hole.size_bytes for hole in holes), default=0),
        elsewhere_bytes=max(0, known.elsewhere_bytes - hole_bytes),
        pins=pins_of(usable, holes, place_of),
    )


def judge(known: Failure) -> Failure:
    """Return what is known with the cause of it."""
    asked, free = known.asked_bytes, known.device_free_bytes or 0
    # A new segment is what the device did not have.
    lacking = _segment_bytes(asked) - free
    leaked = known.leaks[0].size_bytes if known.leaks else 0
    largest = known.largest_hole_bytes
    is_in_pieces = asked <= known.hole_bytes + free and (largest is None or largest < asked)
    others = known.outside_bytes or 0
    if others < known.capacity_bytes * _OTHERS_SHARE:
        others = 0
    if lacking > 0 and is_in_pieces:
        # What is never freed is also what keeps the holes apart.
        leaking = {one.place for one in known.leaks}
        is_pinned = bool(known.pins) and known.pins[0].place in leaking
        is_leak = is_pinned and leaked >= lacking
        cause = CauseKind.LEAK if is_leak else CauseKind.FRAGMENTATION
    elif max(leaked, others) < max(lacking, 1):
        cause = CauseKind.EXHAUSTED
    else:
        cause = CauseKind.LEAK if leaked >= others else CauseKind.OTHER_PROCESS
    return known._replace(cause=cause)


def _segment_bytes(asked_bytes: int) -> int:
    if asked_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if asked_bytes < _MIDDLING_BYTES:
        return _MIDDLING_SEGMENT_BYTES
    return -(-asked_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES


def pins_of(
    segments: Sequence[Segment], holes: Sequence[Hole], place_of: Callable[[int], Frame]
) -> tuple[Pin, ...]:
    """Return whose blocks keep holes apart, those of the most first."""
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
