"""
How many calls there were beside those that have rows: what ``event_aggregates`` adds.

The package's essay says how a minute of that table can have lost its beginning. What it
lost has at least the rows that were kept of it, so counts are lower bounds then.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_gpu.importers.ingero.rows import IS_CUDA, IS_SWITCH, Events
from otel_gpu.importers.sqlite_source import SqliteSource

TABLE = "event_aggregates"
COLUMNS = ("bucket", "source", "op", "pid", "count", "stored", "sum_dur", "min_dur", "max_dur")
BUCKET_NS = 60_000_000_000

_MAX_AGGREGATES = 100_000
_MAX_NUMBER = (1 << 63) - 1
# Of a minute, and so many of them that their sum is no 64-bit number would be lies.
_MAX_COUNT = 10**12
_IS_COUNTED = f"({IS_CUDA} OR {IS_SWITCH})"


class Minute(NamedTuple):
    """What one row of the table is about; ``pid`` is a thread's number for switches."""

    start_unix_ns: int
    source: int
    op: int
    pid: int


class Hidden(NamedTuple):
    """
    What was counted in a minute and has no rows.

    ``min_ns`` and ``max_ns`` are those of all that was counted. ``lost_rows`` is how many
    rows the tool says it stored that are not there, ``overwritten`` how many rows there
    are of what it has written over.
    """

    count: int  # type: ignore[assignment] # the column's name; nobody searches this tuple
    sum_ns: int
    min_ns: int
    max_ns: int
    size_bytes: int
    lost_rows: int
    overwritten: int


class _Counted(NamedTuple):
    count: int  # type: ignore[assignment] # as above
    stored: int
    sum_ns: int
    min_ns: int
    max_ns: int
    arg0: int


class _Kept:
    """The rows of a minute, as far as the table counts them too."""

    __slots__ = ("arg0", "rows", "sum_ns")

    def __init__(self) -> None:
        self.rows = self.sum_ns = self.arg0 = 0


def find_hidden(
    source: SqliteSource, columns: frozenset[str], events: Events
) -> dict[Minute, Hidden]:
    """
    Return what was counted and has no rows, by minute.

    Raises:
        RecordingError: The database is damaged.
    """
    counted = _read_counted(source, columns)
    kept: dict[Minute, _Kept] = {minute: _Kept() for minute in counted}
    # From the row that was written last: those are the ones that were counted.
    query = (
        f"SELECT timestamp - timestamp % {BUCKET_NS}, source, op, pid, duration, arg0 "
        f"FROM events {events.where(_IS_COUNTED)} ORDER BY rowid DESC"
    )
    for *key, duration, arg0 in events.select(query):
        minute = Minute(*key)
        rows = kept.get(minute)
        if rows is None or type(duration) is not int or type(arg0) is not int:
            continue
        rows.rows += 1
        if rows.rows <= counted[minute].stored:
            rows.sum_ns += duration
            rows.arg0 += arg0
    return {minute: _subtract(counted[minute], kept[minute]) for minute in counted}


def _read_counted(source: SqliteSource, columns: frozenset[str]) -> dict[Minute, _Counted]:
    arg0 = "sum_arg0" if "sum_arg0" in columns else "0"
    query = (
        f"SELECT {', '.join(COLUMNS)}, {arg0} FROM {TABLE} WHERE {_IS_COUNTED} "
        "ORDER BY bucket LIMIT ?"
    )
    counted: dict[Minute, _Counted] = {}
    for values in source.rows(query, (_MAX_AGGREGATES,)):
        if all(_is_sound(value) for value in values):
            one = _Counted(*values[4:])
            if max(one.count, one.stored) <= _MAX_COUNT:
                counted[Minute(*values[:4])] = one
    return counted


def _subtract(counted: _Counted, kept: _Kept) -> Hidden:
    count = max(0, counted.count - min(kept.rows, counted.stored))
    return Hidden(
        count,
        max(0, counted.sum_ns - kept.sum_ns) if count else 0,
        counted.min_ns,
        max(counted.min_ns, counted.max_ns),
        max(0, counted.arg0 - kept.arg0) if count else 0,
        max(0, counted.stored - kept.rows),
        max(0, kept.rows - counted.stored),
    )


def lost_rows(hidden: Mapping[Minute, Hidden]) -> int:
    """Return how many rows the tool says it stored that are not there."""
    return sum(one.lost_rows for one in hidden.values())


def overwritten(hidden: Mapping[Minute, Hidden]) -> int:
    """Return of how many minutes, by process and operation, the beginning is not counted."""
    return sum(one.overwritten > 0 for one in hidden.values())


def _is_sound(value: Any) -> bool:  # noqa: ANN401 -- whatever SQLite held
    return type(value) is int and 0 <= value <= _MAX_NUMBER
