"""Rows of device memory from a snapshot, and why memory ran out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from otel_gpu.explain.chains import Failure, Pin
from otel_gpu.explain.memory.advice import advise, grow, keep_cache, pool_name
from otel_gpu.report.memory.types import (
    ChurnRow,
    DeviceMemory,
    GrowingLine,
    Holding,
    KeptMemory,
    MemoryPool,
    MemoryReading,
    OutOfMemoryRow,
    PinnedBy,
    PinnedHoleRow,
)
from otel_gpu.report.wording.formats import (
    describe_place,
    format_duration,
    format_share,
    format_size,
)
from otel_gpu.state.memory import sizes as memory_sizes
from otel_gpu.state.memory.code_locations import StackLocations
from otel_gpu.state.memory.history import (
    BlockWalk,
    Live,
    churn_of,
    growing,
    holders_of,
    live_before,
    phase_ends,
    reading_times,
)
from otel_gpu.state.memory.snapshot import Layer, LineHolding, split_of
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.memory_snapshot import SHARED, Action, MemorySnapshot, Segment

MAX_HOLDERS: Final = 100
"""Lines in each list of a document; the rest is one row."""

_NS_PER_US = 1_000
_NS_PER_MINUTE = 60_000_000_000
# Thresholds of segment churn: count, and count per minute.
_CHURN, _CHURN_PER_MINUTE = 10, 30
_STUCK_SHARE, _FULL_SHARE = 0.2, 0.8


def memory_rows(
    snapshots: Iterable[tuple[MemorySnapshot, BlockWalk, Sequence[Failure]]],
) -> tuple[tuple[DeviceMemory, ...], tuple[str, ...]]:
    """
    Return rows of device memory, and notes on what is not known.

    Args:
        snapshots: Each with its history, and its failed requests.
    """
    rows: list[DeviceMemory] = []
    notes: list[str] = []
    for snapshot, history, failures in snapshots:
        rows.append(_row(snapshot, history, failures))
        notes += _notes(snapshot, history)
    return tuple(rows), tuple(notes)


def _row(snapshot: MemorySnapshot, history: BlockWalk, failures: Sequence[Failure]) -> DeviceMemory:
    operations, place_of = snapshot.operations, StackLocations(snapshot.stacks)
    split = split_of(snapshot.segments)
    count = len(operations)
    at_end = live_before(snapshot, count)
    at_peak = live_before(snapshot, history.peak_at, requested=True)
    leaks = growing(at_end, phase_ends(snapshot, count), place_of)
    counts = Counter(operations.actions)
    times = [unix_us for unix_us in operations.unix_us if unix_us]
    peak_unix_us = operations.unix_us[min(history.peak_at, count - 1)] if count else 0
    row = DeviceMemory(
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
        pooled_bytes=split.pooled,
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
        holders=holdings(holders_of(at_peak, place_of)),
        end_holders=holdings(holders_of(at_end, place_of)),
        churn=holdings(churn_of(operations, place_of)),
        leaks=holdings(leaks),
        ooms=tuple(map(out_of_memory, failures)),
        alarms=(),
        advice=(),
        readings=tuple(_readings(snapshot, history)),
    )
    row = _with_free_space(
        _with_sizes(row=row, snapshot=snapshot, at_end=at_end, place_of=place_of)
    )
    alarms = (*failure_alarms(row.ooms), *_alarms(row))
    advice = [text for failure in failures for text in advise(failure)]
    return row._replace(alarms=alarms, advice=tuple(dict.fromkeys([*advice, *_advice(row)])))


def _with_sizes(
    row: DeviceMemory, snapshot: MemorySnapshot, at_end: dict[int, Live], place_of: StackLocations
) -> DeviceMemory:
    sizes = memory_sizes.churn_sizes(snapshot.operations, place_of)
    holes = memory_sizes.pinned_holes(snapshot.segments, at_end, place_of)
    return row._replace(
        files=memory_sizes.files_of(holders_of(at_end, place_of)),
        largest_blocks=holdings(memory_sizes.largest_blocks(at_end, place_of)),
        churn_sizes=tuple(
            ChurnRow(
                block_bytes=one.block_bytes,
                blocks=one.blocks,
                size_bytes=one.block_bytes * one.blocks,
                holders=holdings(one.holders),
            )
            for one in sizes
        ),
        segment_sizes=tuple(memory_sizes.segment_sizes(snapshot.segments)),
        holes=tuple(
            PinnedHoleRow(
                hole_bytes=one.size_bytes,
                stuck_bytes=one.stuck_bytes,
                segment_bytes=one.segment_bytes,
                holders=holdings(one.holders),
            )
            for one in holes
        ),
    )


def _with_free_space(row: DeviceMemory) -> DeviceMemory:
    # Adds the unreserved and usable bytes, if the device's size is known.
    capacity, stuck, pending = row.capacity_bytes, row.stuck_bytes, row.pending_bytes
    if capacity is None or capacity < row.reserved_bytes or stuck is None or pending is None:
        return row
    return row._replace(
        unreserved_bytes=capacity - row.reserved_bytes,
        usable_bytes=capacity - stuck - pending - (row.pooled_bytes or 0),
    )


def _readings(snapshot: MemorySnapshot, history: BlockWalk) -> Iterator[MemoryReading]:
    # Memory in use over time: the peak of each interval.
    unix_us = snapshot.operations.unix_us
    if not any(unix_us):
        return
    end = len(unix_us)
    for at in (*reading_times(history), end):
        unix_ns = unix_us[min(at, end - 1)] * _NS_PER_US
        yield MemoryReading(unix_ns, history.totals_bytes[at], history.reserved_bytes[at])


def _notes(snapshot: MemorySnapshot, history: BlockWalk) -> Iterator[str]:
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


def place_text(row: Holding | PinnedBy | GrowingLine | OutOfMemoryRow) -> str:
    """Return a code location for the middle of a sentence."""
    return describe_place(frame_of(row))


def kept_for(kept: KeptMemory) -> str:
    """Return the pool or stream of kept memory, and its main line, for the middle of a sentence."""
    what = pool_name(kept.pool) if kept.pool != SHARED else f"stream {kept.stream}"
    what += ", small requests" if kept.is_small else ""
    return f"{what}, where {place_text(kept.holders[0])} allocated" if kept.holders else what


def cause_name(row: OutOfMemoryRow) -> str:
    """Return the cause of a failed request in two words."""
    return row.cause.replace("_", " ")


def frame_of(row: Holding | PinnedBy | GrowingLine | OutOfMemoryRow) -> Frame:
    """Return a code location as a frame."""
    return Frame(kind=FrameType.PYTHON, function=row.function, file=row.file, line=row.line)


def holdings(holders: Sequence[LineHolding]) -> tuple[Holding, ...]:
    """Return rows of holders; the last row is the sum of those beyond the limit."""
    rows = [
        Holding(
            function=one.place.function,
            file=one.place.file,
            line=one.place.line,
            size_bytes=one.size_bytes,
            blocks=one.blocks,
        )
        for one in holders[:MAX_HOLDERS]
    ]
    if rest := holders[MAX_HOLDERS:]:
        size_bytes, blocks = sum(one.size_bytes for one in rest), sum(one.blocks for one in rest)
        rows.append(
            Holding(
                function=f"({len(rest):,} others)",
                file="",
                line=0,
                size_bytes=size_bytes,
                blocks=blocks,
            )
        )
    return tuple(rows)


def _pinned_by(pin: Pin) -> PinnedBy:
    place = pin.place
    return PinnedBy(place.function, place.file, place.line, *pin[1:])


def out_of_memory(failure: Failure) -> OutOfMemoryRow:
    """Return the row of a failed request."""
    place = failure.place
    return OutOfMemoryRow(
        unix_ns=failure.unix_ns or None,
        function=place.function,
        file=place.file,
        line=place.line,
        asked_bytes=failure.asked_bytes,
        free_bytes=failure.device_free_bytes,
        cause=failure.cause,
        reserved_bytes=failure.reserved_bytes,
        live_bytes=failure.live_bytes,
        hole_bytes=failure.hole_bytes,
        largest_hole_bytes=failure.largest_hole_bytes,
        elsewhere_bytes=failure.elsewhere_bytes,
        outside_bytes=failure.outside_bytes,
        holders=holdings(failure.holders),
        pins=tuple(map(_pinned_by, failure.pins[:MAX_HOLDERS])),
        leaks=holdings(failure.leaks),
        kept=tuple(
            KeptMemory(*one[:-1], holdings(one.holders)) for one in failure.kept[:MAX_HOLDERS]
        ),
    )


def _pools(segments: Iterable[Segment]) -> Iterator[MemoryPool]:
    pools: dict[tuple[object, ...], list[Segment]] = {}
    for segment in segments:
        key = (segment.pool, segment.stream, segment.is_small, segment.is_expandable)
        pools.setdefault(key, []).append(segment)
    for _, members in sorted(pools.items()):
        split, first = split_of(members), members[0]
        yield MemoryPool(
            pool=first.pool,
            stream=first.stream,
            small=first.is_small,
            expandable=first.is_expandable,
            segments=len(members),
            reserved_bytes=split.reserved,
            live_bytes=split.allocated,
            free_bytes=split.free,
            largest_hole_bytes=split.largest_hole,
        )


def failure_alarms(ooms: Iterable[OutOfMemoryRow]) -> Iterator[str]:
    """Yield a sentence for each failed request."""
    for oom in ooms:
        yield f"A request for {format_size(oom.asked_bytes)} failed in {place_text(oom)}: {cause_name(oom)}."


def _alarms(row: DeviceMemory) -> Iterator[str]:
    if _churns(row):
        yield (
            f"{row.segment_frees:,} segments were released to the device and "
            f"{row.segment_allocations:,} were taken in {format_duration(row.recorded_ns or 0)}: each "
            "of them waits for the device."
        )
    if stuck_bytes := _stuck_when_full(row):
        stuck = format_share(stuck_bytes / row.reserved_bytes)
        yield f"{stuck} of what is reserved is stuck between blocks, and the device is nearly full."


def _advice(row: DeviceMemory) -> Iterator[str]:
    stuck_bytes = _stuck_when_full(row)
    if stuck_bytes and row.expandable_segments is False:
        yield grow(stuck_bytes)
    if _churns(row):
        yield keep_cache(row.segment_frees or 0, "a loop")


def _churns(row: DeviceMemory) -> bool:
    cycles = min(row.segment_allocations or 0, row.segment_frees or 0)
    if cycles < _CHURN or not row.recorded_ns:
        return False
    return cycles / row.recorded_ns * _NS_PER_MINUTE >= _CHURN_PER_MINUTE


def _stuck_when_full(row: DeviceMemory) -> int:
    capacity, stuck = row.capacity_bytes, row.stuck_bytes or 0
    if not capacity or row.reserved_bytes <= capacity * _FULL_SHARE:
        return 0
    return stuck if stuck > row.reserved_bytes * _STUCK_SHARE else 0
