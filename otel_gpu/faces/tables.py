"""The tables of a report on a terminal or in a text file."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.table import Table
from rich.text import Text

from otel_gpu import wire
from otel_gpu.findings.model import ApiRow, Blame, Load, Memory, OffCpu, Slot
from otel_gpu.findings.words import (
    count_of,
    describe_thread,
    format_duration,
    format_share,
    format_size,
    printable,
    process_name,
)

Justify = Literal["left", "right"]

_CONTEXTS = {
    wire.CONTEXT_GAP: "between calls",
    wire.CONTEXT_SYNCHRONIZE: "waiting for the GPU",
    wire.CONTEXT_CALL: "inside a call",
    wire.CONTEXT_OTHER: "makes no calls",
}
_BAR_COLUMNS = 20
_NS_PER_S = 1e9
# A phase is named after what takes this part of it.
_STALLED = 0.1
_MOSTLY = 0.5
_ALLOCATING = 0.2


def api_table(rows: Sequence[ApiRow], *, with_process: bool) -> Table:
    """Calls per API."""
    table = _table(
        ("call", "left"),
        ("calls", "right"),
        ("errors", "right"),
        ("p50", "right"),
        ("p99", "right"),
        ("max", "right"),
        ("total", "right"),
        ("bytes", "right"),
        first="process" if with_process else "",
    )
    for row in rows:
        table.add_row(
            *([Text(process_name(row.process))] if with_process else []),
            Text(printable(row.api)),
            f"{row.calls:,}",
            Text(f"{row.errors:,}", style="red" if row.errors else ""),
            format_duration(row.p50_ns),
            format_duration(row.p99_ns),
            format_duration(row.max_ns),
            format_duration(row.sum_ns),
            format_size(row.size_bytes) if row.size_bytes else "",
        )
    return table


def off_cpu_table(rows: Sequence[OffCpu], *, with_process: bool) -> Table:
    """Who was off the CPU, and why."""
    table = _table(
        ("its threads, when", "left"),
        ("off the CPU", "left"),
        ("time", "right"),
        ("times", "right"),
        ("mean", "right"),
        first="process" if with_process else "",
    )
    for row in rows:
        table.add_row(
            *([Text(process_name(row.process))] if with_process else []),
            _CONTEXTS.get(row.context, str(row.context)),
            Text(_off_cpu_reason(row)),
            format_duration(row.time_ns),
            f"{row.times:,}",
            format_duration(row.time_ns / row.times) if row.times else "",
        )
    return table


def blame_table(rows: Sequence[Blame], *, with_process: bool) -> Table:
    """Who kept whom from running."""
    table = _table(
        ("who", "left"),
        ("how", "left"),
        ("time", "right"),
        ("effects", "right"),
        first="process" if with_process else "",
    )
    for row in rows:
        own = " (its own)" if row.culprit.pid == row.process.pid else ""
        table.add_row(
            *([Text(process_name(row.process))] if with_process else []),
            Text(describe_thread(row.culprit) + own),
            Text(printable(row.kind)),
            format_duration(row.time_ns),
            f"{row.effects:,}",
        )
    return table


def slot_table(rows: Sequence[Slot], origin_unix_ns: int) -> Table:
    """What happened when."""
    allocates = any(row.allocate_calls for row in rows)
    allocations: list[tuple[str, Justify]] = [("alloc+free/s", "right"), ("mean", "right")]
    table = _table(
        ("from", "right"),
        ("calls/s", "right"),
        ("mean call", "right"),
        *(allocations if allocates else []),
        ("run queue", "right"),
        ("lost", "right"),
        ("", "left"),
        ("phase", "left"),
    )
    most_ns = max((row.lost_ns for row in rows), default=0) or 1
    for row in rows:
        length_s = max(1, row.end_unix_ns - row.start_unix_ns) / _NS_PER_S
        columns = round(row.lost_ns / most_ns * _BAR_COLUMNS)
        table.add_row(
            f"+{(row.start_unix_ns - origin_unix_ns) / _NS_PER_S:g} s",
            f"{row.calls / length_s:,.0f}",
            _mean(row.call_ns, row.calls),
            *(
                [
                    f"{row.allocate_calls / length_s:,.0f}",
                    _mean(row.allocate_ns, row.allocate_calls),
                ]
                if allocates
                else []
            ),
            format_duration(row.run_queue_ns) if row.run_queue_ns else "",
            format_duration(row.lost_ns) if row.lost_ns else "",
            "#" * columns,
            name_phase(row),
        )
    return table


def name_phase(slot: Slot) -> str:
    """One word or two for what takes the time of a slot."""
    length_ns = max(1, slot.end_unix_ns - slot.start_unix_ns)
    if slot.lost_ns >= _STALLED * length_ns:
        return f"stalled {format_share(slot.lost_ns / length_ns)}"
    if slot.calls == 0:
        return "no calls"
    if slot.allocate_ns >= _ALLOCATING * length_ns:
        return f"allocating {format_share(slot.allocate_ns / length_ns)}"
    if slot.synchronize_ns >= _MOSTLY * length_ns:
        return f"waiting for the GPU {format_share(slot.synchronize_ns / length_ns)}"
    return "steady"


def memory_lines(rows: Iterable[Memory]) -> list[str]:
    """Device memory asked for and given back."""
    lines = []
    for row in rows:
        line = (
            f"{process_name(row.process)}: {count_of(row.allocations, 'allocation')} of "
            f"{format_size(row.allocated_bytes)}, {count_of(row.frees, 'free')} of "
            f"{format_size(row.freed_bytes)}"
        )
        kept_bytes = row.allocated_bytes - row.freed_bytes
        if kept_bytes > 0:
            line += f"; {format_size(kept_bytes)} more is held at the end than at the beginning"
        elif kept_bytes < 0:
            line += f"; {format_size(-kept_bytes)} less is held at the end than at the beginning"
        lines.append(line)
    return lines


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


def _table(*columns: tuple[str, Justify], first: str = "") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if first:
        table.add_column(first, no_wrap=True)
    for heading, justify in columns:
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def _off_cpu_reason(row: OffCpu) -> str:
    if row.state == wire.STATE_RUN_QUEUE:
        return "run queue: it could have run"
    return f"blocked: {printable(row.reason) or 'unknown'}"


def _mean(sum_ns: float, count: float) -> str:
    return format_duration(sum_ns / count) if count else ""
