"""The tables of the page: calls, memory, waits, culprits, slots, evidence."""

import math
from collections.abc import Iterable, Sequence

from otel_gpu.faces.html.markup import Id, Place, Quiet
from otel_gpu.faces.html.shapes import MOST_ROWS, Bar, Cell, Column, Table
from otel_gpu.findings.causes import Interval, find_intervals, in_order_of_time
from otel_gpu.findings.document import Api, Blame, Chain, Incident, OffCpu, ProcessImage, Slot
from otel_gpu.findings.memory import ROLE_WORDS, ROLES
from otel_gpu.findings.phases import phase_of
from otel_gpu.findings.phrases import API, CONTEXTS, tone_of
from otel_gpu.findings.sentences import (
    Code,
    Name,
    Part,
    circumstances,
    label_of,
    loss_of,
    sentence_of,
)
from otel_gpu.findings.waits import kind_of_wait
from otel_gpu.findings.words import format_duration, format_offset, format_size

MOST_INTERVALS = 32
_MOST_FUNCTIONS = 12
_NS_PER_S = 1e9
_NS_PER_US = 1e3
_TIME = Column("time")
_OF_LARGEST = Column("", is_text=True, about="Time, as a share of the largest")


def call_table(rows: Sequence[Api], *, with_process: bool) -> Table:
    """Calls per process and API, those that took longest together first."""
    most_ns = max((row.sum_ns for row in rows), default=0) or 1
    columns = (
        Column("call", is_text=True),
        *_process_column(with_process),
        Column("calls"),
        Column("errors", about="Calls that returned an error"),
        Column("p50", about="Half of the calls took no longer"),
        Column("p99", about="99 of 100 calls took no longer"),
        Column("max", about="The longest call"),
        Column("total", about="All calls together"),
        Column("", is_text=True, about="Total, as a share of the largest"),
        Column("bytes", about="Copied, allocated or freed"),
    )
    cells = [
        (
            Cell(
                (Code(row.api), " ", Quiet(row.layer)) if row.layer != "runtime" else Code(row.api)
            ),
            *_process_cell(row.process, with_process),
            *_counts(row),
            duration(row.p50_ns),
            duration(row.p99_ns),
            duration(row.max_ns),
            duration(row.sum_ns),
            Cell(Bar(API, row.sum_ns / most_ns), row.sum_ns),
            _size(row),
        )
        for row in rows[:MOST_ROWS]
    ]
    return Table("Calls per API", columns, cells, len(rows) - len(cells))


def memory_table(apis: Iterable[Api], *, with_process: bool) -> Table | None:
    """Calls that allocate and free; None without any."""
    rows = [row for row in apis if row.api in ROLES]
    columns = (
        Column("call", is_text=True),
        *_process_column(with_process),
        Column("what it does", is_text=True),
        *map(Column, ("calls", "errors", "bytes", "mean", "max")),
    )
    cells = [
        (
            Cell(Code(row.api)),
            *_process_cell(row.process, with_process),
            Cell(ROLE_WORDS[ROLES[row.api]]),
            *_counts(row),
            _size(row),
            duration(row.sum_ns / max(1, row.calls)),
            duration(row.max_ns),
        )
        for row in rows[:MOST_ROWS]
    ]
    about = "Calls that allocate and free"
    return Table(about, columns, cells, len(rows) - len(cells)) if rows else None


def off_cpu_table(rows: Sequence[OffCpu], *, with_process: bool) -> Table:
    """Time off the CPU by reason; the threads that feed the GPU come first."""
    most_ns = max((row.time_ns for row in rows), default=0) or 1
    columns = (
        Column("what it did", is_text=True),
        *(_TIME, _OF_LARGEST, Column("times"), Column("mean")),
        Column("when", is_text=True),
        *_process_column(with_process),
    )
    cells = []
    for row in rows[:MOST_ROWS]:
        kind = kind_of_wait(row)
        name = label_of(kind)
        has_reason = row.reason and row.reason != kind
        mean = duration(row.time_ns / row.times) if row.times else Cell("")
        cells.append(
            (
                Cell((name, Quiet(" ("), Name(row.reason), Quiet(")")) if has_reason else name),
                duration(row.time_ns),
                Cell(Bar(tone_of(kind), row.time_ns / most_ns), row.time_ns),
                Cell(f"{row.times:,}", row.times),
                mean,
                Cell(CONTEXTS.get(row.context, row.context)),
                *_process_cell(row.process, with_process),
            )
        )
    return Table("Time off the CPU", columns, cells, len(rows) - len(cells))


def blame_table(rows: Sequence[Blame], *, with_process: bool) -> Table:
    """Culprits over all effects, those that cost most first."""
    most_ns = max((row.time_ns for row in rows), default=0) or 1
    columns = (
        Column("who", is_text=True),
        Column("what came of it", is_text=True),
        *(_TIME, _OF_LARGEST),
        Column("effects", about="How many effects it is a cause of"),
        Column("whose", is_text=True, about="Of the process that lost the time, or of another"),
        *([Column("to", is_text=True, about="Who lost the time")] if with_process else []),
    )
    cells = [
        (
            Cell(row.culprit),
            Cell(label_of(row.kind)),
            duration(row.time_ns),
            Cell(Bar(tone_of(row.kind), row.time_ns / most_ns), row.time_ns),
            Cell(f"{row.effects:,}", row.effects),
            Cell("its own thread" if row.culprit.pid == row.process.pid else "another process"),
            *_process_cell(row.process, with_process),
        )
        for row in rows[:MOST_ROWS]
    ]
    return Table("Who kept them waiting", columns, cells, len(rows) - len(cells))


def slot_table(slots: Sequence[Slot]) -> Table:
    """What happened when, in figures."""
    headings = (
        *("from", "calls/s", "mean call", "GPU wait", "alloc + free/s", "run queue", "lost"),
    )
    columns = (*map(Column, headings), Column("phase", is_text=True))
    cells = [
        (
            Cell(offset_of(slot, slots), slot.start_unix_ns),
            Cell(f"{slot.calls / slot.length_ns * _NS_PER_S:,.0f}", slot.calls),
            _unless_nothing(slot.call_ns / slot.calls if slot.calls else 0),
            _unless_nothing(slot.synchronize_ns),
            Cell(f"{slot.allocate_calls / slot.length_ns * _NS_PER_S:,.0f}", slot.allocate_calls),
            _unless_nothing(slot.run_queue_ns),
            _unless_nothing(slot.lost_ns),
            Cell(str(phase_of(slot))),
        )
        for slot in slots
    ]
    return Table("What happened when", columns, cells)


def evidence_table(chain: Chain) -> Table | None:
    """Every measured interval behind an effect; None without any."""
    intervals = sorted(find_intervals(chain), key=in_order_of_time)
    headings = ("state", "cause", "who", "in the program", "kernel stack", "id")
    columns = (Column("at µs"), Column("took"), *(Column(name, is_text=True) for name in headings))
    cells = []
    for interval in intervals[:MOST_INTERVALS]:
        evidence = interval.evidence
        offset_us = (evidence.start_unix_ns - chain.effect.start_unix_ns) / _NS_PER_US
        state = Name(evidence.kind.replace("_", " "))
        cells.append(
            (
                Cell(f"{offset_us:+,.0f}", offset_us),
                duration(interval.length_ns),
                Cell((state, ": ", Name(evidence.reason)) if evidence.reason else state),
                Cell(Name(interval.cause.kind)),
                Cell(_who(interval)),
                Cell(place_of(interval)),
                Cell(functions_of(evidence.functions[:_MOST_FUNCTIONS])),
                Cell(Id(evidence.id)),
            )
        )
    return Table("Evidence", columns, cells, len(intervals) - len(cells)) if intervals else None


def incident_table(rest: Sequence[tuple[int, Incident]], origin_unix_ns: int) -> Table:
    """A row for each incident that there is no card for; with their numbers."""
    columns = (
        *(Column(name, is_text=True) for name in ("severity", "what happened")),
        *map(Column, ("from", "lost", "effects")),
        Column("id", is_text=True),
    )
    cells = [
        (
            Cell(Name(one.severity)),
            Cell((sentence_of(one), ": ", loss_of(one))),
            Cell(format_offset(one.start_unix_ns, origin_unix_ns), one.start_unix_ns),
            duration(one.lost_ns),
            Cell(f"{one.effects:,}", one.effects),
            Cell(Id(one.id)),
        )
        for _, one in rest
    ]
    ids = [f"incident-{number}" for number, _ in rest]
    return Table("Incidents that lost less time", columns, cells, ids=ids)


def place_of(interval: Interval) -> Place | None:
    """Name where a thread was in a measured interval, unless that is the effect itself."""
    stack = interval.stack
    return Place(stack.place) if stack and stack.place else None


def functions_of(names: Iterable[str]) -> tuple[Part, ...]:
    """Name functions of the kernel, innermost first."""
    told = tuple(part for name in names for part in (" ← ", Code(name)))
    return told[1:]


def duration(duration_ns: float) -> Cell:
    """A cell with a duration; another tool may have counted calls and kept that of none."""
    return Cell(format_duration(duration_ns), None if math.isnan(duration_ns) else duration_ns)


def offset_of(slot: Slot, slots: Sequence[Slot]) -> str:
    """How long after the first slot one begins."""
    return f"+{(slot.start_unix_ns - slots[0].start_unix_ns) / _NS_PER_S:g} s"


def _who(interval: Interval) -> tuple[object, ...]:
    parts = [("of ", interval.thread)] if interval.thread else []
    return tuple(one for part in (*parts, *circumstances(interval)) for one in (", ", part))[1:]


def _counts(row: Api) -> tuple[Cell, Cell]:
    errors = Cell(f"{row.errors:,}", row.errors, "bad" if row.errors else "")
    return Cell(f"{row.calls:,}", row.calls), errors


def _size(row: Api) -> Cell:
    return Cell(format_size(row.size_bytes) if row.size_bytes else "", row.size_bytes)


def _unless_nothing(duration_ns: float) -> Cell:
    return Cell(format_duration(duration_ns) if duration_ns else "", duration_ns)


def _process_column(is_shown: bool) -> list[Column]:
    return [Column("process", is_text=True)] if is_shown else []


def _process_cell(process: ProcessImage, is_shown: bool) -> list[Cell]:
    return [Cell(process)] if is_shown else []
