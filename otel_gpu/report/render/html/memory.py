"""Memory of devices on a page: over time, by part, and by holder."""

from collections.abc import Iterator, Sequence

from otel_gpu.report.document import Document
from otel_gpu.report.memory.snapshot import frame_of, kept_for
from otel_gpu.report.memory.types import (
    ChurnRow,
    DeviceMemory,
    FileHolder,
    GrowingLine,
    Holding,
    MemoryReading,
    OutOfMemoryRow,
    PinnedBy,
    PinnedHoleRow,
    SegmentSize,
)
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.html.charts import LOST, Chart
from otel_gpu.report.render.html.shapes import WIDTH, Rectangle, ShareBar, SharePart
from otel_gpu.report.render.html.tables import HtmlTable, table_of
from otel_gpu.report.render.text.memory import file_text, memory_parts, places_text, size_class
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_offset,
    format_share,
    format_size,
)
from otel_gpu.report.wording.phrases import API, DATA, MEMORY
from otel_gpu.report.wording.sentences import FrameLine, Name

MOST_DEVICES = 24
MOST_HELD = 20
MOST_FAILURES = 4

_MOST_COLUMNS = 200
_HEIGHT = 10.0
_GAP = 0.3
_RESERVED = "api"
# In the order of ``memory_parts``.
_COLOURS = (MEMORY, API, MEMORY, DATA, LOST, "steady", "other")
_NS_PER_S = 1e9


def name_of_memory(row: DeviceMemory, document: Document) -> object:
    """Return process, device and layer of a row."""
    process = next((one for one in document.programs if one.pid == row.pid), None)
    owner = process if process is not None else f"process {row.pid}" if row.pid else ""
    text = f"evice {row.device}, as its {row.layer} says"
    return (owner, f", d{text}") if owner else f"D{text}"


def place_of_holding(row: Holding | PinnedBy | OutOfMemoryRow | GrowingLine) -> object:
    """Return a code location, or the text in its place."""
    if not row.file:
        return Name(row.function)
    return FrameLine(frame_of(row))


def memory_charts(row: DeviceMemory) -> Iterator[Chart]:
    """Yield memory in use and reserved over time, with failed requests."""
    readings = row.readings
    if len(readings) < 2 or length_of_memory(row) <= 0:  # noqa: PLR2004 -- two ends
        return
    columns = list(_columns(readings, length_of_memory(row)))
    most = max(one.reserved_bytes for *_, one in columns)
    scale = max(most, row.peak_bytes or 0, 1)
    for name, tone, field in (
        ("In use", MEMORY, "live_bytes"),
        ("Reserved", _RESERVED, "reserved_bytes"),
    ):
        sizes = [getattr(one, field) for *_, one in columns]
        about = f"{name} over time; at most {format_size(max(sizes))}"
        blocks = list(
            _draw(row=row, columns=columns, tone=tone, parts=[size / scale for size in sizes])
        )
        yield Chart(
            label=name,
            kind="chart",
            about=about,
            blocks=blocks,
            tone=tone,
            note=f"up to {format_size(max(sizes))}",
        )
    if marks := list(_marks(row)):
        about = f"When requests failed: {count_of(len(marks), 'mark')}"
        yield Chart(
            label="Out of memory", kind="marks", about=about, blocks=marks, tone=LOST, height=20
        )


def length_of_memory(row: DeviceMemory) -> int:
    """Return the observed time in nanoseconds, up to the last failed request."""
    if not row.readings:
        return 0
    ends = (row.readings[-1].unix_ns, *(oom.unix_ns or 0 for oom in row.ooms))
    return max(ends) - row.readings[0].unix_ns


def memory_shares(row: DeviceMemory) -> list[SharePart]:
    """Return the parts of the reserved memory; empty ones are omitted."""
    # Some sources lack the last parts.
    shares = zip(_COLOURS, memory_parts(row), strict=False)
    whole = row.reserved_bytes or 1
    return [
        SharePart(tone=tone, name=name, share=size / whole, beside=format_size(size))
        for tone, (name, size) in shares
        if size
    ]


def holding_table(rows: Sequence[Holding], whole_bytes: int | None, about: str) -> HtmlTable:
    """Return holders, as shares of a whole."""
    whole = whole_bytes or 1
    columns = (
        fields.text("where", place_of_holding),
        fields.figure("bytes", "size_bytes", format_size),
        fields.figure("share", lambda one: one.size_bytes / whole, format_share),
        Field("", lambda one: Cell(ShareBar(MEMORY, one.size_bytes), one.size_bytes), is_text=True),
        fields.figure("blocks", "blocks", fields.in_full),
    )
    return table_of(HtmlTable(about, columns), rows, most=MOST_HELD)


def file_table(rows: Sequence[FileHolder]) -> HtmlTable:
    """Return files, with their functions that hold the most."""
    columns = (
        fields.text("where", file_text),
        fields.figure("bytes", "size_bytes", format_size),
        Field("", lambda one: Cell(ShareBar(MEMORY, one.size_bytes), one.size_bytes), is_text=True),
        fields.figure("blocks", "blocks", fields.in_full),
    )
    return table_of(HtmlTable("Files that hold memory in the end", columns), rows, most=MOST_HELD)


def churn_table(rows: Sequence[ChurnRow]) -> HtmlTable:
    """Return the most allocated sizes, and their main allocating lines."""
    columns = (
        fields.figure("size", "block_bytes", format_size),
        fields.figure("blocks", "blocks", fields.in_full),
        fields.figure("bytes", "size_bytes", format_size),
        fields.text("most of them", lambda one: places_text(one.holders)),
    )
    return table_of(HtmlTable("Sizes of which most was allocated", columns), rows, most=MOST_HELD)


def segment_table(rows: Sequence[SegmentSize]) -> HtmlTable:
    """Return segments by size."""
    columns = (
        fields.text("segments of", size_class),
        fields.figure("segments", "segments", fields.in_full),
        fields.figure("reserved", "reserved_bytes", format_size),
        fields.figure("in use", "live_bytes", format_size),
        fields.figure("can be released", "whole_free_bytes", format_size),
    )
    return table_of(HtmlTable("Segments by size", columns), rows, most=MOST_HELD)


def hole_table(rows: Sequence[PinnedHoleRow]) -> HtmlTable:
    """Return the largest holes, and the holders of the blocks beside them."""
    columns = (
        fields.text("blocks beside it", lambda one: places_text(one.holders)),
        fields.figure("stuck", "stuck_bytes", format_size),
        fields.figure("of a segment of", "segment_bytes", format_size),
    )
    return table_of(HtmlTable("The largest holes", columns), rows, most=MOST_HELD)


def pin_table(rows: Sequence[PinnedBy]) -> HtmlTable:
    """Return the lines whose blocks keep holes apart."""
    columns = (
        fields.text("where", place_of_holding),
        fields.figure("holes beside them", "hole_bytes", format_size),
        fields.figure("blocks", "blocks", fields.in_full),
        fields.figure("bytes", "size_bytes", format_size),
    )
    return table_of(HtmlTable("Blocks that keep holes apart", columns), rows, most=MOST_HELD)


def growth_table(rows: Sequence[GrowingLine]) -> HtmlTable:
    """Return the lines whose memory grows, with the quality of the fit."""
    columns = (
        fields.text("where", place_of_holding),
        fields.figure("per second", "bytes_per_s", format_size),
        fields.figure("R²", "r_squared", "{:.3f}".format),
        fields.figure("readings", "readings", fields.in_full),
        fields.text("full in", _horizon),
    )
    return table_of(HtmlTable("Lines that hold more and more", columns), rows, most=MOST_HELD)


def window_table(row: DeviceMemory) -> HtmlTable:
    """Return allocating calls over time."""
    origin_ns = row.windows[0].start_unix_ns if row.windows else 0
    columns = (
        Field(
            "from",
            lambda one: Cell(format_offset(one.start_unix_ns, origin_ns), one.start_unix_ns),
        ),
        fields.figure("calls", "calls", fields.in_full),
        fields.figure("mean", "mean_ns", format_duration),
        fields.figure("longest", "max_ns", format_duration),
        Field("", lambda one: Cell(ShareBar(MEMORY, one.max_ns), one.max_ns), is_text=True),
        fields.figure("bytes", "size_bytes", format_size),
        fields.figure("frees", "frees", fields.in_full),
    )
    return table_of(HtmlTable("Calls that allocate, over time", columns), row.windows)


def failure_facts(oom: OutOfMemoryRow) -> Iterator[tuple[str, str]]:
    """Yield the memory state of a failed request."""
    yield "Free on the device", _size(oom.free_bytes)
    yield (
        "Reserved",
        f"{format_size(oom.reserved_bytes)}, of which {format_size(oom.live_bytes)} in use",
    )
    yield (
        "Free where it could serve",
        f"{format_size(oom.hole_bytes)}, the largest piece {_size(oom.largest_hole_bytes)}",
    )
    if oom.elsewhere_bytes:
        yield "Free for others only", format_size(oom.elsewhere_bytes)
    for kept in oom.kept:
        yield f"Kept for {kept_for(kept)}", format_size(kept.free_bytes)
    if oom.outside_bytes:
        yield "Held by others", f"at least {format_size(oom.outside_bytes)}"


def known_of_memory(row: DeviceMemory) -> Iterator[str]:
    """Yield the coverage of the data, if it is not complete."""
    if row.before_bytes:
        yield f"{format_size(row.before_bytes)} is in use since before the attach."
    if row.unknown_bytes:
        yield f"Where {format_size(row.unknown_bytes)} in use was allocated is not known."
    if row.coverage is not None and row.coverage < 1:
        yield f"In {row.coverage:.1%} of its reports the allocator's total was what had been seen."


def _size(size_bytes: int | None) -> str:
    return "not known" if size_bytes is None else format_size(size_bytes)


def _horizon(row: GrowingLine) -> str:
    return "" if row.full_in_s is None else format_duration(row.full_in_s * _NS_PER_S)


def _columns(
    readings: Sequence[MemoryReading], length_ns: int
) -> Iterator[tuple[float, float, MemoryReading]]:
    # Left edge and width of each of a few intervals, with the reading of its peak.
    start_ns, step = readings[0].unix_ns, -(-len(readings) // _MOST_COLUMNS)
    for first in range(0, len(readings), step):
        part = readings[first : first + step]
        after = readings[min(first + step, len(readings) - 1)].unix_ns
        left = (part[0].unix_ns - start_ns) / length_ns * WIDTH
        width = (after - part[0].unix_ns) / length_ns * WIDTH
        yield (
            min(left, WIDTH - _GAP),
            max(width, _GAP),
            max(part, key=lambda one: (one.live_bytes, one.reserved_bytes)),
        )


def _draw(
    row: DeviceMemory,
    columns: Sequence[tuple[float, float, MemoryReading]],
    tone: str,
    parts: Sequence[float],
) -> Iterator[Rectangle]:
    origin_ns = row.readings[0].unix_ns
    for (left, width, one), part in zip(columns, parts, strict=True):
        height = min(1.0, part) * _HEIGHT
        used, reserved = format_size(one.live_bytes), format_size(one.reserved_bytes)
        title = f"{format_offset(one.unix_ns, origin_ns)}: {used} in use, {reserved} reserved"
        if height > 0:
            yield Rectangle(
                tone=tone, left=left, width=width, top=_HEIGHT - height, height=height, title=title
            )


def _marks(row: DeviceMemory) -> Iterator[Rectangle]:
    start_ns, length_ns = row.readings[0].unix_ns, length_of_memory(row)
    for number, oom in enumerate(row.ooms):
        if oom.unix_ns is None or not 0 <= oom.unix_ns - start_ns <= length_ns:
            continue
        left = min((oom.unix_ns - start_ns) / length_ns * WIDTH, WIDTH - _GAP)
        title = f"Request {number + 1}: {format_size(oom.asked_bytes)}, {oom.cause}"
        yield Rectangle("", left, _GAP, kind="mark mark-high", title=title)
