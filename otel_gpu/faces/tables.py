"""The tables of the document on a terminal or in a text file."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from otel_gpu.findings.document import Api, Balance, Blame, Load, OffCpu, Slot, ThreadState
from otel_gpu.findings.phases import phase_of
from otel_gpu.findings.phrases import CONTEXTS, THREAD_STATES
from otel_gpu.findings.words import (
    count_of,
    describe_thread,
    format_duration,
    format_share,
    format_size,
    printable,
    process_name,
)

MAX_ROWS: Mapping[str, int] = {
    "Calls": 25,
    "Device memory": 1_000,
    "Off the CPU": 15,
    "Who kept them waiting": 10,
}
Drawing = Callable[[Sequence[Any], bool], Sequence[RenderableType]]
"""Draws rows, and says of which process they are if that is asked for."""

_BAR_COLUMNS = 20
_NS_PER_S = 1e9


def api_table(rows: Sequence[Api], with_process: bool) -> list[Table]:
    """Calls per API."""
    cells = [
        (
            row,
            printable(row.api),
            f"{row.calls:,}",
            Text(f"{row.errors:,}", style="red" if row.errors else ""),
            format_duration(row.p50_ns),
            format_duration(row.p99_ns),
            format_duration(row.max_ns),
            format_duration(row.sum_ns),
            format_size(row.size_bytes) if row.size_bytes else "",
        )
        for row in rows
    ]
    return [
        draw_table("call< calls errors p50 p99 max total bytes", cells, with_process=with_process)
    ]


def off_cpu_table(rows: Sequence[OffCpu], with_process: bool) -> list[Table]:
    """Who was off the CPU, and why."""
    cells = [
        (
            row,
            CONTEXTS.get(row.context, row.context),
            _off_cpu_reason(row),
            format_duration(row.time_ns),
            f"{row.times:,}",
            _mean(row.time_ns, row.times),
        )
        for row in rows
    ]
    headings = "its_threads,_when< off_the_CPU< time times mean"
    return [draw_table(headings, cells, with_process=with_process)]


def blame_table(rows: Sequence[Blame], with_process: bool) -> list[Table]:
    """Who kept whom from running."""
    cells = [
        (
            row,
            describe_thread(row.culprit)
            + (" (its own)" if row.culprit.pid == row.process.pid else ""),
            printable(row.kind),
            format_duration(row.time_ns),
            f"{row.effects:,}",
        )
        for row in rows
    ]
    return [draw_table("who< how< time effects", cells, with_process=with_process)]


def slot_table(rows: Sequence[Slot], origin_unix_ns: int) -> Table:
    """What happened when."""
    allocates = any(row.allocate_calls for row in rows)
    most_ns = max((row.lost_ns for row in rows), default=0) or 1
    cells = []
    for row in rows:
        length_s = row.length_ns / _NS_PER_S
        allocations = (
            f"{row.allocate_calls / length_s:,.0f}",
            _mean(row.allocate_ns, row.allocate_calls),
        )
        cells.append(
            (
                row,
                f"+{(row.start_unix_ns - origin_unix_ns) / _NS_PER_S:g} s",
                f"{row.calls / length_s:,.0f}",
                _mean(row.call_ns, row.calls),
                *(allocations if allocates else ()),
                format_duration(row.run_queue_ns) if row.run_queue_ns else "",
                format_duration(row.lost_ns) if row.lost_ns else "",
                "#" * round(row.lost_ns / most_ns * _BAR_COLUMNS),
                str(phase_of(row)),
            )
        )
    more = "alloc+free/s mean " if allocates else ""
    return draw_table(
        f"from calls/s mean_call {more}run_queue lost < phase<", cells, with_process=False
    )


def balance_lines(rows: Sequence[Balance], _with_process: bool) -> list[Text]:
    """Device memory asked for and given back."""
    return [Text(_balance(row)) for row in rows]


def load_lines(load: Load) -> list[str]:
    """What the host said of its load."""
    lines = []
    if load.cpus:
        lines.append(f"load up to {load.most_load:.1f} on {count_of(load.cpus, 'CPU')}")
    if load.stalled:
        shares = (f"{name} {format_share(share)}" for name, share in load.stalled.items())
        lines.append(f"some thread waited for: {', '.join(shares)} of the time (PSI)")
    if load.swapped_in_pages or load.swapped_out_pages:
        lines.append(
            f"swapped in {count_of(load.swapped_in_pages, 'page')}, "
            f"out {count_of(load.swapped_out_pages, 'page')}"
        )
    lines += [
        f"cgroup {printable(row.cgroup)}: held back by its CPU quota for "
        f"{format_duration(row.throttled_ns)}, in {row.throttled_periods:,} of "
        f"{count_of(row.periods, 'period')}"
        for row in load.throttled
    ]
    return lines


def draw_table(headings: str, rows: Sequence[tuple[Any, ...]], *, with_process: bool) -> Table:
    """Draw rows, each of what it is about and its cells; ``<`` marks columns of text."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if with_process:
        table.add_column("process", no_wrap=True)
    for heading in headings.split(" "):
        justify: Any = "left" if heading.endswith("<") else "right"
        title = heading.removesuffix("<").replace("_", " ")
        table.add_column(title, justify=justify, no_wrap=True)
    for about, *cells in rows:
        first = [process_name(about.process)] if with_process else []
        # Never markup: much of it was named by the traced.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in (*first, *cells)))
    return table


def _balance(row: Balance) -> str:
    kept_bytes = row.allocated_bytes - row.freed_bytes
    word = "more" if kept_bytes > 0 else "less"
    held = f"; {format_size(abs(kept_bytes))} {word} is held at the end than at the beginning"
    return (
        f"{process_name(row.process)}: {count_of(row.allocations, 'allocation')} of "
        f"{format_size(row.allocated_bytes)}, {count_of(row.frees, 'free')} of "
        f"{format_size(row.freed_bytes)}{held if kept_bytes else ''}"
    )


def _off_cpu_reason(row: OffCpu) -> str:
    words = THREAD_STATES.get(row.state, THREAD_STATES[ThreadState.BLOCKED])
    if row.state == ThreadState.RUN_QUEUE:
        return words
    return f"{words}: {printable(row.reason) or 'unknown'}"


def _mean(sum_ns: float, count: float) -> str:
    return format_duration(sum_ns / count) if count else ""
