"""The table of calls on the screen of ``top``: over the last interval, and since the start."""

import math
from collections.abc import Callable, Iterable, Mapping

from rich.text import Text

from otel_gpu.faces.columns import Column, draw_columns
from otel_gpu.findings.view import ApiLine
from otel_gpu.findings.words import (
    format_duration,
    format_share,
    format_size,
    short_process,
    shorten,
)


def _now(line: ApiLine, name: str) -> float:
    value = 0.0 if line.now is None else float(getattr(line.now, name))
    return 0.0 if math.isnan(value) else value


SORTS: Mapping[str, Callable[[ApiLine], tuple[float, ...]]] = {
    "time": lambda line: (_now(line, "sum_ns"), line.total.sum_ns),
    "calls": lambda line: (line.calls_per_s, line.total.calls),
    "p99": lambda line: (_now(line, "p99_ns"), line.total.max_ns),
    "max": lambda line: (_now(line, "max_ns"), line.total.max_ns),
    "errors": lambda line: (line.total.errors, line.total.sum_ns),
    "bytes": lambda line: (line.bytes_per_s, line.total.size_bytes),
}
"""What the table of calls can be sorted by: most of it in the interval first."""


def draw_calls(
    apis: Iterable[ApiLine],
    sort: str,
    interval_ns: int,
    *,
    width: int,
    room: int,
    with_process: bool,
) -> list[Text]:
    """
    Draw the table; nothing without calls.

    Args:
        apis: Its rows, in any order.
        sort: One of ``SORTS``.
        interval_ns: How long the last interval was.
        width: Of the terminal; columns that find no room are left out.
        room: How many rows there may be.
        with_process: Say whose the calls are.
    """
    lines = sorted(apis, key=SORTS[sort], reverse=True)[:room]
    if not lines:
        return []

    def cells(write: Callable[[ApiLine], str], style: str = "") -> list[Text]:
        return [
            Text(text, style="dim" if line.now is None else style if text.strip("0") else "")
            for line in lines
            for text in [write(line)]
        ]

    length_ns = max(1, interval_ns)
    now, total = f"last {format_duration(interval_ns)}", "since start"
    columns = [Column("call", 0, cells(lambda line: shorten(line.total.api)), is_left=True)]
    if with_process:
        names = cells(lambda line: short_process(line.total.process))
        columns.append(Column("process", 5, names, is_left=True))
    columns += [
        Column("calls/s", 1, cells(lambda line: f"{line.calls_per_s:,.0f}"), group=now),
        Column(
            "time", 3, cells(lambda line: format_share(_now(line, "sum_ns") / length_ns)), group=now
        ),
        Column("p50", 7, cells(lambda line: _of_now(line, "p50_ns")), group=now),
        Column("p99", 2, cells(lambda line: _of_now(line, "p99_ns")), group=now),
        Column("max", 6, cells(lambda line: _of_now(line, "max_ns")), group=now),
        Column("errors", 9, cells(lambda line: f"{_now(line, 'errors'):,.0f}", "red"), group=now),
        Column("bytes/s", 8, cells(lambda line: _bytes(line.bytes_per_s)), group=now),
        Column("calls", 10, cells(lambda line: f"{line.total.calls:,}"), group=total),
        Column("p50", 14, cells(lambda line: format_duration(line.total.p50_ns)), group=total),
        Column("p99", 11, cells(lambda line: format_duration(line.total.p99_ns)), group=total),
        Column("max", 12, cells(lambda line: format_duration(line.total.max_ns)), group=total),
        Column("errors", 4, cells(lambda line: f"{line.total.errors:,}", "red"), group=total),
        Column("bytes", 13, cells(lambda line: _bytes(line.total.size_bytes)), group=total),
    ]
    told = [column for column in columns if any(cell.plain for cell in column.cells)]
    return draw_columns(told, width)


def _of_now(line: ApiLine, name: str) -> str:
    return "" if line.now is None else format_duration(getattr(line.now, name))


def _bytes(size_bytes: float) -> str:
    return format_size(size_bytes) if size_bytes else ""
