"""Fields of the document's rows, as tables show them: each has one name, format and order."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from otel_gpu.report.document import TimeBucket, Window
from otel_gpu.report.wording.formats import format_duration, format_size
from otel_gpu.report.wording.phases import NO_CAPTURE, phase_of
from otel_gpu.report.wording.phrases import CONTEXTS
from otel_gpu.report.wording.sentences import Code, Name

Read = Callable[[Any], Any]
_NS_PER_S = 1e9


class Cell(NamedTuple):
    """The text of a cell, and its sort key; ``None``: the text is the key."""

    shown: Any
    value: float | None = None
    tone: str = ""


class Field(NamedTuple):
    """
    A column: heading, and a function from a row to a cell; figures are right-aligned, text
    left-aligned.

    If not all columns fit, those with the highest ``rank`` are omitted first.
    """

    heading: str
    cell: Callable[[Any], Cell]
    is_text: bool = False
    about: str = ""
    rank: int = 1

    def of(self, read: Read) -> "Field":
        """Return the same field, of a part of a row."""
        return self._replace(cell=lambda row: self.cell(read(row)))


def text(heading: str, read: Read, about: str = "", rank: int = 1) -> Field:
    """Return a field of text, or of a sentence."""
    return Field(heading, lambda row: Cell(read(row)), is_text=True, about=about, rank=rank)


def figure(
    heading: str, read: str | Read, form: Callable[[Any], str], about: str = "", rank: int = 1
) -> Field:
    """Return a field of numbers, from an attribute's name or a function."""
    find = attrgetter(read) if isinstance(read, str) else read

    def cell(row: object) -> Cell:
        number = find(row)
        # What was not counted has an empty cell.
        return Cell(form(number), None if math.isnan(number) else number)

    return Field(heading, cell, about=about, rank=rank)


def in_full(number: int) -> str:
    """Write a count."""
    return f"{number:,}"


def unless_nothing(duration_ns: float) -> str:
    """Write a duration; empty for 0."""
    return format_duration(duration_ns) if duration_ns else ""


def over_time(start_unix_ns: int, columns: Sequence[Field]) -> tuple[Field, ...]:
    """
    Return the fields of rows of ``Document.over_time``: offset, the given columns, phase.

    Args:
        start_unix_ns: The start of the window.
        columns: Columns of time buckets; empty cells where no capture ran.
    """

    def unless_uncovered(field: Field) -> Field:
        return field._replace(
            cell=lambda row: Cell("") if isinstance(row, Window) else field.cell(row)
        )

    begin = Field("from", lambda row: Cell(offset_of(row, start_unix_ns), row.start_unix_ns))
    return (begin, *map(unless_uncovered, columns), _PHASE)


def offset_of(row: TimeBucket | Window, start_unix_ns: int) -> str:
    """Return the time from a start to the row."""
    seconds = ((row.start_unix_ns or 0) - start_unix_ns) / _NS_PER_S
    return f"+{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def phase_text(row: TimeBucket | Window) -> str:
    """Write the phase of a time bucket, or the length of a time without a capture."""
    if isinstance(row, TimeBucket):
        return str(phase_of(row))
    return f"{NO_CAPTURE} for {format_duration((row.end_unix_ns or 0) - (row.start_unix_ns or 0))}"


def _per_second(name: str) -> Read:
    return lambda bucket: getattr(bucket, name) / bucket.length_ns * _NS_PER_S


def _mean(sum_name: str, count_name: str) -> Read:
    def mean(row: object) -> float:
        times: float = getattr(row, count_name)
        return getattr(row, sum_name) / times if times else 0.0

    return mean


PROCESS = text("process", attrgetter("process"))
CALL = text("call", lambda row: Code(row.api))
CALLS = figure("calls", "calls", in_full)
ERRORS = Field(
    "errors",
    lambda row: Cell(in_full(row.errors), row.errors, "bad" if row.errors else ""),
    about="Calls that returned an error",
)
P50 = figure("p50", "p50_ns", format_duration, about="Half of the calls took no longer", rank=2)
P99 = figure("p99", "p99_ns", format_duration, about="99 of 100 calls took no longer", rank=2)
LONGEST = figure("max", "max_ns", format_duration, about="The longest call")
TOTAL = figure("total", "sum_ns", format_duration, about="All calls together", rank=0)
SIZE = figure(
    "bytes",
    "size_bytes",
    lambda size: format_size(size) if size else "",
    about="Copied, allocated or freed",
)
TIME = figure("time", "time_ns", format_duration, rank=0)
TIMES = figure("times", "times", in_full)
MEAN = figure("mean", _mean("time_ns", "times"), unless_nothing, rank=2)
WHEN = text("when", lambda row: CONTEXTS.get(row.context, row.context))
WHO = text("who", attrgetter("culprit"))
HOW = text("how", lambda row: Name(row.kind))
EFFECTS = figure("effects", "effects", in_full, about="How many effects it is a cause of")
CALL_RATE = figure("calls/s", _per_second("calls"), "{:,.0f}".format)
MEAN_CALL = figure("mean call", _mean("call_ns", "calls"), unless_nothing)
ALLOCATION_RATE = figure("alloc+free/s", _per_second("allocate_calls"), "{:,.0f}".format)
MEAN_ALLOCATION = figure("mean", _mean("allocate_ns", "allocate_calls"), unless_nothing)
RUN_QUEUE = figure("run queue", "run_queue_ns", unless_nothing)
LOST = figure("lost", "lost_ns", unless_nothing)
_PHASE = text("phase", phase_text)
