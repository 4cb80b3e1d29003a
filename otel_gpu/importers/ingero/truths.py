"""
How many calls there were beside those that have rows: what ``event_aggregates`` adds.

The package's essay says how a minute of that table can have lost its beginning. What it
lost has at least the rows that were kept of it, so counts are lower bounds then.
"""

from dataclasses import dataclass
from typing import NamedTuple

from otel_gpu.importers.ingero.rows import IS_CUDA, IS_SWITCH, LAST_NS, Database, whole_numbers

BUCKET_NS = 60_000_000_000

_TABLE = "event_aggregates"
_COLUMNS = ("bucket", "source", "op", "pid", "count", "stored", "sum_dur", "min_dur", "max_dur")
_MAX_AGGREGATES = 100_000
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

    calls: int
    sum_ns: int
    min_ns: int
    max_ns: int
    size_bytes: int
    lost_rows: int
    overwritten: int


class _Counted(NamedTuple):
    calls: int
    stored: int
    sum_ns: int
    min_ns: int
    max_ns: int
    size_bytes: int


@dataclass(slots=True)
class _Kept:
    # The rows of a minute, and the sums of those that the table counts too.
    rows: int = 0
    sum_ns: int = 0
    size_bytes: int = 0


def find_hidden(database: Database) -> dict[Minute, Hidden]:
    """
    Return what was counted and has no rows, by minute.

    Raises:
        RecordingError: The database is damaged.
    """
    # The table does not say of which host it counts.
    if database.host or not database.has(_TABLE, *_COLUMNS):
        return {}
    counted = _read_counted(database)
    kept = {minute: _Kept() for minute in counted}
    # From the row that was written last: those are the ones that were counted.
    picked = f"timestamp - timestamp % {BUCKET_NS}, source, op, pid, duration, arg0"
    for *key, duration, arg0 in database.events(picked, _IS_COUNTED, "ORDER BY rowid DESC"):
        minute = Minute(*key)
        rows = kept.get(minute)
        if rows is None or type(duration) is not int or type(arg0) is not int:
            continue
        rows.rows += 1
        if rows.rows <= counted[minute].stored:
            rows.sum_ns += duration
            rows.size_bytes += arg0
    return {minute: _subtract(counted[minute], kept[minute]) for minute in counted}


def _read_counted(database: Database) -> dict[Minute, _Counted]:
    sizes = "sum_arg0" if database.has(_TABLE, "sum_arg0") else "0"
    query = (
        f"SELECT {', '.join(_COLUMNS)}, {sizes} FROM {_TABLE} WHERE {_IS_COUNTED} "
        f"ORDER BY bucket LIMIT {_MAX_AGGREGATES}"
    )
    counted: dict[Minute, _Counted] = {}
    for values in whole_numbers(database.source.rows(query)):
        one = _Counted(*values[4:])
        is_sound = min(values) >= 0 and max(values) <= LAST_NS
        if is_sound and max(one.calls, one.stored) <= _MAX_COUNT:
            counted[Minute(*values[:4])] = one
    return counted


def _subtract(counted: _Counted, kept: _Kept) -> Hidden:
    calls = max(0, counted.calls - min(kept.rows, counted.stored))
    return Hidden(
        calls,
        max(0, counted.sum_ns - kept.sum_ns) if calls else 0,
        counted.min_ns,
        max(counted.min_ns, counted.max_ns),
        max(0, counted.size_bytes - kept.size_bytes) if calls else 0,
        lost_rows=max(0, counted.stored - kept.rows),
        overwritten=max(0, kept.rows - counted.stored),
    )
