"""Rows of ``events``: read in the order in which things began, and checked."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from otel_gpu.importers.ingero.ops import CUDA_SOURCES, HOST, HOST_OPS, SCHED_SWITCH
from otel_gpu.importers.sqlite_source import SqliteSource

MAX_ROWS = 10_000_000
"""Rows that are imported; in order of time."""
NEEDED = ("timestamp", "pid", "tid", "source", "op", "duration", "arg0", "arg1", "ret_code")
"""Columns without which nothing can be said."""

MAX_NAME = 64
_LAST_NS = (1 << 63) - 1
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


class Events:
    """
    The table ``events``, or what it has of one host.

    Args:
        source: The database.
        columns: The table's.
        host: Value of the column ``node``; empty: all.
    """

    def __init__(self, source: SqliteSource, columns: frozenset[str], host: str) -> None:
        self._source = source
        self._columns = columns
        self._host = host

    def where(self, condition: str) -> str:
        """Return a condition, narrowed down to the host; see ``parameters``."""
        return f"WHERE {condition} AND node = ?" if self._host else f"WHERE {condition}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What ``where`` leaves to be bound."""
        return (self._host,) if self._host else ()

    def select(self, query: str) -> Iterator[tuple[Any, ...]]:
        """
        Yield the rows of a query that was made with ``where``, once.

        Raises:
            RecordingError: The database is damaged.
        """
        return self._source.rows(query, self.parameters)

    def counts(self) -> Iterator[tuple[object, object, int]]:
        """Yield how many rows there are, by source and operation, whatever those are."""
        # A table with as many operations as rows is nobody's.
        where = self.where("1")
        query = f"SELECT source, op, count(*) FROM events {where} GROUP BY 1, 2 LIMIT 1000"
        yield from ((source, op, count) for source, op, count in self.select(query))

    def read(self, rejected: Counter[str]) -> Iterator[EventRow]:
        """
        Yield rows of CUDA calls and of what the scheduler did, by their start.

        What began together comes longest first, so that a call comes before those inside
        it. Rows that make no sense are counted in ``rejected``, by reason.
        """
        comm = f"substr(comm, 1, {MAX_NAME})" if "comm" in self._columns else "''"
        stack = "stack_hash" if "stack_hash" in self._columns else "0"
        where = self.where(IS_WANTED)
        query = (
            f"SELECT {', '.join(NEEDED)}, {stack}, {comm} FROM events {where} "
            f"ORDER BY {START}, duration DESC LIMIT {MAX_ROWS}"
        )
        for values in self.select(query):
            row = _check(values)
            if isinstance(row, str):
                rejected[row] += 1
            else:
                yield row


def _check(values: tuple[Any, ...]) -> EventRow | str:
    """Return the row, or the reason why there is none."""
    *numbers, comm = values
    if any(type(number) is not int for number in numbers):
        return "not_a_number"
    timestamp, pid, tid, source, op, duration, arg0, arg1, status, stack_hash = numbers
    if duration < 0:
        return "negative_duration"
    start, end = timestamp, timestamp + duration
    if source == HOST and op == SCHED_SWITCH:
        start, end = timestamp - duration, timestamp
    if not 0 < start <= end <= _LAST_NS:
        return "bad_time"
    if not (0 < pid <= _MAX_ID and 0 < tid <= _MAX_ID):
        return "bad_process"
    if status not in _STATUSES:
        return "bad_status"
    return EventRow(
        start,
        end,
        pid,
        tid,
        source,
        op,
        arg0 % _WORDS,
        arg1 % _WORDS,
        status,
        stack_hash,
        comm if isinstance(comm, str) else "",
    )
