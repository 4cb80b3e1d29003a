"""Memory of a device, and why it ran out, as text."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from rich.console import RenderableType
from rich.text import Text

from otel_gpu.report.memory.snapshot import cause_name, kept_for, place_text
from otel_gpu.report.memory.types import (
    DeviceMemory,
    FileHolder,
    GrowingLine,
    Holding,
    Layer,
    MemoryPool,
    OutOfMemoryRow,
    SegmentSize,
)
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Field
from otel_gpu.report.render.text.tables import draw_table
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_share,
    format_size,
    format_time,
    printable,
    short_function,
)

_MAX_ROWS = 10
_LEAST_HOLE_BYTES = 32 << 20


def memory_sections(row: DeviceMemory) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    """Yield headings with their contents: problems first."""
    of = f"device {row.device}" + (f", process {row.pid}" if row.pid is not None else "")
    if row.alarms:
        alarms = [Text(text, style="bold red") for text in row.alarms]
        do = [Text(f"do: {text}", style="green") for text in row.advice]
        yield f"Memory of {of}: what went wrong", [*alarms, *do]
    for oom in row.ooms[-1:]:
        yield f"Memory of {of}: the request that failed", list(_failure(oom))
    if len(row.windows) > 1:
        yield f"Memory of {of}: calls that allocate", [draw_table(_WINDOWS, row.windows)]
    if row.layer != Layer.FRAMEWORK:
        # The balance of calls is shown elsewhere.
        return
    split = draw_table(_SPLIT, _parts(row))
    yield (
        f"Memory of {of}, as its {row.layer} holds it",
        [split, *_free_space(row), *_segments(row)],
    )
    yield from _held(row, of)
    if row.leaks:
        yield "Allocated in each phase, and never freed", _table(row.leaks, row.live_bytes)
    if row.growth:
        yield f"Memory of {of}: what holds more and more", [*map(_growth, row.growth)]
    yield from _churned(row)


def _held(row: DeviceMemory, of: str) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    if row.peak_bytes and row.holders:
        # Readings are periodic: the peak can be between two of them.
        held = min(row.peak_bytes, sum(one.size_bytes for one in row.holders))
        yield f"Memory of {of} at its peak: {_peak(row)}", _table(row.holders, held)
    if row.end_holders:
        yield f"Memory of {of} in the end", _table(row.end_holders, row.live_bytes)
    if row.files:
        yield f"Memory of {of} in the end, by file", [draw_table(_FILES, row.files)]
    if row.largest_blocks:
        yield "The largest blocks in use", _table(row.largest_blocks, row.live_bytes)


def _churned(row: DeviceMemory) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    if row.churn:
        length = f" in {format_duration(row.recorded_ns)}" if row.recorded_ns else ""
        total = sum(one.size_bytes for one in row.churn)
        counts = f"{count_of(row.allocations, 'block')}, {count_of(row.frees, 'free')}"
        yield f"Allocated while it was recorded{length}: {counts}", _table(row.churn, total)
    if row.churn_sizes:
        sizes = row.churn_sizes[:_MAX_ROWS]
        yield "Sizes of which most was allocated", [draw_table(_CHURN_SIZES, sizes)]


_WINDOWS: tuple[Field, ...] = (
    fields.figure("from (UTC)", "start_unix_ns", format_time),
    fields.figure("calls", "calls", fields.in_full),
    fields.figure("mean", "mean_ns", format_duration),
    fields.figure("max", "max_ns", format_duration),
    fields.figure("bytes", "size_bytes", format_size),
    fields.figure("frees", "frees", fields.in_full),
)


def _segments(row: DeviceMemory) -> Iterator[RenderableType]:
    if row.pools:
        pools = sorted(row.pools, key=lambda one: -one.reserved_bytes)[:_MAX_ROWS]
        yield draw_table(_POOLS, pools)
    if row.segment_sizes:
        yield draw_table(_SEGMENT_SIZES, row.segment_sizes)
    if holes := [one for one in row.holes if one.stuck_bytes >= _LEAST_HOLE_BYTES]:
        yield draw_table(_HOLES, holes[:_MAX_ROWS])


def _pool(one: MemoryPool) -> str:
    kind = "small" if one.small else "large"
    private = "" if one.pool == (0, 0) else f", pool {one.pool[0]}.{one.pool[1]}"
    return f"{kind}, stream {one.stream}{private}{', expandable' if one.expandable else ''}"


_POOLS: tuple[Field, ...] = (
    fields.text("segments that serve requests", _pool),
    fields.figure("segments", "segments", fields.in_full),
    fields.figure("reserved", "reserved_bytes", format_size),
    fields.figure("in use", "live_bytes", format_size),
    fields.figure("free", "free_bytes", format_size),
    fields.figure("largest hole", "largest_hole_bytes", format_size),
)


def size_class(one: SegmentSize) -> str:
    """Return the size of segments, in the binary units that allocators round to."""
    if one.below_bytes is None:
        return f"{_binary(one.least_bytes)} or more"
    if not one.least_bytes:
        return f"less than {_binary(one.below_bytes)}"
    return f"{_binary(one.least_bytes)} to {_binary(one.below_bytes)}"


def _binary(size_bytes: int) -> str:
    return f"{size_bytes >> 30} GiB" if size_bytes >= 1 << 30 else f"{size_bytes >> 20} MiB"


def file_text(one: FileHolder) -> str:
    """Return a file with its functions that hold the most, for the middle of a sentence."""
    functions = ", ".join(printable(short_function(name)) for name in one.functions)
    return f"{printable(one.file)}: {functions}" if one.file else functions


def places_text(rows: Sequence[Holding]) -> str:
    """Return code locations, the largest first."""
    return "; ".join(map(place_text, rows))


_SEGMENT_SIZES: tuple[Field, ...] = (
    fields.text("segments of", size_class),
    fields.figure("segments", "segments", fields.in_full),
    fields.figure("reserved", "reserved_bytes", format_size),
    fields.figure("in use", "live_bytes", format_size),
    fields.figure("can be released", "whole_free_bytes", format_size),
)
_HOLES: tuple[Field, ...] = (
    fields.text("the largest holes: blocks beside them", lambda one: places_text(one.holders)),
    fields.figure("stuck", "stuck_bytes", format_size),
    fields.figure("of a segment of", "segment_bytes", format_size),
)
_FILES: tuple[Field, ...] = (
    fields.figure("bytes", "size_bytes", format_size),
    fields.figure("blocks", "blocks", fields.in_full),
    fields.text("where", file_text),
)
_CHURN_SIZES: tuple[Field, ...] = (
    fields.figure("size", "block_bytes", format_size),
    fields.figure("blocks", "blocks", fields.in_full),
    fields.figure("bytes", "size_bytes", format_size),
    fields.text("most of them", lambda one: places_text(one.holders)),
)


def memory_parts(row: DeviceMemory) -> tuple[tuple[str, int | None], ...]:
    """Return the parts of the reserved memory, and their sizes; None: not known."""
    cached = None if row.stuck_bytes is not None else row.reserved_bytes - row.live_bytes
    return (
        ("asked for", row.requested_bytes),
        ("rounding", row.rounding_bytes),
        (
            "in use, asked for is not known",
            None if row.requested_bytes is not None else row.live_bytes,
        ),
        ("freed, waits for a stream", row.pending_bytes or None),
        ("free between blocks (stuck)", row.stuck_bytes),
        ("free, kept by private pools", row.pooled_bytes or None),
        ("free, can be released", row.whole_free_bytes),
        ("free, where is not known", cached),
    )


def _free_space(row: DeviceMemory) -> Iterator[Text]:
    reserved = max(row.reserved_bytes, row.peak_reserved_bytes or 0)
    if row.capacity_bytes and row.capacity_bytes >= reserved:
        space = format_size(row.capacity_bytes - reserved)
        whole = format_size(row.capacity_bytes)
        yield Text(f"Of {whole} at most {format_size(reserved)} were reserved: {space} were left.")
    if row.unreserved_bytes is not None and row.usable_bytes is not None:
        yield Text(
            f"In the end {format_size(row.unreserved_bytes)} are not reserved, and blocks could have "
            f"{format_size(row.usable_bytes)} in all: what is stuck or waits for a stream is lost to them."
        )


def _parts(row: DeviceMemory) -> list[tuple[str, int, float]]:
    parts = (*memory_parts(row), ("all that is reserved", row.reserved_bytes))
    whole = row.reserved_bytes or 1
    return [(name, size, size / whole) for name, size in parts if size is not None]


_SPLIT: tuple[Field, ...] = (
    fields.text("of the reserved memory", itemgetter(0)),
    fields.figure("bytes", itemgetter(1), fields.in_full),
    fields.figure("", itemgetter(1), format_size),
    fields.figure("share", itemgetter(2), format_share),
)


def _table(rows: Sequence[Holding], whole_bytes: int) -> list[RenderableType]:
    shown = (
        fields.figure("bytes", "size_bytes", fields.in_full),
        fields.figure("share", lambda row: row.size_bytes / max(whole_bytes, 1), format_share),
        fields.figure("blocks", "blocks", fields.in_full),
        fields.text("where", place_text),
    )
    more = [Text(f"and {len(rows) - _MAX_ROWS:,} more")] if len(rows) > _MAX_ROWS else []
    return [draw_table(shown, rows[:_MAX_ROWS]), *more]


def _peak(row: DeviceMemory) -> str:
    when = f" at {format_time(row.peak_unix_ns)} UTC" if row.peak_unix_ns else ""
    size_bytes = row.peak_bytes or 0
    return f"{size_bytes:,} bytes ({format_size(size_bytes)}){when}"


def _growth(row: GrowingLine) -> Text:
    full = format_duration(row.full_in_s * 1e9) if row.full_in_s is not None else ""
    return Text(
        f"{place_text(row)}: {format_size(row.bytes_per_s)} more in each second (R\N{SUPERSCRIPT TWO} "
        f"{row.r_squared:.2f} of {row.readings} readings)"
        + (f"; at that rate the device is full in {full}" if full else "")
    )


def _failure(oom: OutOfMemoryRow) -> Iterator[RenderableType]:
    yield Text(
        f"{place_text(oom)} asked for {_exact(oom.asked_bytes)}: {cause_name(oom)}",
        style="bold",
    )
    if oom.free_bytes is not None:
        yield Text(f"free on the device {_exact(oom.free_bytes)}")
    yield Text(f"reserved {_exact(oom.reserved_bytes)}, in use {_exact(oom.live_bytes)}")
    largest = oom.largest_hole_bytes
    known = f", the largest piece {_exact(largest)}" if largest is not None else ""
    yield Text(f"free where it could have been served {_exact(oom.hole_bytes)}{known}")
    if oom.elsewhere_bytes:
        yield Text(f"free for other streams, pools or sizes only {_exact(oom.elsewhere_bytes)}")
    for kept in oom.kept[:_MAX_ROWS]:
        yield Text(
            f"kept for {kept_for(kept)}: {_exact(kept.free_bytes)} free, the largest piece "
            f"{format_size(kept.largest_hole_bytes)}"
        )
    if oom.outside_bytes:
        yield Text(f"held outside of this allocator, at least {_exact(oom.outside_bytes)}")
    for pin in oom.pins[:_MAX_ROWS]:
        blocks = f"{count_of(pin.blocks, 'block')} of {format_size(pin.size_bytes)}"
        yield Text(f"{place_text(pin)}: {blocks} beside holes of {format_size(pin.hole_bytes)}")
    yield from _table(oom.holders, oom.live_bytes)


def _exact(size_bytes: int) -> str:
    return f"{size_bytes:,} ({format_size(size_bytes)})"
