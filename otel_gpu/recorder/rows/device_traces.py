"""
Device traces as rows, and back.

A trace is one activity, and can be millions of rows. They are made in parts, which take no memory
beside the trace. A trace is read back only if all its rows are there.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from typing import Any, Final, NamedTuple

from otel_gpu.enrich.activities import DeviceTraceActivity
from otel_gpu.recorder.pages import PAGE_ROWS, Pages
from otel_gpu.recorder.storable_text import clean, read_counts, to_json
from otel_gpu.recorder.tables import device_activity as tables
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.wire.device_activity import (
    UNKNOWN_COLLECTIVE,
    Collective,
    DeviceActivities,
    DeviceModel,
    DeviceStep,
    DeviceTrace,
    HostOperations,
    Names,
    Thread,
)

MAX_PARTS: Final = 13_000_000
"""Maximum rows of a trace in all tables, more than importers accept."""
MAX_THREADS: Final = 1 << 16
PART_BYTES: Final = 50
"""Measured bytes of a row in the file, rounded up."""

_UNKNOWN_THREAD = Thread(0, 0)
# The columns of both tables after ``seq`` and ``trace``.
_OF_ACTIVITIES = (
    "kinds", "devices", "streams", "starts_ns", "durations_ns", "names", "correlations",
    "sizes_bytes", "collectives", "occupancies", "blocks",
)  # fmt: skip
_OF_OPERATIONS = (
    "kinds", "threads", "starts_ns", "durations_ns", "names", "correlations", "shapes",
)  # fmt: skip
_Referred = Mapping[str, Sequence[int | None]]


class RowChunk(NamedTuple):
    """Rows of one table to write together, and the bytes of text in them."""

    table: str
    rows: Sequence[Row]
    text_bytes: int


class _Part(NamedTuple):
    # A table of a trace: its number of rows, and a function that returns the columns of a range of rows,
    # without their numbers. ``texts`` are the rows themselves if they contain text.
    table: str
    length: int
    cut: Callable[[int, int], Iterable[Iterable[object]]]
    texts: Sequence[Row] = ()


class TraceRows:
    """
    The rows of one trace.

    Attributes:
        seq: The number of the trace's row; those of its other rows follow.
        start_unix_ns: Start of its first activity.
        count: Number of its rows.
        bytes: Estimated bytes of all rows in the file.
    """

    def __init__(self, seq: int, activity: DeviceTraceActivity) -> None:
        self.seq = seq
        self._activity = activity
        trace = activity.trace
        self._numbers = _Numbers(seq)
        self._parts = [*self._texts(trace), *self._tables(trace)]
        self.count = 1 + sum(part.length for part in self._parts)
        texts = sum(map(len, trace.names)) + sum(map(len, trace.shapes))
        self.bytes = self.count * PART_BYTES + texts
        starts = [min(one.starts_ns) for one in (trace.activities, trace.host) if len(one)]
        self.start_unix_ns = min(trace.base_unix_ns + min(starts, default=0), activity.unix_ns)

    def head(self) -> RowChunk:
        """Return the row of the trace."""
        trace = self._activity.trace
        rejected = to_json(trace.rejected) or "{}"
        row = (
            *(self.seq, self._activity.unix_ns, self.start_unix_ns),
            *(clean(trace.source), clean(trace.tool), trace.base_unix_ns, int(trace.is_dated)),
            *(trace.rank, trace.ranks, clean(trace.program), clean(trace.host_name)),
            *(trace.processes, int(trace.has_stacks), int(trace.has_shapes)),
            *(trace.overhead_ns, rejected, self.count - 1),
        )
        return RowChunk(tables.TRACES, [row], len(rejected))

    def chunks(self, most_rows: int, most_bytes: int) -> Iterator[RowChunk]:
        """Yield its other rows in order, up to the limits at a time, but at least one."""
        seq = self.seq + 1
        for part in self._parts:
            at = 0
            while at < part.length:
                end, text_bytes = min(at + most_rows, part.length), 0
                if part.texts:
                    end, text_bytes = _within(
                        rows=part.texts, first=at, end=end, most_bytes=most_bytes
                    )
                numbers = range(seq + at, seq + end)
                rows = list(zip(numbers, repeat(self.seq), *part.cut(at, end), strict=False))
                yield RowChunk(part.table, rows, text_bytes)
                at = end
            seq += part.length

    def _texts(self, trace: DeviceTrace) -> Iterator[_Part]:
        # In an export with several processes, each trace uses some of the shared names.
        used = {*trace.activities.names, *trace.host.names} - {0}
        names = [trace.names[number] for number in sorted(used)]
        self._numbers.names = self._numbers.of(sorted(used), len(trace.names))
        yield _of_rows(tables.NAMES, [(clean(name),) for name in names])
        chosen = sorted({*trace.host.shapes} - {0})
        self._numbers.shapes = self._numbers.of(chosen, len(trace.shapes))
        yield _of_rows(tables.SHAPES, [(clean(trace.shapes[number]),) for number in chosen])

    def _tables(self, trace: DeviceTrace) -> Iterator[_Part]:
        numbers = self._numbers
        numbers.threads = numbers.of(range(1, len(trace.threads)), len(trace.threads))
        yield _of_rows(
            tables.THREADS, [(one.pid, one.tid, clean(one.name)) for one in trace.threads[1:]]
        )
        numbers.collectives = numbers.of(range(1, len(trace.collectives)), len(trace.collectives))
        yield _of_rows(
            tables.COLLECTIVES,
            [
                (clean(one.name), clean(one.group), one.sequence, one.size_bytes, one.ranks)
                for one in trace.collectives[1:]
            ],
        )
        models = [
            (number, clean(one.name), one.compute, one.processors, one.memory_bytes)
            for number, one in trace.models.items()
        ]
        numbers.take(len(models))
        yield _of_rows(tables.MODELS, models)
        numbers.take(len(trace.device_steps))
        marks = [
            (one.device, clean(one.name), one.start_ns, one.duration_ns)
            for one in trace.device_steps
        ]
        yield _of_rows(tables.MARKS, marks)
        referred = numbers.by_column()
        for table, columns, of in (
            (tables.ACTIVITIES, _OF_ACTIVITIES, trace.activities),
            (tables.OPERATIONS, _OF_OPERATIONS, trace.host),
        ):
            yield _of_columns(table=table, of=of, columns=columns, referred=referred)


@dataclass
class _Numbers:
    # Assigns the numbers of rows that other rows refer to, in the order in which they are written.

    last: int
    names: Sequence[int | None] = ()
    shapes: Sequence[int | None] = ()
    threads: Sequence[int | None] = ()
    collectives: Sequence[int | None] = ()

    def of(self, used: Sequence[int], length: int) -> Sequence[int | None]:
        # Numbers of rows by index in the trace; None: it has no row.
        found: list[int | None] = [None] * length
        for at, number in enumerate(used, self.last + 1):
            found[number] = at
        self.take(len(used))
        return found

    def take(self, rows: int) -> None:
        # Skip numbers for rows that no other row refers to.
        self.last += rows

    def by_column(self) -> _Referred:
        return {
            "names": self.names,
            "shapes": self.shapes,
            "threads": self.threads,
            "collectives": self.collectives,
        }


def _of_rows(table: str, rows: Sequence[Row]) -> _Part:
    return _Part(
        table=table,
        length=len(rows),
        cut=lambda first, end: zip(*rows[first:end], strict=True),
        texts=rows,
    )


def _of_columns(
    table: str,
    of: DeviceActivities | HostOperations,
    columns: Sequence[str],
    referred: _Referred,
) -> _Part:
    arrays = [(getattr(of, name), referred.get(name)) for name in columns]

    def cut(first: int, end: int) -> Iterator[Iterable[object]]:
        for one, numbers in arrays:
            part = one[first:end]
            yield part if numbers is None else map(numbers.__getitem__, part)

    return _Part(table, len(of), cut)


def _within(rows: Sequence[Row], first: int, end: int, most_bytes: int) -> tuple[int, int]:
    # The end of the rows that fit into the bytes, but at least one row, and the bytes of their text.
    total = 0
    for number in range(first, end):
        size = sum(len(value) for value in rows[number] if isinstance(value, str))
        if number > first and total + size > most_bytes:
            return number, total
        total += size
    return end, total


@dataclass
class _Read:
    # Rows of a trace read so far. ``numbers``: index in the trace by number of the row, for each column.

    count: int = 0
    names: Names = field(default_factory=Names)
    shapes: Names = field(default_factory=lambda: Names(1 << 16))
    threads: list[Thread] = field(default_factory=lambda: [_UNKNOWN_THREAD])
    collectives: list[Collective] = field(default_factory=lambda: [UNKNOWN_COLLECTIVE])
    models: dict[int, DeviceModel] = field(default_factory=dict)
    marks: list[DeviceStep] = field(default_factory=list)
    activities: DeviceActivities = field(default_factory=DeviceActivities)
    host: HostOperations = field(default_factory=HostOperations)
    numbers: dict[str, dict[int | None, int]] = field(default_factory=dict)

    def put(self, table: str, rows: Sequence[Row]) -> None:
        # Add rows of one table, in order.
        self.count += len(rows)
        columns = list(zip(*rows, strict=True))
        match table:
            case tables.NAMES:
                self._refer("names", columns[0], map(self.names.number, columns[2]))
            case tables.SHAPES:
                self._refer("shapes", columns[0], map(self.shapes.number, columns[2]))
            case tables.THREADS:
                numbers = count(len(self.threads))
                self.threads += (Thread(*row[2:]) for row in rows)
                self._refer("threads", columns[0], numbers)
            case tables.COLLECTIVES:
                numbers = count(len(self.collectives))
                self.collectives += (Collective(*row[2:]) for row in rows)
                self._refer("collectives", columns[0], numbers)
            case tables.MODELS:
                self.models |= {row[2]: DeviceModel(*row[3:]) for row in rows}
            case tables.MARKS:
                self.marks += (DeviceStep(*row[2:]) for row in rows)
            case tables.ACTIVITIES:
                self._extend(self.activities, _OF_ACTIVITIES, columns[2:])
            case _:
                self._extend(self.host, _OF_OPERATIONS, columns[2:])

    def _refer(self, what: str, seqs: Sequence[int], numbers: Iterator[int]) -> None:
        known = self.numbers.setdefault(what, {None: 0})
        known.update(zip(seqs, numbers, strict=False))

    def _extend(
        self,
        into: DeviceActivities | HostOperations,
        names: Sequence[str],
        columns: Sequence[Sequence[Any]],
    ) -> None:
        for name, values in zip(names, columns, strict=True):
            column: array[Any] = getattr(into, name)
            if name in _REFERRED:
                # Untrusted rows can refer to any number.
                known = self.numbers.get(name, {})
                column.extend([known.get(one, 0) for one in values])
            else:
                column.extend(values)


_REFERRED: Final = frozenset(_Numbers(0).by_column())
_MOST_ROWS: Mapping[str, int] = {tables.THREADS: MAX_THREADS - 1}


def read_trace(pages: Pages, row: Row) -> DeviceTraceActivity | None:
    """Return the trace of a row of ``device_traces``; None: rows are missing or invalid."""
    seq, unix_ns, _, source, tool, base_unix_ns, dated, rank, ranks, *more, rejected, parts = row
    if parts > MAX_PARTS:
        return None
    found = _Read()
    for table in tables.PARTS:
        rows = pages.between(
            table=table.name,
            first=seq + 1,
            last=min(seq + parts, MAX_INTEGER),
            condition=f"trace = {seq}",
        )
        left = islice(rows, _MOST_ROWS.get(table.name, MAX_PARTS))
        while page := list(islice(left, PAGE_ROWS)):
            found.put(table.name, page)
    try:
        counts = read_counts(rejected)
    except ValueError:
        return None
    if found.count != parts:
        return None
    program, host_name, processes, has_stacks, has_shapes, overhead_ns = more
    return DeviceTraceActivity(
        unix_ns,
        DeviceTrace(
            source=source,
            tool=tool,
            base_unix_ns=base_unix_ns,
            is_dated=bool(dated),
            names=found.names,
            shapes=found.shapes,
            activities=found.activities,
            host=found.host,
            threads=tuple(found.threads),
            collectives=tuple(found.collectives),
            models=found.models,
            rank=rank,
            ranks=ranks,
            program=program,
            host_name=host_name,
            processes=processes,
            device_steps=tuple(found.marks),
            has_stacks=bool(has_stacks),
            has_shapes=bool(has_shapes),
            overhead_ns=overhead_ns,
            rejected=counts,
        ),
    )
