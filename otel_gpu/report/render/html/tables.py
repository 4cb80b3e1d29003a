"""The tables of the page: calls, memory, waits, culprits, time buckets, evidence."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from otel_gpu.report.causes import Interval, find_intervals, in_order_of_time
from otel_gpu.report.document import ApiTotals, Chain, Incident, OffCpu, TimeBucket, Window
from otel_gpu.report.memory.memory_calls import ROLE_WORDS, ROLES
from otel_gpu.report.nccl.types import CommunicatorReport
from otel_gpu.report.off_cpu_kinds import kind_of_wait
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.html.markup import Id, Quiet
from otel_gpu.report.render.html.shapes import MOST_ROWS, ShareBar, listed
from otel_gpu.report.render.text.collectives import MOST_RANKS, RANKS
from otel_gpu.report.wording.formats import format_duration, format_offset
from otel_gpu.report.wording.phrases import API, tone_of
from otel_gpu.report.wording.sentences import (
    Code,
    FrameLine,
    Name,
    Part,
    circumstances,
    label_of,
    loss_of,
    sentence_of,
)
from otel_gpu.wire.probe_table import ApiLayer

MOST_INTERVALS = 32
_MOST_FUNCTIONS = 12
_NS_PER_US = 1e3


class HtmlTable(NamedTuple):
    """
    A table; ``left_out`` counts omitted rows, ``ids`` are those of its rows.

    ``times`` are start and length of what each row is about, relative to the timeline's start.
    """

    about: str
    columns: Sequence[Field]
    rows: Sequence[Sequence[Cell]] = ()
    left_out: int = 0
    ids: Sequence[str] = ()
    times: Sequence[tuple[int, int]] = ()


def table_of(
    empty: HtmlTable, rows: Sequence[Any], *, with_process: bool = True, most: int = MOST_ROWS
) -> HtmlTable:
    """Fill a table with the first rows; with a single process, its column is omitted."""
    columns = [
        column for column in empty.columns if with_process or column.cell is not fields.PROCESS.cell
    ]
    cells = [[column.cell(row) for column in columns] for row in rows]
    for place in range(len(columns)):
        longest = max((row[place].value or 0 for row in cells), default=0) or 1
        for row in cells:
            cell = row[place]
            if isinstance(cell.shown, ShareBar):
                row[place] = cell._replace(
                    shown=ShareBar(cell.shown.tone, cell.shown.share / longest)
                )
    return empty._replace(columns=columns, rows=cells[:most], left_out=len(rows[most:]))


def over_time_table(rows: Sequence[TimeBucket | Window], start_unix_ns: int) -> HtmlTable:
    """Return the table of time buckets."""
    columns = (
        *(fields.CALL_RATE, fields.MEAN_CALL),
        fields.figure("GPU wait", "synchronize_ns", fields.unless_nothing),
        fields.ALLOCATION_RATE._replace(heading="alloc + free/s"),
        *(fields.RUN_QUEUE, fields.LOST),
    )
    shown = fields.over_time(start_unix_ns, columns)
    return table_of(HtmlTable("What happened when", shown), rows, most=len(rows))


def evidence_table(chain: Chain) -> HtmlTable:
    """Return every measured interval of an effect."""
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
    return table_of(HtmlTable("Evidence", columns), intervals, most=MOST_INTERVALS)


def incident_table(rest: Sequence[Incident], first: int, origin_unix_ns: int) -> HtmlTable:
    """Return a row for each incident without a card, numbered from ``first``."""

    def begin(one: Incident) -> Cell:
        return Cell(format_offset(one.start_unix_ns, origin_unix_ns), one.start_unix_ns)

    columns = (
        fields.text(
            "severity", lambda one: (Name(one.severity), ", chronic" if one.chronic else "")
        ),
        fields.text("what happened", lambda one: (sentence_of(one), ": ", loss_of(one))),
        Field("from", begin),
        fields.figure("lost", "lost_ns", format_duration),
        fields.EFFECTS._replace(about=""),
        fields.text("id", lambda one: Id(one.id)),
    )
    ids = [f"incident-{first + index}" for index in range(len(rest))]
    empty = HtmlTable("Incidents that lost less time", columns, ids=ids)
    return table_of(empty, rest, most=len(rest))


def rank_table(row: CommunicatorReport) -> HtmlTable:
    """Return the progress of a communicator's ranks."""
    return table_of(HtmlTable("Ranks of a communicator", RANKS), row.ranks, most=MOST_RANKS)


def place_of(interval: Interval) -> FrameLine | None:
    """Return a thread's place in an interval; None if it is the effect's own."""
    stack = interval.stack
    return FrameLine(stack.place) if stack and stack.place else None


def functions_of(names: Iterable[str]) -> tuple[Part, ...]:
    """Return names of kernel functions, innermost first."""
    return listed(map(Code, names), " ← ")


def _bar(name: str, tone: Callable[[Any], str], of: str = "Time") -> Field:
    def cell(row: Any) -> Cell:  # noqa: ANN401 -- any noun
        return Cell(ShareBar(tone(row), getattr(row, name)), getattr(row, name))

    return Field("", cell, is_text=True, about=f"{of}, as a share of the largest")


def _call(row: ApiTotals) -> object:
    return (
        Code(row.api) if row.layer == ApiLayer.RUNTIME else (Code(row.api), " ", Quiet(row.layer))
    )


def _wait(row: OffCpu) -> object:
    kind = kind_of_wait(row)
    has_reason = row.reason and str(row.reason) != kind
    return (label_of(kind), *((Quiet(" ("), Name(row.reason), Quiet(")")) if has_reason else ()))


def _state(interval: Interval) -> object:
    evidence = interval.evidence
    state = Name(evidence.kind.replace("_", " "))
    return (state, ": ", Name(evidence.reason)) if evidence.reason else state


def _who(interval: Interval) -> tuple[object, ...]:
    parts = [("of ", interval.thread)] if interval.thread else []
    return listed([*parts, *circumstances(interval)])


CALLS = HtmlTable(
    "Calls per API",
    (
        fields.text("call", _call),
        *(fields.PROCESS, fields.CALLS, fields.ERRORS, fields.P50, fields.P99, fields.LONGEST),
        *(fields.TOTAL, _bar("sum_ns", lambda _: API, "Total"), fields.SIZE),
    ),
)
ALLOCATIONS = HtmlTable(
    "Calls that allocate and free",
    (
        *(fields.CALL, fields.PROCESS),
        fields.text("what it does", lambda row: ROLE_WORDS[ROLES[row.api]]),
        *(fields.CALLS, fields.ERRORS._replace(about=""), fields.SIZE._replace(about="")),
        fields.figure("mean", lambda row: row.sum_ns / max(1, row.calls), format_duration),
        fields.LONGEST._replace(about=""),
    ),
)
OFF_CPU = HtmlTable(
    "Time off the CPU",
    (
        *(fields.text("what it did", _wait), fields.TIME),
        _bar("time_ns", lambda row: tone_of(kind_of_wait(row))),
        *(fields.TIMES, fields.MEAN, fields.WHEN, fields.PROCESS),
    ),
)
CULPRITS = HtmlTable(
    "Who kept them waiting",
    (
        *(fields.WHO, fields.text("what came of it", lambda row: label_of(row.kind))),
        *(fields.TIME, _bar("time_ns", lambda row: tone_of(row.kind)), fields.EFFECTS),
        fields.text(
            "whose",
            lambda row: (
                "its own thread" if row.culprit.pid == row.process.pid else "another process"
            ),
            "Of the process that lost the time, or of another",
        ),
        fields.PROCESS._replace(heading="to", about="Who lost the time"),
    ),
)
