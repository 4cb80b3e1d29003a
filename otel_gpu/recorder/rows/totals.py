"""
Conversion of totals of a series to increments of readings, and back.

The kernel's totals begin with the process. A store has the increment of each reading, so the counts of
any interval are a sum. It also has the total of each series at the end of a chunk, so a reader can begin
at any chunk.
"""

from itertools import compress
from operator import sub

from otel_gpu import wire
from otel_gpu.recorder.storable_text import from_json
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.wire.readings import Aggregate

# The largest u64; as a minimum it means that there was no value yet.
_MOST = (1 << 64) - 1
NOTHING = Aggregate(sum=0, min=_MOST, max=0, size_bytes=0, buckets=(0,) * wire.MAX_BUCKETS)


def added_row(before: Aggregate | None, now: Aggregate) -> Row:
    """
    Return the columns of ``aggregates`` from ``count`` on; ``before`` None: the series is new.

    A series whose total decreased was restarted.
    """
    added = now
    if before is not None:
        added = Aggregate(
            sum=now.sum - before.sum,
            min=now.min,
            max=now.max,
            size_bytes=now.size_bytes - before.size_bytes,
            buckets=tuple(map(sub, now.buckets, before.buckets)),
        )
        if min(added.sum, added.size_bytes, *added.buckets) < 0:
            before, added = None, now
    return (
        added.counted,
        added.sum,
        added.size_bytes,
        _least(now.min) if before is None or now.min != before.min else None,
        now.max if before is None or now.max != before.max else None,
        _to_json(added.buckets),
    )


def total_row(now: Aggregate) -> Row:
    """Return the columns of ``aggregate_totals`` from ``sum`` on."""
    return now.sum, _least(now.min), now.max, now.size_bytes, _to_json(now.buckets)


def read_aggregate(
    total: int, size_bytes: int, least: int | None, most: int | None, buckets: str
) -> Aggregate:
    """
    Return the aggregate of these columns.

    Raises:
        ValueError: ``buckets`` is invalid.
    """
    counts = [0] * wire.MAX_BUCKETS
    for number, count in from_json(buckets, dict).items():
        if not number.isascii() or not number.isdigit() or type(count) is not int:
            raise ValueError("no buckets")
        if int(number[:4]) >= wire.MAX_BUCKETS:
            raise ValueError("no such bucket")
        counts[int(number[:4])] = count
    least = _MOST if least is None else least
    return Aggregate(
        sum=total, min=least, max=most or 0, size_bytes=size_bytes, buckets=tuple(counts)
    )


def bounded(aggregate: Aggregate) -> Aggregate:
    """Return an aggregate with each count limited to 0 and the largest u64."""
    total, least, most, size_bytes, buckets = aggregate
    counts = (total, size_bytes, *buckets)
    if min(counts) >= 0 and max(counts) <= _MOST:
        return aggregate
    total, size_bytes = map(_bounded, (total, size_bytes))
    return Aggregate(
        sum=total, min=least, max=most, size_bytes=size_bytes, buckets=tuple(map(_bounded, buckets))
    )


def _to_json(buckets: tuple[int, ...]) -> str:
    # Most buckets are empty; json takes four times as long.
    counts = compress(enumerate(buckets), buckets)
    return "{" + ",".join([f'"{number}":{count}' for number, count in counts]) + "}"


def _least(value: int) -> int | None:
    return None if value > MAX_INTEGER else value


def _bounded(count: int) -> int:
    return max(0, min(count, _MOST))
