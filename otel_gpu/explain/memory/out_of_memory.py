"""
Out of memory: why a request for a device's memory failed.

Conclusions need an effect, which is a failed request. Fragmentation by itself proves nothing, as it
is normal: the largest hole is a few percent of free memory in healthy programs too.
"""

# Some facts about failed requests
# --------------------------------
#
# An allocator without a hole takes a whole segment from the device, which is more than was asked
# for. Before it fails it has released all segments that are free as a whole. What is free then lies
# between blocks in use, or is kept for other streams, pools and sizes.
#
# A snapshot has every block. A live capture has the blocks that were followed: where others lie,
# there seem to be holes. The sum of free memory is exact, as the allocator reports what it holds
# and has handed out. A hole that could have served the request is not one.

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final

from otel_gpu import wire
from otel_gpu.enrich import ids
from otel_gpu.enrich.activities import OutOfMemoryActivity
from otel_gpu.enrich.identity.attributes import VARIABLE_PREFIX
from otel_gpu.enrich.identity.identities import CallStack, Program
from otel_gpu.explain.chains import Cause, Chain, Effect, Evidence, Failure
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind, Severity
from otel_gpu.explain.memory.causes import (
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    Groups,
    Holders,
    Key,
    judge,
    kept_of,
    was_freed_late,
    with_holes,
)
from otel_gpu.procfs.process_facts import ALLOCATOR_VARIABLES
from otel_gpu.state.memory.blocks import By, DeviceBlocks
from otel_gpu.state.memory.code_locations import find_allocating_place
from otel_gpu.state.memory.history import BlockWalk, growing, holders_of, live_before, phase_ends
from otel_gpu.state.memory.layout import segments_before
from otel_gpu.state.memory.snapshot import (
    NOT_SAMPLED,
    NOWHERE,
    LineHolding,
    holes_of,
    rank,
    split_of,
)
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory_snapshot import (
    NO_STACK,
    SHARED,
    Action,
    Block,
    BlockState,
    MemorySnapshot,
    Operations,
    Segment,
)

MAX_FAILURES: Final = 8
"""The latest failed requests that are examined."""

SNAPSHOT_PROGRAM: Final = Program(
    pid=0,
    program_ktime_ns=0,
    comm="snapshot",
    start_unix_ns=0,
    attributes={"service.name": "snapshot", "service.instance.id": "snapshot"},
)
"""The process of a snapshot, which does not name it."""

# Operations that are searched for the users of a pool.
_MAX_LOOKED = 1_000_000
_ALLOCATORS = ("libc10.so", "libc10_cuda.so")


def find_failures(
    snapshot: MemorySnapshot, history: BlockWalk, place_of: Callable[[int], Frame]
) -> tuple[Failure, ...]:
    """Return the last failed requests in a snapshot, in order."""
    actions = snapshot.operations.actions
    found = [at for at, action in enumerate(actions) if action == Action.OUT_OF_MEMORY]
    return tuple(
        _recorded(snapshot=snapshot, history=history, at=at, place_of=place_of)
        for at in found[-MAX_FAILURES:]
    )


def _recorded(
    snapshot: MemorySnapshot, history: BlockWalk, at: int, place_of: Callable[[int], Frame]
) -> Failure:
    operations = snapshot.operations
    device_free = operations.addresses[at]
    live = live_before(snapshot, at)
    segments = segments_before(snapshot, at, live)
    reserved = sum(segment.size_bytes for segment in segments)
    known = Failure(
        device=snapshot.device,
        unix_ns=operations.unix_us[at] * 1_000,
        place=place_of(operations.stacks[at]),
        asked_bytes=operations.sizes_bytes[at],
        device_free_bytes=device_free,
        reserved_bytes=reserved,
        live_bytes=sum(one.size_bytes for one in live.values()),
        hole_bytes=0,
        largest_hole_bytes=None,
        elsewhere_bytes=split_of(segments).free,
        outside_bytes=_outside(
            snapshot=snapshot, history=history, device_free=device_free, reserved=reserved
        ),
        capacity_bytes=snapshot.capacity_bytes,
        is_expandable=snapshot.is_expandable,
        cause=CauseKind.EXHAUSTED,
        holders=holders_of(live, place_of),
        pins=(),
        leaks=growing(live, phase_ends(snapshot, at), place_of),
    )
    known = known._replace(pool=operations.pools.get(at, SHARED), stream=operations.streams[at])
    usable = [
        one
        for one in segments
        if (one.is_small, one.stream, one.pool)
        == (known.asked_bytes <= SMALL_BYTES, known.stream, known.pool)
    ]
    found = with_holes(known, usable, place_of)
    holes = (hole for one in usable for hole in holes_of(one))
    return judge(
        found._replace(
            was_freed_late=was_freed_late(
                operations=operations, at=at, holes=holes, asked_bytes=known.asked_bytes
            ),
            kept=kept_of(known, segments, _Allocated(operations, at, place_of)),
        )
    )


class _Allocated:
    # Finds the lines that allocated in segments before an operation.

    def __init__(self, operations: Operations, at: int, place_of: Callable[[int], Frame]) -> None:
        self._operations, self._at, self._place_of = operations, at, place_of

    def __call__(self, groups: Groups) -> dict[Key, Holders]:
        # For memory older than the recording, the lines that took the segments.
        starts = sorted(
            (one.address, one.address + one.size_bytes, key)
            for key, members in groups.items()
            for one in members
        )
        sizes: dict[Key, list[tuple[int, int]]] = {key: [] for key in groups}
        operations = self._operations
        for index in range(max(0, self._at - _MAX_LOOKED) if starts else self._at, self._at):
            if operations.actions[index] == Action.ALLOCATE:
                address = operations.addresses[index]
                number = bisect_right(starts, address, key=_first) - 1
                if number >= 0 and address < starts[number][1]:
                    made = operations.stacks[index], operations.sizes_bytes[index]
                    sizes[starts[number][2]].append(made)
        return {
            key: rank(
                sizes[key] or [(one.stack, one.size_bytes) for one in members if one.stack],
                self._place_of,
            )
            for key, members in groups.items()
        }


def failure_of(
    activity: OutOfMemoryActivity, held: DeviceBlocks | None, own_bytes: int = 0
) -> Failure:
    """
    Return why a request failed that was observed live.

    Args:
        activity: The failure.
        held: What the allocator holds; None: no allocator is known.
        own_bytes: What the process took of the device without its allocator.
    """
    event = activity.event
    is_known = event.device_total_bytes > 0
    outside = event.device_total_bytes - event.device_free_bytes - event.reserved_bytes
    known = Failure(
        device=event.device,
        unix_ns=activity.unix_ns,
        place=place_of_stack(activity.stack),
        asked_bytes=event.asked_bytes,
        device_free_bytes=event.device_free_bytes if is_known else None,
        reserved_bytes=event.reserved_bytes,
        live_bytes=event.allocated_bytes,
        hole_bytes=max(0, event.reserved_bytes - event.allocated_bytes),
        largest_hole_bytes=None,
        elsewhere_bytes=0,
        outside_bytes=max(0, outside - own_bytes) if is_known else None,
        capacity_bytes=event.device_total_bytes,
        is_expandable=can_expand(activity.process.attributes),
        cause=CauseKind.EXHAUSTED,
        holders=_live_holders(activity, held),
        pins=(),
        leaks=_leaks(held),
    )
    if activity.map is not None:
        known = _with_map(known, activity)
    return judge(known)


def failure_chain(failure: Failure, activity: OutOfMemoryActivity) -> Chain:
    """Return the chain of a failed request: it took no time, and is worse than any slow effect."""
    event, api = activity.event, activity.api.name if activity.api else ""
    effect = Effect(
        kind=EffectKind.OUT_OF_MEMORY,
        process=activity.process,
        api=api,
        tid=event.tid,
        comm=event.comm,
        start_unix_ns=activity.unix_ns,
        duration_ns=0,
        excess_ns=0,
        trace_id=activity.trace_id,
        span_id=activity.span_id,
        stack=activity.stack,
    )
    return _chain(failure, effect, f"{event.pid}-{event.tid}-{event.ktime_ns}")


def recorded_chain(failure: Failure, number: int) -> Chain:
    """Return the chain of a failed request in a snapshot, which names no process."""
    name = f"device-{failure.device}-{number}"
    span_ids = ids.incident_ids(ids.NO_SEED, name)
    effect = Effect(
        EffectKind.OUT_OF_MEMORY, SNAPSHOT_PROGRAM, "", 0, "", failure.unix_ns, 0, 0, *span_ids
    )
    return _chain(failure, effect, name)


def _chain(failure: Failure, effect: Effect, name: str) -> Chain:
    at = effect.start_unix_ns
    evidence = Evidence(
        id=f"request-{name}",
        kind=EvidenceKind.REQUEST,
        start_unix_ns=at,
        end_unix_ns=at,
        stack=effect.stack,
    )
    cause = Cause(kind=failure.cause, time_ns=0, share=0.0, culprit=None, evidence=(evidence,))
    return Chain(
        id=f"{effect.kind}-{name}",
        effect=effect,
        causes=(cause,),
        unexplained_ns=0,
        severity=Severity.HIGH,
        failure=failure,
    )


def is_retried(activity: OutOfMemoryActivity) -> bool:
    """
    Return whether a failed call is an allocator's first try.

    It releases its cache and tries again; if that fails too, it reports that itself.
    """
    if activity.event.source != wire.OUT_OF_MEMORY_CALL or activity.stack is None:
        return False
    return any(is_of_allocator(frame) for frame in activity.stack.frames)


def is_of_allocator(frame: Frame) -> bool:
    """Return whether a frame belongs to a framework's allocator of device memory."""
    return frame.module.rpartition("/")[2].startswith(_ALLOCATORS)


def place_of_stack(stack: CallStack | None) -> Frame:
    """Return the line of a program that a stack is in; ``NOWHERE``: not known."""
    return find_allocating_place(stack.frames) if stack else NOWHERE


def can_expand(attributes: Mapping[str, object]) -> bool:
    """Return whether the settings of a process let the segments of its allocator grow."""
    settings = (str(attributes.get(VARIABLE_PREFIX + name, "")) for name in ALLOCATOR_VARIABLES)
    option_text = next((one for one in settings if one), "")
    options = (option.partition(":") for option in option_text.replace(" ", "").split(","))
    return any((name, value) == ("expandable_segments", "True") for name, _, value in options)


def _leaks(held: DeviceBlocks | None) -> tuple[LineHolding, ...]:
    if held is None:
        return ()
    now = {holder.place: holder for holder in held.holders(By.IN_USE, named=True)}
    found = [
        # As many of its blocks as grew, if all have one size.
        LineHolding(
            trend.place,
            trend.grown_bytes,
            round(now[trend.place].blocks * trend.grown_bytes / now[trend.place].size_bytes),
        )
        for trend in held.trends
        if trend.place in now
    ]
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.place)))


def _live_holders(
    activity: OutOfMemoryActivity, held: DeviceBlocks | None
) -> tuple[LineHolding, ...]:
    if activity.map is None:
        return held.holders(By.IN_USE) if held else ()
    place_of = _Places(activity)
    found = list(rank(_known_sizes(activity), place_of))
    known = sum(one.size_bytes for one in found)
    if (left := activity.event.allocated_bytes - known) > 0:
        found.append(LineHolding(NOT_SAMPLED, left, 0))
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.place)))


def _known_sizes(activity: OutOfMemoryActivity) -> Iterator[tuple[int, int]]:
    for _, size_bytes, stack in activity.map["blocks"] if activity.map else ():
        if stack in activity.stacks:
            yield stack, size_bytes


class _Places:
    # Finds the code location of a key of a map.

    def __init__(self, activity: OutOfMemoryActivity) -> None:
        self._places = {key: place_of_stack(stack) for key, stack in activity.stacks.items()}

    def __call__(self, stack: int) -> Frame:
        return self._places.get(stack, NOT_SAMPLED)


def _with_map(known: Failure, activity: OutOfMemoryActivity) -> Failure:
    segments = list(segments_of_map(activity, is_expandable=bool(known.is_expandable)))
    is_small = known.asked_bytes <= SMALL_BYTES
    usable = [one for one in segments if one.is_small == is_small]
    found = with_holes(known, usable, _Places(activity))
    # Where blocks lie that were not followed, there seem to be holes.
    hole_bytes = min(found.hole_bytes, known.hole_bytes)
    largest = found.largest_hole_bytes or 0
    is_known = found.hole_bytes <= known.hole_bytes and largest < known.asked_bytes
    # Segments that seem free as a whole are so only if all blocks are known.
    is_all = sum(size for _, size in _known_sizes(activity)) >= activity.event.allocated_bytes > 0
    return found._replace(
        hole_bytes=hole_bytes,
        whole_bytes=min(found.whole_bytes, hole_bytes) if is_all else 0,
        largest_hole_bytes=largest if is_known else None,
        pins=tuple(pin._replace(hole_bytes=min(pin.hole_bytes, hole_bytes)) for pin in found.pins),
        elsewhere_bytes=known.hole_bytes - hole_bytes,
    )


def segments_of_map(activity: OutOfMemoryActivity, *, is_expandable: bool) -> Iterator[Segment]:
    """Yield the segments of a map with their blocks. Segments that grew are merged."""
    if activity.map is None:
        return
    blocks = sorted(activity.map["blocks"])
    at = 0
    for address, size_bytes in _merged(activity.map["segments"], is_one=is_expandable):
        inside: list[Block] = []
        while at < len(blocks) and blocks[at][0] < address:
            at += 1
        while at < len(blocks) and blocks[at][0] < address + size_bytes:
            start, length, stack = blocks[at]
            inside.append(
                Block(
                    address=start,
                    size_bytes=length,
                    requested_bytes=None,
                    state=BlockState.ALLOCATED,
                    stack=stack or NO_STACK,
                )
            )
            at += 1
        is_small = size_bytes <= SMALL_SEGMENT_BYTES
        device = activity.event.device
        yield Segment(
            device=device,
            address=address,
            size_bytes=size_bytes,
            stream=0,
            pool=SHARED,
            is_small=is_small,
            is_expandable=is_expandable,
            blocks=tuple(inside),
        )


def _merged(segments: Iterable[tuple[int, int]], *, is_one: bool) -> Iterator[tuple[int, int]]:
    start = end = 0
    for address, size_bytes in sorted(segments):
        if is_one and address == end and end > start:
            end += size_bytes
            continue
        if end > start:
            yield start, end - start
        start, end = address, address + size_bytes
    if end > start:
        yield start, end - start


def _outside(
    snapshot: MemorySnapshot, history: BlockWalk, device_free: int, reserved: int
) -> int | None:
    # What others hold; for a device of unknown size, what they took since the peak.
    if snapshot.capacity_bytes:
        return max(0, snapshot.capacity_bytes - device_free - reserved)
    taken = history.peak_reserved_bytes - device_free - reserved
    return taken if taken > 0 else None


_first = itemgetter(0)
