"""The table of calls on the screen of ``top``: over the last interval, and since the start."""

import math
from collections.abc import Callable, Iterable, Mapping

from rich.text import Text

from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.top.columns import TopColumn, draw_columns
from otel_gpu.report.top.screen import ApiLine
from otel_gpu.report.wording.formats import (
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
"""The sort keys of the table of calls: the interval first."""


def draw_calls(
    apis: Iterable[ApiLine],
    sort: str,
    interval_ns: int,
    *,
    width: int,
    space: int,
    with_process: bool,
) -> list[Text]:
    """Draw the ``space`` first rows by one of ``SORTS``; columns that do not fit are omitted."""
    lines = sorted(apis, key=SORTS[sort], reverse=True)[:space]
    if not lines:
        return []

    def column(field: Field, rank: int, part: str, group: str = "") -> TopColumn:
        cells = [_draw(field, line, part) for line in lines]
        return TopColumn(
            title=field.heading, rank=rank, cells=cells, is_left=field.is_text, group=group
        )

    length_ns = max(1, interval_ns)
    share = Field("time", lambda api: Cell(format_share(api.sum_ns / length_ns)))
    now = (
        *((share, 3), (fields.P50, 7), (fields.P99, 2), (fields.LONGEST, 6), (fields.ERRORS, 9)),
    )
    total = (
        *((fields.CALLS, 10), (fields.P50, 14), (fields.P99, 11), (fields.LONGEST, 12)),
        *((fields.ERRORS, 4), (fields.SIZE, 13)),
    )
    last = f"last {format_duration(interval_ns)}"
    columns = [
        column(_CALL, 0, "total"),
        *([column(_PROCESS, 5, "total")] if with_process else []),
        column(field=_CALL_RATE, rank=1, part="", group=last),
        *(column(field=field, rank=rank, part="now", group=last) for field, rank in now),
        column(field=_BYTE_RATE, rank=8, part="", group=last),
        *(
            column(field=field, rank=rank, part="total", group="since start")
            for field, rank in total
        ),
    ]
    return draw_columns([one for one in columns if any(cell.plain for cell in one.cells)], width)


def _draw(field: Field, line: ApiLine, part: str) -> Text:
    row = getattr(line, part) if part else line
    if row is None:
        return Text("")
    cell = field.cell(row)
    style = "dim" if line.now is None else "red" if cell.tone else ""
    return Text(str(cell.shown), style=style)


_CALL = fields.text("call", lambda api: shorten(api.api))
_PROCESS = fields.text("process", lambda api: short_process(api.process))
_CALL_RATE = Field("calls/s", lambda line: Cell(f"{line.calls_per_s:,.0f}"))
_BYTE_RATE = Field(
    "bytes/s", lambda line: Cell(format_size(line.bytes_per_s) if line.bytes_per_s else "")
)
