"""The tables of the page: calls, memory, waits, culprits, slots, evidence."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from otel_gpu.faces import fields
from otel_gpu.faces.fields import Cell, Field
from otel_gpu.faces.html.markup import Id, Place, Quiet
from otel_gpu.faces.html.shapes import MOST_ROWS, Bar, listed
from otel_gpu.findings.causes import Interval, find_intervals, in_order_of_time
from otel_gpu.findings.document import Api, Blame, Chain, Incident, OffCpu, Slot
from otel_gpu.findings.memory import ROLE_WORDS, ROLES
from otel_gpu.findings.phrases import API, tone_of
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
from otel_gpu.findings.words import format_duration, format_offset

MOST_INTERVALS = 32
_MOST_FUNCTIONS = 12
_NS_PER_US = 1e3


class Table(NamedTuple):
    """A table; ``left_out`` is how many rows it lacks, ``ids`` are those of its rows."""

    about: str
    columns: Sequence[Field]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    ids: Sequence[str] = ()


def call_table(rows: Sequence[Api], *, with_process: bool) -> Table:
    """Calls per process and API, those that took longest together first."""
    columns = (
        fields.text("call", _call),
        *_process(with_process),
        *(fields.CALLS, fields.ERRORS, fields.P50, fields.P99, fields.LONGEST, fields.TOTAL),
        _bar(rows, "sum_ns", lambda _: API, "Total, as a share of the largest"),
        fields.SIZE,
    )
    return _table("Calls per API", columns, rows)


def memory_table(apis: Iterable[Api], *, with_process: bool) -> Table | None:
    """Calls that allocate and free; None without any."""
    rows = [row for row in apis if row.api in ROLES]
    columns = (
        *(fields.CALL, *_process(with_process)),
        fields.text("what it does", lambda row: ROLE_WORDS[ROLES[row.api]]),
        *(fields.CALLS, fields.ERRORS._replace(about=""), fields.SIZE._replace(about="")),
        fields.figure("mean", lambda row: row.sum_ns / max(1, row.calls), format_duration),
        fields.LONGEST._replace(about=""),
    )
    return _table("Calls that allocate and free", columns, rows) if rows else None


def off_cpu_table(rows: Sequence[OffCpu], *, with_process: bool) -> Table:
    """Time off the CPU by reason; the threads that feed the GPU come first."""
    columns = (
        fields.text("what it did", _wait),
        *(fields.TIME, _bar(rows, "time_ns", lambda row: tone_of(kind_of_wait(row)))),
        *(fields.TIMES, fields.MEAN, fields.WHEN, *_process(with_process)),
    )
    return _table("Time off the CPU", columns, rows)


def blame_table(rows: Sequence[Blame], *, with_process: bool) -> Table:
    """Culprits over all effects, those that cost most first."""
    to = fields.PROCESS._replace(heading="to", about="Who lost the time")
    columns = (
        fields.WHO,
        fields.text("what came of it", lambda row: label_of(row.kind)),
        *(fields.TIME, _bar(rows, "time_ns", lambda row: tone_of(row.kind)), fields.EFFECTS),
        fields.text("whose", _whose, "Of the process that lost the time, or of another"),
        *([to] if with_process else []),
    )
    return _table("Who kept them waiting", columns, rows)


def slot_table(slots: Sequence[Slot]) -> Table:
    """What happened when, in figures."""
    columns = (
        *(fields.start(slots), fields.CALL_RATE, fields.MEAN_CALL),
        fields.figure("GPU wait", "synchronize_ns", fields.unless_nothing),
        fields.ALLOCATION_RATE._replace(heading="alloc + free/s"),
        *(fields.RUN_QUEUE, fields.LOST, fields.PHASE),
    )
    return _table("What happened when", columns, slots, most=len(slots))


def evidence_table(chain: Chain) -> Table | None:
    """Every measured interval behind an effect; None without any."""
    intervals = sorted(find_intervals(chain), key=in_order_of_time)

    def offset(interval: Interval) -> Cell:
        offset_us = (interval.evidence.start_unix_ns - chain.effect.start_unix_ns) / _NS_PER_US
        return Cell(f"{offset_us:+,.0f}", offset_us)

    columns = (
        Field("at µs", offset),
        fields.figure("took", "length_ns", format_duration),
        fields.text("state", _state),
        fields.text("cause", lambda one: Name(one.cause.kind)),
        fields.text("who", _who),
        fields.text("in the program", place_of),
        fields.text(
            "kernel stack", lambda one: functions_of(one.evidence.functions[:_MOST_FUNCTIONS])
        ),
        fields.text("id", lambda one: Id(one.evidence.id)),
    )
    return _table("Evidence", columns, intervals, most=MOST_INTERVALS) if intervals else None


def incident_table(rest: Sequence[Incident], first: int, origin_unix_ns: int) -> Table:
    """A row for each incident that there is no card for, numbered from the first of them."""

    def begin(one: Incident) -> Cell:
        return Cell(format_offset(one.start_unix_ns, origin_unix_ns), one.start_unix_ns)

    columns = (
        fields.text("severity", lambda one: Name(one.severity)),
        fields.text("what happened", lambda one: (sentence_of(one), ": ", loss_of(one))),
        Field("from", begin),
        fields.figure("lost", "lost_ns", format_duration),
        fields.EFFECTS._replace(about=""),
        fields.text("id", lambda one: Id(one.id)),
    )
    table = _table("Incidents that lost less time", columns, rest, len(rest))
    return table._replace(ids=[f"incident-{first + index}" for index in range(len(rest))])


def place_of(interval: Interval) -> Place | None:
    """Name where a thread was in a measured interval, unless that is the effect itself."""
    stack = interval.stack
    return Place(stack.place) if stack and stack.place else None


def functions_of(names: Iterable[str]) -> tuple[Part, ...]:
    """Name functions of the kernel, innermost first."""
    return listed(map(Code, names), " ← ")


def _table(
    about: str, columns: Sequence[Field], rows: Sequence[Any], most: int = MOST_ROWS
) -> Table:
    cells = [[column.cell(row) for column in columns] for row in rows[:most]]
    return Table(about, columns, cells, len(rows) - len(cells))


def _process(is_shown: bool) -> list[Field]:
    return [fields.PROCESS] if is_shown else []


def _bar(
    rows: Sequence[Any],
    name: str,
    tone: Callable[[Any], str],
    about: str = "Time, as a share of the largest",
) -> Field:
    most = max((getattr(row, name) for row in rows), default=0) or 1

    def cell(row: Any) -> Cell:  # noqa: ANN401 -- any noun
        return Cell(Bar(tone(row), getattr(row, name) / most), getattr(row, name))

    return Field("", cell, is_text=True, about=about)


def _call(row: Api) -> object:
    return Code(row.api) if row.layer == "runtime" else (Code(row.api), " ", Quiet(row.layer))


def _wait(row: OffCpu) -> object:
    kind = kind_of_wait(row)
    has_reason = row.reason and row.reason != kind
    return (label_of(kind), *((Quiet(" ("), Name(row.reason), Quiet(")")) if has_reason else ()))


def _whose(row: Blame) -> str:
    return "its own thread" if row.culprit.pid == row.process.pid else "another process"


def _state(interval: Interval) -> object:
    evidence = interval.evidence
    state = Name(evidence.kind.replace("_", " "))
    return (state, ": ", Name(evidence.reason)) if evidence.reason else state


def _who(interval: Interval) -> tuple[object, ...]:
    parts = [("of ", interval.thread)] if interval.thread else []
    return listed([*parts, *circumstances(interval)])
