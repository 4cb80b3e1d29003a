"""Calls per API, and the balance of device memory."""

import math
from collections.abc import Iterable, Mapping, Sequence

from otel_gpu import wire
from otel_gpu.faces.html.bars import block, drawing
from otel_gpu.faces.html.elements import Child, Markup, element
from otel_gpu.faces.html.names import code_of, process_of
from otel_gpu.faces.html.phrases import API, MEMORY
from otel_gpu.faces.html.tables import MOST_ROWS, Cell, Column, bar_of, table
from otel_gpu.findings.model import ApiRow, Memory
from otel_gpu.findings.words import count_of, format_duration, format_size
from otel_gpu.probe_table import APIS

MOST_BALANCES = 24
_FULL_WIDTH = 100.0
_DIRECTIONS: Mapping[int, str] = {
    wire.FAMILY_ALLOCATE: "allocates on the device",
    wire.FAMILY_FREE: "frees on the device",
    wire.FAMILY_HOST_ALLOCATE: "allocates pinned host memory",
    wire.FAMILY_HOST_FREE: "frees pinned host memory",
}
_DIRECTION_BY_API: Mapping[tuple[str, str], str] = {
    (api.layer_name, api.name): _DIRECTIONS[api.family] for api in APIS if api.family in _DIRECTIONS
}


def call_table(rows: Sequence[ApiRow], *, with_process: bool) -> Markup:
    """Calls per process and API, those that took longest together first."""
    most_ns = max((row.sum_ns for row in rows), default=0) or 1
    columns = (
        Column("call", is_text=True),
        Column("process", is_text=True, is_shown=with_process),
        Column("calls"),
        Column("errors", about="Calls that returned an error"),
        Column("p50", about="Half of the calls took no longer"),
        Column("p99", about="99 of 100 calls took no longer"),
        Column("max", about="The longest call"),
        Column("total", about="All calls together"),
        Column("", is_text=True, about="Total, as a share of the largest"),
        Column("bytes", about="Copied, allocated or freed"),
    )
    shown = [_call_row(row, most_ns) for row in rows[:MOST_ROWS]]
    return table("Calls per API", columns, shown, count=len(rows))


def _call_row(row: ApiRow, most_ns: int) -> tuple[Cell, ...]:
    layer = element("span", row.layer, class_="quiet") if row.layer != "runtime" else None
    return (
        Cell([code_of(row.api), " ", layer]),
        Cell(process_of(row.process)),
        Cell(f"{row.calls:,}", row.calls),
        Cell(f"{row.errors:,}", row.errors, "bad" if row.errors else ""),
        _duration(row.p50_ns),
        _duration(row.p99_ns),
        _duration(row.max_ns),
        _duration(row.sum_ns),
        Cell(bar_of(API, row.sum_ns / most_ns), row.sum_ns),
        Cell(format_size(row.size_bytes) if row.size_bytes else "", row.size_bytes),
    )


def _duration(duration_ns: float) -> Cell:
    # Another tool may have counted calls and kept the duration of none.
    return Cell(format_duration(duration_ns), None if math.isnan(duration_ns) else duration_ns)


def memory_part(
    memory: Sequence[Memory], apis: Iterable[ApiRow], *, with_process: bool
) -> list[Markup]:
    """Device memory asked for against given back, per process and per API."""
    most_bytes = max((max(one.allocated_bytes, one.freed_bytes) for one in memory), default=0) or 1
    largest = sorted(memory, key=lambda one: -abs(one.allocated_bytes - one.freed_bytes))
    parts = [_balance(one, most_bytes) for one in largest[:MOST_BALANCES]]
    if left_out := len(memory) - len(parts):
        parts.append(element("p", f"{left_out:,} more processes.", class_="quiet"))
    rows = [row for row in apis if (row.layer, row.api) in _DIRECTION_BY_API]
    if rows:
        parts.append(_memory_table(rows, with_process=with_process))
    return parts


def _balance(row: Memory, most_bytes: int) -> Markup:
    kept_bytes = row.allocated_bytes - row.freed_bytes
    if kept_bytes > 0:
        result: Child = [element("b", f"{format_size(kept_bytes)} more"), " in use at the end"]
    elif kept_bytes < 0:
        result = [element("b", f"{format_size(-kept_bytes)} less"), " in use at the end"]
    else:
        result = "all that was allocated was freed"
    return element(
        "article",
        element("h3", process_of(row.process), ": ", result),
        _flow("allocated", row.allocations, row.allocated_bytes, most_bytes),
        _flow("freed", row.frees, row.freed_bytes, most_bytes),
        class_="card balance",
    )


def _flow(word: str, count: int, size_bytes: int, most_bytes: int) -> Markup:
    width = size_bytes / most_bytes * _FULL_WIDTH
    return element(
        "div",
        element("span", word),
        drawing("share-bar", "", block(MEMORY, 0.0, width)),
        element("span", f"{format_size(size_bytes)} in {count_of(count, 'call')}"),
        class_="flow",
    )


def _memory_table(rows: Sequence[ApiRow], *, with_process: bool) -> Markup:
    columns = (
        Column("call", is_text=True),
        Column("process", is_text=True, is_shown=with_process),
        Column("what it does", is_text=True),
        Column("calls"),
        Column("errors"),
        Column("bytes"),
        Column("mean"),
        Column("max"),
    )
    cells = [
        (
            Cell(code_of(row.api)),
            Cell(process_of(row.process)),
            Cell(_DIRECTION_BY_API[row.layer, row.api]),
            Cell(f"{row.calls:,}", row.calls),
            Cell(f"{row.errors:,}", row.errors, "bad" if row.errors else ""),
            Cell(format_size(row.size_bytes) if row.size_bytes else "", row.size_bytes),
            _duration(row.sum_ns / max(1, row.calls)),
            _duration(row.max_ns),
        )
        for row in rows[:MOST_ROWS]
    ]
    return table("Calls that allocate and free", columns, cells, count=len(rows))
