"""The tables of the document on a terminal or in a text file."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from otel_gpu.report.document import (
    Balance,
    CulpritTime,
    Load,
    OffCpu,
    ThreadState,
    TimeBucket,
    WaitReason,
    Window,
)
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.text.fitting import FittedTable, TextColumn
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_share,
    format_size,
    printable,
    process_name,
)
from otel_gpu.report.wording.phrases import LOST_CPU, OWN_STOP, THREAD_STATES
from otel_gpu.report.wording.sentences import plain

_BAR_COLUMNS = 20


def over_time_table(rows: Sequence[TimeBucket | Window], start_unix_ns: int) -> FittedTable:
    """Return the table of time buckets, with offsets from the start of a window."""
    slots = [row for row in rows if isinstance(row, TimeBucket)]
    allocates = any(row.allocate_calls for row in slots)
    most_ns = max((row.lost_ns for row in slots), default=0) or 1
    shown = (
        *(fields.CALL_RATE, fields.MEAN_CALL),
        *((fields.ALLOCATION_RATE, fields.MEAN_ALLOCATION) if allocates else ()),
        *(fields.RUN_QUEUE, fields.LOST),
        fields.text("", lambda row: "#" * round(row.lost_ns / most_ns * _BAR_COLUMNS)),
    )
    return draw_table(fields.over_time(start_unix_ns, shown), rows)


def load_lines(load: Load) -> list[str]:
    """Return the lines of the host's load."""
    lines = []
    if load.cpus:
        lines.append(f"load up to {load.most_load:.1f} on {count_of(load.cpus, 'CPU')}")
    if load.stalled:
        shares = (f"{name} {format_share(share)}" for name, share in load.stalled.items())
        lines.append(f"some thread waited for: {', '.join(shares)} of the time (PSI)")
    if load.swapped_in_pages or load.swapped_out_pages:
        swapped_in = f"swapped in {count_of(load.swapped_in_pages, 'page')}"
        lines.append(f"{swapped_in}, out {count_of(load.swapped_out_pages, 'page')}")
    for row in load.throttled:
        held = f"held back by its CPU quota for {format_duration(row.throttled_ns)}"
        periods = f"{row.throttled_periods:,} of {count_of(row.periods, 'period')}"
        lines.append(f"cgroup {printable(row.cgroup)}: {held}, in {periods}")
    return lines


def draw_table(shown: Sequence[Field], rows: Iterable[object]) -> FittedTable:
    """Draw rows, with a column for each field that fits."""
    kept = [*rows]
    return FittedTable(
        [
            TextColumn(
                heading=field.heading,
                cells=[_draw(field.cell(row)) for row in kept],
                is_text=field.is_text,
                rank=field.rank,
                is_whole=not field.heading and field is not shown[0],
            )
            for field in shown
        ]
    )


def _draw(cell: Cell) -> Text:
    # Never markup: traced programs chose many of the names.
    shown = cell.shown if isinstance(cell.shown, tuple) else (cell.shown,)
    return Text(plain(shown), style="red" if cell.tone else "")


def balance_line(row: Balance) -> str:
    """Return device memory allocated and freed, in a line."""
    kept_bytes = row.allocated_bytes - row.freed_bytes
    word = "more" if kept_bytes > 0 else "less"
    held = f"; {format_size(abs(kept_bytes))} {word} is held at the end than at the beginning"
    allocated = f"{count_of(row.allocations, 'allocation')} of {format_size(row.allocated_bytes)}"
    freed = f"{count_of(row.frees, 'free')} of {format_size(row.freed_bytes)}"
    return f"{process_name(row.process)}: {allocated}, {freed}{held if kept_bytes else ''}"


def _who(row: CulpritTime) -> object:
    return (row.culprit, " (its own)" if row.culprit.pid == row.process.pid else "")


def _off_cpu_reason(row: OffCpu) -> str:
    words = THREAD_STATES.get(row.state, THREAD_STATES[ThreadState.BLOCKED])
    if row.state == ThreadState.RUN_QUEUE:
        return LOST_CPU if row.reason else words
    return OWN_STOP if row.reason == WaitReason.CAPTURE else f"{words}: {row.reason or 'unknown'}"


CALLS = (
    *(fields.CALL, fields.CALLS, fields.ERRORS, fields.P50, fields.P99, fields.LONGEST),
    *(fields.TOTAL, fields.SIZE),
)
EVENT_TIMES = (
    fields.text("device", lambda row: "not known" if row.device is None else str(row.device)),
    fields.TIMES._replace(heading="measured"),
    *(fields.P50, fields.P99, fields.LONGEST, fields.TOTAL),
)
OFF_CPU = (
    fields.WHEN._replace(heading="its threads, when"),
    fields.text("off the CPU", _off_cpu_reason, rank=0),
    *(fields.TIME, fields.TIMES, fields.MEAN),
)
CULPRITS = (fields.text("who", _who), fields.HOW, fields.TIME, fields.EFFECTS)
