"""
Rows of the tool's tables; those of ``events`` in the order in which things began, and checked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from otel_gpu.importers.ingero.ops import CUDA_SOURCES, HOST, HOST_OPS, SCHED_SWITCH
from otel_gpu.importers.sqlite_source import SqliteSource

MAX_ROWS = 10_000_000
"""Rows that are imported; in order of time."""
NEEDED = ("timestamp", "pid", "tid", "source", "op", "duration", "arg0", "arg1", "ret_code")
"""Columns without which nothing can be said."""

MAX_NAME = 64
LAST_NS = (1 << 63) - 1
_MAX_ID = (1 << 32) - 1
_STATUSES = range(-(1 << 31), 1 << 31)
_WORDS = 1 << 64
_SOURCES = ", ".join(map(str, CUDA_SOURCES))
_HOST_OPS = ", ".join(map(str, HOST_OPS))

IS_CUDA = f"source IN ({_SOURCES})"
IS_SWITCH = f"source = {HOST} AND op = {SCHED_SWITCH}"
IS_WANTED = f"({IS_CUDA} OR source = {HOST} AND op IN ({_HOST_OPS}))"
START = f"CASE WHEN {IS_SWITCH} THEN timestamp - duration ELSE timestamp END"
IS_DATED = (
    f"typeof(timestamp) = 'integer' AND typeof(duration) = 'integer' AND duration >= 0 "
    f"AND {START} > 0 AND typeof(timestamp + duration) = 'integer'"
)


class EventRow(NamedTuple):
    """
    A row that makes sense, with its two times.

    ``arg0`` and ``arg1`` are unsigned; ``stack_hash`` is 0 for no stack.
    """

    start_unix_ns: int
    end_unix_ns: int
    pid: int
    tid: int
    source: int
    op: int
    arg0: int
    arg1: int
    status: int
    stack_hash: int
    comm: str


class Database(NamedTuple):
    """
    A database of the tool with the columns of its tables, or what it has of one host.

    ``host`` is the value of the column ``node`` of the events that are meant; empty: all.
    """

    source: SqliteSource
    tables: Mapping[str, frozenset[str]]
    host: str = ""

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def events(self, picked: str, condition: str = "1", rest: str = "") -> Iterator[Any]:
        """
        Yield what is picked of the rows of ``events`` that are of the host.

        Raises:
            RecordingError: The database is damaged.
        """
        narrowed, parameters = (" AND node = ?", (self.host,)) if self.host else ("", ())
        query = f"SELECT {picked} FROM events WHERE {condition}{narrowed} {rest}"
        return self.source.rows(query, parameters)

    def event_rows(self, rejected: Counter[str]) -> Iterator[EventRow]:
        """
        Yield rows of CUDA calls and of what the scheduler did, by their start.

        What began together comes longest first, so that a call comes before those inside
        it. Rows that make no sense are counted in ``rejected``, by reason.
        """
        comm = f"substr(comm, 1, {MAX_NAME})" if self.has("events", "comm") else "''"
        stack = "stack_hash" if self.has("events", "stack_hash") else "0"
        order = f"ORDER BY {START}, duration DESC LIMIT {MAX_ROWS}"
        for values in self.events(f"{', '.join(NEEDED)}, {stack}, {comm}", IS_WANTED, order):
            row = _check(*values)
            if isinstance(row, str):
                rejected[row] += 1
            else:
                yield row


def whole_numbers(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the rows that hold nothing but whole numbers."""
    return (row for row in rows if all(type(value) is int for value in row))


def _check(*values: Any) -> EventRow | str:  # noqa: ANN401 -- whatever SQLite held
    # The row, or the reason why there is none.
    *numbers, comm = values
    if any(type(number) is not int for number in numbers):
        return "not_a_number"
    timestamp, pid, tid, source, op, duration, arg0, arg1, status, stack_hash = numbers
    if duration < 0:
        return "negative_duration"
    start, end = timestamp, timestamp + duration
    if source == HOST and op == SCHED_SWITCH:
        start, end = timestamp - duration, timestamp
    if not 0 < start <= end <= LAST_NS:
        return "bad_time"
    if not (0 < pid <= _MAX_ID and 0 < tid <= _MAX_ID):
        return "bad_process"
    if status not in _STATUSES:
        return "bad_status"
    comm = comm if isinstance(comm, str) else ""
    arg0, arg1 = arg0 % _WORDS, arg1 % _WORDS
    return EventRow(start, end, pid, tid, source, op, arg0, arg1, status, stack_hash, comm)
