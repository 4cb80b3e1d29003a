"""
From what a series counted in all to what a reading added, and back.

The kernel counts since a process began. A store keeps what each reading added, so that
the counts of any span of time are a sum; and what each series stood at when a chunk
ended, so that a reader can begin at any chunk.
"""

from itertools import compress
from operator import sub

from otel_gpu import wire
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.text import from_json
from otel_gpu.wire.readings import Aggregate

# The largest of the kernel's numbers, which also says that there was no smallest one yet.
_MOST = (1 << 64) - 1
NOTHING = Aggregate(0, _MOST, 0, 0, (0,) * wire.MAX_BUCKETS)


def added_row(before: Aggregate | None, now: Aggregate) -> Row:
    """
    Return the columns of ``aggregates`` from ``count`` on; None: the series is new.

    A series that stands lower than before was begun anew.
    """
    added = now
    if before is not None:
        added = Aggregate(
            now.sum - before.sum,
            now.min,
            now.max,
            now.size_bytes - before.size_bytes,
            tuple(map(sub, now.buckets, before.buckets)),
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
    Return what columns say that was counted.

    Raises:
        ValueError: The last one holds no buckets.
    """
    counts = [0] * wire.MAX_BUCKETS
    for number, count in from_json(buckets, dict).items():
        if not number.isascii() or not number.isdigit() or type(count) is not int:
            raise ValueError("no buckets")
        if int(number[:4]) >= wire.MAX_BUCKETS:
            raise ValueError("no such bucket")
        counts[int(number[:4])] = count
    least = _MOST if least is None else least
    return Aggregate(total, least, most or 0, size_bytes, tuple(counts))


def bounded(aggregate: Aggregate) -> Aggregate:
    """Return what was counted, if it is in the bounds of the kernel's counters, or the nearest to it."""
    total, least, most, size_bytes, buckets = aggregate
    counts = (total, size_bytes, *buckets)
    if min(counts) >= 0 and max(counts) <= _MOST:
        return aggregate
    total, size_bytes = map(_bounded, (total, size_bytes))
    return Aggregate(total, least, most, size_bytes, tuple(map(_bounded, buckets)))


def _to_json(buckets: tuple[int, ...]) -> str:
    # Most of them are empty; json takes four times as long.
    counts = compress(enumerate(buckets), buckets)
    return "{" + ",".join([f'"{number}":{count}' for number, count in counts]) + "}"


def _least(value: int) -> int | None:
    return None if value > MAX_INTEGER else value


def _bounded(count: int) -> int:
    return max(0, min(count, _MOST))
