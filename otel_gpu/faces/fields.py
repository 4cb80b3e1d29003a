"""Fields of the document's nouns as tables show them: each is named, written and sorted once."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from otel_gpu.findings.document import OffCpu, Slot
from otel_gpu.findings.phases import phase_of
from otel_gpu.findings.phrases import CONTEXTS
from otel_gpu.findings.sentences import Code, Name
from otel_gpu.findings.words import format_duration, format_size

Read = Callable[[Any], Any]
_NS_PER_S = 1e9


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by: its text, where that is ``None``."""

    shown: Any
    value: float | None = None
    tone: str = ""


class Field(NamedTuple):
    """A heading, and how a cell is made of a row; figures stand at the right, text at the left."""

    heading: str
    cell: Callable[[Any], Cell]
    is_text: bool = False
    about: str = ""

    def of(self, read: Read) -> "Field":
        """Return the same field of what a row holds."""
        return self._replace(cell=lambda row: self.cell(read(row)))


def text(heading: str, read: Read, about: str = "") -> Field:
    """Return a field of text, or of whatever a sentence can hold."""
    return Field(heading, lambda row: Cell(read(row)), is_text=True, about=about)


def count(heading: str, name: str, about: str = "") -> Field:
    """Return a field of how often something happened."""
    return Field(heading, lambda row: _count(getattr(row, name)), about=about)


def duration(heading: str, read: Read, about: str = "") -> Field:
    """Return a field of nanoseconds; NaN where they are not known."""
    return Field(heading, lambda row: _duration(read(row)), about=about)


def time(heading: str, name: str, about: str = "") -> Field:
    """Return a field of nanoseconds that is empty where there are none."""
    return Field(heading, lambda row: _unless_nothing(getattr(row, name)), about=about)


def mean(heading: str, sum_name: str, count_name: str) -> Field:
    """Return a field of the mean of some nanoseconds; empty where nothing was counted."""

    def cell(row: Any) -> Cell:  # noqa: ANN401 -- any noun
        times = getattr(row, count_name)
        return _unless_nothing(getattr(row, sum_name) / times if times else 0)

    return Field(heading, cell)


def rate(heading: str, name: str) -> Field:
    """Return a field of how often something happened in each second of a slot."""

    def cell(slot: Slot) -> Cell:
        counted = getattr(slot, name)
        return Cell(f"{counted / slot.length_ns * _NS_PER_S:,.0f}", counted)

    return Field(heading, cell)


def start(slots: Sequence[Slot]) -> Field:
    """Return the field of when slots began."""
    return Field("from", lambda slot: Cell(offset_of(slot, slots), slot.start_unix_ns))


def offset_of(slot: Slot, slots: Sequence[Slot]) -> str:
    """How long after the first slot one begins."""
    return f"+{(slot.start_unix_ns - slots[0].start_unix_ns) / _NS_PER_S:g} s"


def _count(number: int, tone: str = "") -> Cell:
    return Cell(f"{number:,}", number, tone)


def _duration(duration_ns: float) -> Cell:
    # Another tool may have counted calls and kept that of none.
    return Cell(format_duration(duration_ns), None if math.isnan(duration_ns) else duration_ns)


def _unless_nothing(duration_ns: float) -> Cell:
    return Cell(format_duration(duration_ns) if duration_ns else "", duration_ns)


def _context(row: OffCpu) -> str:
    return CONTEXTS.get(row.context, row.context)


PROCESS = text("process", attrgetter("process"))
CALL = text("call", lambda row: Code(row.api))
CALLS = count("calls", "calls")
ERRORS = Field(
    "errors",
    lambda row: _count(row.errors, "bad" if row.errors else ""),
    about="Calls that returned an error",
)
P50 = duration("p50", attrgetter("p50_ns"), "Half of the calls took no longer")
P99 = duration("p99", attrgetter("p99_ns"), "99 of 100 calls took no longer")
LONGEST = duration("max", attrgetter("max_ns"), "The longest call")
TOTAL = duration("total", attrgetter("sum_ns"), "All calls together")
SIZE = Field(
    "bytes",
    lambda row: Cell(format_size(row.size_bytes) if row.size_bytes else "", row.size_bytes),
    about="Copied, allocated or freed",
)
TIME = duration("time", attrgetter("time_ns"))
TIMES = count("times", "times")
MEAN = mean("mean", "time_ns", "times")
WHEN = text("when", _context)
WHO = text("who", attrgetter("culprit"))
HOW = text("how", lambda row: Name(row.kind))
EFFECTS = count("effects", "effects", "How many effects it is a cause of")
CALL_RATE = rate("calls/s", "calls")
MEAN_CALL = mean("mean call", "call_ns", "calls")
ALLOCATION_RATE = rate("alloc+free/s", "allocate_calls")
MEAN_ALLOCATION = mean("mean", "allocate_ns", "allocate_calls")
RUN_QUEUE = time("run queue", "run_queue_ns")
LOST = time("lost", "lost_ns")
PHASE = text("phase", lambda slot: str(phase_of(slot)))
