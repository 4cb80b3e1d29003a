"""What holds the memory of a device, and why it ran out, as text."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from rich.console import RenderableType
from rich.text import Text

from otel_gpu.faces import fields
from otel_gpu.faces.fields import Field
from otel_gpu.faces.tables import draw_table
from otel_gpu.findings.device_memory import (
    Growth,
    Holding,
    Layer,
    Memory,
    MemoryPool,
    OutOfMemory,
)
from otel_gpu.findings.memory_rows import place_text
from otel_gpu.findings.words import (
    count_of,
    format_duration,
    format_share,
    format_size,
    format_time,
)

_MAX_ROWS = 10


def memory_sections(row: Memory) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    """Yield headings, and what stands below each: what went wrong first."""
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
        # What calls took and gave back is said elsewhere.
        return
    split = draw_table(_SPLIT, _parts(row))
    yield f"Memory of {of}, as its {row.layer} holds it", [split, *_room(row), *_segments(row)]
    if row.peak_bytes and row.holders:
        # Read now and then: the peak may have been between two readings.
        held = min(row.peak_bytes, sum(one.size_bytes for one in row.holders))
        yield f"Memory of {of} at its peak: {_peak(row)}", _table(row.holders, held)
    if row.end_holders:
        yield f"Memory of {of} in the end", _table(row.end_holders, row.live_bytes)
    if row.leaks:
        yield "Allocated in each phase, and never freed", _table(row.leaks, row.live_bytes)
    if row.growth:
        yield f"Memory of {of}: what holds more and more", [*map(_growth, row.growth)]
    if row.churn:
        length = f" in {format_duration(row.recorded_ns)}" if row.recorded_ns else ""
        total = sum(one.size_bytes for one in row.churn)
        counts = f"{count_of(row.allocations, 'block')}, {count_of(row.frees, 'free')}"
        yield f"Allocated while it was recorded{length}: {counts}", _table(row.churn, total)


_WINDOWS: tuple[Field, ...] = (
    fields.text("from (UTC)", lambda row: format_time(row.start_unix_ns)),
    fields.figure("calls", "calls", fields.in_full),
    fields.figure("mean", "mean_ns", format_duration),
    fields.figure("max", "max_ns", format_duration),
    fields.figure("bytes", "size_bytes", format_size),
    fields.figure("frees", "frees", fields.in_full),
)


def _segments(row: Memory) -> Iterator[RenderableType]:
    if row.pools:
        pools = sorted(row.pools, key=lambda one: -one.reserved_bytes)[:_MAX_ROWS]
        yield draw_table(_POOLS, pools)


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


def memory_parts(row: Memory) -> tuple[tuple[str, int | None], ...]:
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
        ("free, can be given back", row.whole_free_bytes),
        ("free, where is not known", cached),
    )


def _room(row: Memory) -> Iterator[Text]:
    reserved = max(row.reserved_bytes, row.peak_reserved_bytes or 0)
    if row.capacity_bytes and row.capacity_bytes >= reserved:
        room = format_size(row.capacity_bytes - reserved)
        whole = format_size(row.capacity_bytes)
        yield Text(f"Of {whole} at most {format_size(reserved)} were reserved: {room} were left.")


def _parts(row: Memory) -> list[tuple[str, int, float]]:
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


def _peak(row: Memory) -> str:
    when = f" at {format_time(row.peak_unix_ns)} UTC" if row.peak_unix_ns else ""
    size_bytes = row.peak_bytes or 0
    return f"{size_bytes:,} bytes ({format_size(size_bytes)}){when}"


def _growth(row: Growth) -> Text:
    full = format_duration(row.full_in_s * 1e9) if row.full_in_s is not None else ""
    return Text(
        f"{place_text(row)}: {format_size(row.bytes_per_s)} more in each second (R\N{SUPERSCRIPT TWO} "
        f"{row.r_squared:.2f} of {row.readings} readings)"
        + (f"; at that rate the device is full in {full}" if full else "")
    )


def _failure(oom: OutOfMemory) -> Iterator[RenderableType]:
    yield Text(f"{place_text(oom)} asked for {_exact(oom.asked_bytes)}: {oom.cause}", style="bold")
    if oom.free_bytes is not None:
        yield Text(f"free on the device {_exact(oom.free_bytes)}")
    yield Text(f"reserved {_exact(oom.reserved_bytes)}, in use {_exact(oom.live_bytes)}")
    largest = oom.largest_hole_bytes
    known = f", the largest piece {_exact(largest)}" if largest is not None else ""
    yield Text(f"free where it could have been served {_exact(oom.hole_bytes)}{known}")
    if oom.elsewhere_bytes:
        yield Text(f"free for other streams, pools or sizes only {_exact(oom.elsewhere_bytes)}")
    if oom.outside_bytes:
        yield Text(f"held outside of this allocator, at least {_exact(oom.outside_bytes)}")
    for pin in oom.pins[:_MAX_ROWS]:
        blocks = f"{count_of(pin.blocks, 'block')} of {format_size(pin.size_bytes)}"
        yield Text(f"{place_text(pin)}: {blocks} beside holes of {format_size(pin.hole_bytes)}")
    yield from _table(oom.holders, oom.live_bytes)


def _exact(size_bytes: int) -> str:
    return f"{size_bytes:,} ({format_size(size_bytes)})"
