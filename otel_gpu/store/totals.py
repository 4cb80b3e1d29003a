"""
From what was counted in all to what was added, and back.

The kernel counts since a process began. A store keeps what each reading added, so that
the counts of any span of time are a sum; and what each series stood at when a chunk
ended, so that a reader can begin at any chunk.
"""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.decode.events import Aggregate
from otel_gpu.store.columns import MAX_INTEGER
from otel_gpu.store.text import from_json

_NONE_YET = (1 << 64) - 1
_MAX_COUNT = (1 << 64) - 1


class Total(NamedTuple):
    """What a series stands at, as ``Aggregate`` has it, without the buckets that are empty."""

    unplaced: int
    sum: int
    min: int
    max: int
    size_bytes: int
    buckets: Mapping[int, int]


NOTHING = Total(0, 0, _NONE_YET, 0, 0, {})


class ThreadTotal(NamedTuple):
    """Time that threads of a process spent in one way, and how many intervals of it."""

    time_ns: int
    count: int  # type: ignore[assignment] # the column's name; nobody searches this tuple


NO_TIME = ThreadTotal(0, 0)


def total_of(aggregate: Aggregate) -> Total:
    """Return what a series stands at, as it is kept: most of its buckets are empty."""
    total, least, most, size_bytes, buckets, unplaced = aggregate
    counts = dict(compress(enumerate(buckets), buckets))
    return Total(unplaced, total, least, most, size_bytes, counts)


def added_row(before: Total, now: Total) -> tuple[Any, ...] | None:
    """
    Return the columns of ``aggregates`` from ``count`` on; None: nothing was added.

    A series that stands lower than before was begun anew.
    """
    if now == before:
        return None
    added = _added(before.buckets, now.buckets)
    if (
        now.sum < before.sum
        or now.size_bytes < before.size_bytes
        or now.unplaced < before.unplaced
        or min(added.values(), default=0) < 0
        or not before.buckets.keys() <= now.buckets.keys()
    ):
        before = NOTHING
        added = dict(now.buckets)
    unplaced = now.unplaced - before.unplaced
    return (
        sum(added.values()) + unplaced,
        unplaced,
        now.sum - before.sum,
        now.size_bytes - before.size_bytes,
        _least(now.min) if now.min != before.min else None,
        now.max if now.max != before.max or before is NOTHING else None,
        _to_json(added),
    )


def total_row(now: Total) -> tuple[Any, ...]:
    """Return the columns of ``aggregate_totals`` from ``unplaced`` on."""
    return (
        now.unplaced,
        now.sum,
        _least(now.min),
        now.max,
        now.size_bytes,
        _to_json(now.buckets),
    )


class SeriesSum:
    """What a series stands at, put together from rows."""

    def __init__(self) -> None:
        self._unplaced = self._sum = self._size_bytes = self._max = 0
        self._min = NOTHING.min
        self._buckets = [0] * wire.MAX_BUCKETS

    def add(self, row: Sequence[Any]) -> Aggregate:
        """
        Add the columns that ``added_row`` gave.

        Raises:
            ValueError: The last one holds no buckets.
        """
        _, unplaced, total, size_bytes, least, most, buckets = row
        self._count(buckets)
        self._unplaced = _bounded(self._unplaced + unplaced)
        self._sum = _bounded(self._sum + total)
        self._size_bytes = _bounded(self._size_bytes + size_bytes)
        if least is not None:
            self._min = min(self._min, least)
        if most is not None:
            self._max = max(self._max, most)
        return self._aggregate()

    def _count(self, text: str) -> None:
        for number, count in from_json(text, dict).items():
            if not number.isascii() or not number.isdigit() or type(count) is not int:
                raise ValueError("no buckets")
            bucket = int(number[:4])
            if bucket >= wire.MAX_BUCKETS:
                raise ValueError("no such bucket")
            self._buckets[bucket] = _bounded(self._buckets[bucket] + count)

    def _aggregate(self) -> Aggregate:
        return Aggregate(
            self._sum,
            self._min,
            self._max,
            self._size_bytes,
            tuple(self._buckets),
            self._unplaced,
        )


def _added(before: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    known = before.get
    return {
        number: count - known(number, 0) for number, count in now.items() if count != known(number)
    }


def _to_json(counts: Mapping[int, int]) -> str:
    # For every series of every reading: json takes four times as long.
    return "{" + ",".join([f'"{number}":{count}' for number, count in counts.items()]) + "}"


def _least(value: int) -> int | None:
    # The kernel's way of saying that there was none yet is the largest number.
    return None if value > MAX_INTEGER else value


def _bounded(count: int) -> int:
    return max(0, min(count, _MAX_COUNT))
