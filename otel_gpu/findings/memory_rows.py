"""What holds the memory of a device, and why it ran out, as a document says it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from otel_gpu.decode.memory import Action, MemorySnapshot, Segment
from otel_gpu.explain.out_of_memory import Cause, Failure, Pin, find_failures
from otel_gpu.findings.device_memory import (
    Growth,
    Holding,
    Memory,
    MemoryPool,
    MemoryReading,
    OutOfMemory,
    PinnedBy,
)
from otel_gpu.findings.words import describe_place, format_duration, format_share, format_size
from otel_gpu.ledger.memory import Holder, Layer, split_of
from otel_gpu.ledger.memory_history import (
    History,
    churn_of,
    growing,
    holders_of,
    live_before,
    phase_ends,
    reading_moments,
    walk_back,
)
from otel_gpu.ledger.memory_places import Places
from otel_gpu.stacks.frames import PYTHON, Frame

MAX_HOLDERS: Final = 100
"""Lines in each list of a document; the rest of them is one row."""

_NS_PER_US = 1_000
_NS_PER_MINUTE = 60_000_000_000
# Segments that came and went: so many, and so many a minute, that they cost time.
_CHURN, _CHURN_PER_MINUTE = 10, 30
_STUCK_SHARE, _FULL_SHARE = 0.2, 0.8


def memory_rows(
    snapshots: Iterable[MemorySnapshot],
) -> tuple[tuple[Memory, ...], tuple[str, ...]]:
    """Return what is to be said of what allocators hold of devices, and what is not known of it."""
    rows: list[Memory] = []
    notes: list[str] = []
    for snapshot in snapshots:
        history = walk_back(snapshot)
        rows.append(_row(snapshot, history))
        notes += _notes(snapshot, history)
    return tuple(rows), tuple(notes)


def _row(snapshot: MemorySnapshot, history: History) -> Memory:
    operations, place_of = snapshot.operations, Places(snapshot.stacks)
    split = split_of(snapshot.segments)
    count = len(operations)
    at_end = live_before(snapshot, count)
    at_peak = live_before(snapshot, history.peak_at, requested=True)
    failures = find_failures(snapshot, history, place_of)
    leaks = growing(at_end, phase_ends(snapshot, count), place_of)
    counts = Counter(operations.actions)
    times = [unix_us for unix_us in operations.unix_us if unix_us]
    peak_unix_us = operations.unix_us[min(history.peak_at, count - 1)] if count else 0
    row = Memory(
        pid=None,
        device=snapshot.device,
        layer=Layer.FRAMEWORK,
        live_bytes=split.allocated,
        peak_bytes=history.peak_bytes,
        peak_unix_ns=peak_unix_us * _NS_PER_US or None,
        reserved_bytes=split.reserved,
        peak_reserved_bytes=history.peak_reserved_bytes,
        requested_bytes=split.requested,
        rounding_bytes=split.rounding,
        pending_bytes=split.pending,
        stuck_bytes=split.stuck,
        whole_free_bytes=split.whole_free,
        largest_hole_bytes=split.largest_hole,
        capacity_bytes=snapshot.capacity_bytes or None,
        expandable_segments=snapshot.is_expandable,
        segments=len(snapshot.segments),
        allocations=counts[Action.ALLOCATE],
        frees=counts[Action.FREE] or counts[Action.FREE_REQUESTED],
        segment_allocations=counts[Action.SEGMENT_ALLOCATE],
        segment_frees=counts[Action.SEGMENT_FREE],
        recorded_ns=(max(times) - min(times)) * _NS_PER_US if times else None,
        pools=tuple(_pools(snapshot.segments)),
        holders=_holdings(holders_of(at_peak, place_of)),
        end_holders=_holdings(holders_of(at_end, place_of)),
        churn=_holdings(churn_of(operations, place_of)),
        leaks=_holdings(leaks),
        ooms=tuple(map(_out_of_memory, failures)),
        alarms=(),
        advice=(),
        readings=tuple(_readings(snapshot, history)),
    )
    alarms = tuple(_alarms(row))
    return row._replace(alarms=alarms, advice=tuple(dict.fromkeys(_advice(row))))


def _readings(snapshot: MemorySnapshot, history: History) -> Iterator[MemoryReading]:
    """Yield what was in use over time; of each stretch the moment of the most."""
    unix_us = snapshot.operations.unix_us
    if not any(unix_us):
        return
    end = len(unix_us)
    for at in (*reading_moments(history), end):
        unix_ns = unix_us[min(at, end - 1)] * _NS_PER_US
        yield MemoryReading(unix_ns, history.totals_bytes[at], history.reserved_bytes[at])


def _notes(snapshot: MemorySnapshot, history: History) -> Iterator[str]:
    device = f"device {snapshot.device}"
    if not len(snapshot.operations):
        yield f"Memory of {device}: nothing was recorded of how it was allocated; the peak is the end."
    if history.is_by_request:
        yield (
            f"Memory of {device}: when frees were done was not recorded, only when they were asked "
            "for: what still waited for a stream is taken to be free."
        )
    if history.unmatched:
        yield (
            f"Memory of {device}: {history.unmatched:,} allocations and frees do not fit together: "
            "some were not recorded, and the peak is not exact."
        )


def place_text(row: Holding | PinnedBy | Growth | OutOfMemory) -> str:
    """Return a line of a program for the middle of a sentence."""
    return describe_place(frame_of(row))


def frame_of(row: Holding | PinnedBy | Growth | OutOfMemory) -> Frame:
    """Return a line of a program as a frame."""
    return Frame(PYTHON, row.function, row.file, row.line)


def _holdings(holders: Sequence[Holder]) -> tuple[Holding, ...]:
    rows = [
        Holding(one.place.function, one.place.file, one.place.line, one.size_bytes, one.blocks)
        for one in holders[:MAX_HOLDERS]
    ]
    if rest := holders[MAX_HOLDERS:]:
        size_bytes, blocks = sum(one.size_bytes for one in rest), sum(one.blocks for one in rest)
        rows.append(Holding(f"({len(rest):,} others)", "", 0, size_bytes, blocks))
    return tuple(rows)


def _pinned_by(pin: Pin) -> PinnedBy:
    place = pin.place
    return PinnedBy(place.function, place.file, place.line, *pin[1:])


def _out_of_memory(failure: Failure) -> OutOfMemory:
    place = failure.place
    return OutOfMemory(
        failure.unix_us * _NS_PER_US or None,
        place.function,
        place.file,
        place.line,
        failure.asked_bytes,
        failure.device_free_bytes,
        failure.cause,
        failure.reserved_bytes,
        failure.live_bytes,
        failure.hole_bytes,
        failure.largest_hole_bytes,
        failure.elsewhere_bytes,
        failure.outside_bytes,
        _holdings(failure.holders),
        tuple(map(_pinned_by, failure.pins[:MAX_HOLDERS])),
        _holdings(failure.leaks),
    )


def _pools(segments: Iterable[Segment]) -> Iterator[MemoryPool]:
    pools: dict[tuple[object, ...], list[Segment]] = {}
    for segment in segments:
        key = (segment.pool, segment.stream, segment.is_small, segment.is_expandable)
        pools.setdefault(key, []).append(segment)
    for _, members in sorted(pools.items()):
        split, first = split_of(members), members[0]
        yield MemoryPool(
            first.pool,
            first.stream,
            first.is_small,
            first.is_expandable,
            len(members),
            split.reserved,
            split.allocated,
            split.free,
            split.largest_hole,
        )


def _alarms(row: Memory) -> Iterator[str]:
    for oom in row.ooms:
        yield f"A request for {format_size(oom.asked_bytes)} failed in {place_text(oom)}: {oom.cause}."
    if _churns(row):
        yield (
            f"{row.segment_frees:,} segments were given back to the device and "
            f"{row.segment_allocations:,} were taken in {format_duration(row.recorded_ns or 0)}: each "
            "of them waits for the device."
        )
    if _is_nearly_full(row):
        stuck = format_share(row.stuck_bytes / row.reserved_bytes)
        yield f"{stuck} of what is reserved is stuck between blocks, and the device is nearly full."


def _advice(row: Memory) -> Iterator[str]:
    for oom in row.ooms:
        yield from _advice_for(row, oom)
    if _is_nearly_full(row) and row.expandable_segments is False:
        yield _grow(row.stuck_bytes)
    if _churns(row):
        yield (
            "Do not call torch.cuda.empty_cache() in a loop: "
            f"{row.segment_frees:,} segments that it gave back were soon needed again."
        )


def _advice_for(row: Memory, oom: OutOfMemory) -> Iterator[str]:
    lacking = format_size(max(0, oom.asked_bytes - oom.free_bytes))
    match oom.cause:
        case Cause.FRAGMENTATION:
            if row.expandable_segments is False:
                yield _grow(oom.hole_bytes)
            yield (
                f"Allocate the {format_size(oom.asked_bytes)} of {place_text(oom)} once, before what "
                f"is small: the largest hole has {format_size(oom.largest_hole_bytes)}."
            )
        case Cause.LEAK:
            kept = oom.leaks[0]
            yield (
                f"Let go of what {place_text(kept)} allocates: {format_size(kept.size_bytes)} in "
                f"{kept.blocks:,} blocks, some from every phase, was never freed."
            )
        case Cause.OTHER_PROCESS:
            yield (
                f"At least {format_size(oom.outside_bytes or 0)} of the device is held outside of "
                "this allocator: look who else uses it, and give each its share with "
                "torch.cuda.set_per_process_memory_fraction()."
            )
        case _:
            most = oom.holders[0] if oom.holders else None
            held = f": {place_text(most)} holds {format_size(most.size_bytes)}" if most else ""
            yield (
                f"{lacking} more is needed than there is. Use less where most is held{held}; a smaller "
                "batch or activation checkpointing needs less."
            )


def _grow(size_bytes: int) -> str:
    return (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which is off: "
        f"{format_size(size_bytes)} is free in holes that are too small."
    )


def _churns(row: Memory) -> bool:
    cycles = min(row.segment_allocations, row.segment_frees)
    if cycles < _CHURN or not row.recorded_ns:
        return False
    return cycles / row.recorded_ns * _NS_PER_MINUTE >= _CHURN_PER_MINUTE


def _is_nearly_full(row: Memory) -> bool:
    capacity = row.capacity_bytes
    if not capacity or row.reserved_bytes <= capacity * _FULL_SHARE:
        return False
    return row.stuck_bytes > row.reserved_bytes * _STUCK_SHARE
