"""Who did not run, why, and because of whom."""

from collections.abc import Mapping, Sequence

from otel_gpu import wire
from otel_gpu.explain import rules
from otel_gpu.faces.html.elements import Child, Markup, element
from otel_gpu.faces.html.names import name_of, process_of, thread_of
from otel_gpu.faces.html.sentences import label_of, tone_of
from otel_gpu.faces.html.tables import MOST_ROWS, Cell, Column, bar_of, table
from otel_gpu.faces.tables import load_lines
from otel_gpu.findings.model import Blame, Load, OffCpu
from otel_gpu.findings.words import format_duration

_CONTEXTS: Mapping[int, str] = {
    wire.CONTEXT_GAP: "between CUDA calls",
    wire.CONTEXT_SYNCHRONIZE: "waiting for the GPU",
    wire.CONTEXT_CALL: "inside a CUDA call",
    wire.CONTEXT_OTHER: "in other threads",
}
# Where a thread is, as the rules of blame see it.
_PLACES: Mapping[int, str] = {
    wire.CONTEXT_GAP: rules.GAP,
    wire.CONTEXT_SYNCHRONIZE: rules.SYNCHRONIZE,
    wire.CONTEXT_CALL: rules.CALL,
    wire.CONTEXT_OTHER: rules.GAP,
}


def off_cpu_table(rows: Sequence[OffCpu], *, with_process: bool) -> Markup:
    """Time off the CPU by reason; the threads that feed the GPU come first."""
    most_ns = max((row.time_ns for row in rows), default=0) or 1
    columns = (
        Column("what it did", is_text=True),
        Column("time"),
        Column("", is_text=True, about="Time, as a share of the largest"),
        Column("times"),
        Column("mean"),
        Column("when", is_text=True),
        Column("process", is_text=True, is_shown=with_process),
    )
    shown = [_off_cpu_row(row, most_ns) for row in rows[:MOST_ROWS]]
    return table("Time off the CPU", columns, shown, count=len(rows))


def _off_cpu_row(row: OffCpu, most_ns: int) -> tuple[Cell, ...]:
    kind = _kind_of(row)
    told: list[Child] = [label_of(kind)]
    if row.reason and row.reason != kind:
        told.append(element("span", " (", name_of(row.reason), ")", class_="quiet"))
    return (
        Cell(told),
        Cell(format_duration(row.time_ns), row.time_ns),
        Cell(bar_of(tone_of(kind), row.time_ns / most_ns), row.time_ns),
        Cell(f"{row.times:,}", row.times),
        Cell(*_mean(row.time_ns, row.times)),
        Cell(_CONTEXTS.get(row.context, str(row.context))),
        Cell(process_of(row.process)),
    )


def _kind_of(row: OffCpu) -> str:
    if row.state == wire.STATE_RUN_QUEUE:
        return "run_queue"
    return rules.blocked_kind(row.reason, _PLACES.get(row.context, rules.GAP))


def blame_table(rows: Sequence[Blame], *, with_process: bool) -> Markup:
    """Culprits over all effects, those that cost most first."""
    most_ns = max((row.time_ns for row in rows), default=0) or 1
    columns = (
        Column("who", is_text=True),
        Column("what came of it", is_text=True),
        Column("time"),
        Column("", is_text=True, about="Time, as a share of the largest"),
        Column("effects", about="How many effects it is a cause of"),
        Column("whose", is_text=True, about="Of the process that lost the time, or of another"),
        Column("to", is_text=True, about="Who lost the time", is_shown=with_process),
    )
    shown = [_blame_row(row, most_ns) for row in rows[:MOST_ROWS]]
    return table("Who kept them waiting", columns, shown, count=len(rows))


def _blame_row(row: Blame, most_ns: int) -> tuple[Cell, ...]:
    is_own = row.culprit.pid == row.process.pid
    return (
        Cell(thread_of(row.culprit)),
        Cell(label_of(row.kind)),
        Cell(format_duration(row.time_ns), row.time_ns),
        Cell(bar_of(tone_of(row.kind), row.time_ns / most_ns), row.time_ns),
        Cell(f"{row.effects:,}", row.effects),
        Cell("its own thread" if is_own else "another process"),
        Cell(process_of(row.process)),
    )


def load_list(load: Load) -> Markup:
    """What the host said of its load."""
    return element("ul", [element("li", line) for line in load_lines(load)])


def _mean(sum_ns: int, count: int) -> tuple[str, float | None]:
    return (format_duration(sum_ns / count), sum_ns / count) if count else ("", None)
