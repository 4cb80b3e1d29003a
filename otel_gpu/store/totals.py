"""
From what was counted in all to what was added, and back.

The kernel counts since a process began. A store keeps what each reading added, so that
the counts of any span of time are a sum; and what each series stood at when a chunk
ended, so that a reader can begin at any chunk.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import sub
from typing import Any, Generic, NamedTuple, TypeVar

from otel_gpu import wire
from otel_gpu.decode.events import Aggregate
from otel_gpu.store.columns import MAX_INTEGER
from otel_gpu.store.text import from_json

MAX_KNOWN = 65_536
"""Series, and entries of the time account, that are followed at a time."""

_NOTHING = Aggregate(0, (1 << 64) - 1, 0, 0, (0,) * wire.MAX_BUCKETS)
_MAX_COUNT = (1 << 64) - 1

_Key = TypeVar("_Key", bound=Hashable)
_Total = TypeVar("_Total")


class Totals(Generic[_Key, _Total]):
    """
    What each of many things stands at.

    Args:
        nothing: What a thing stands at before it is known.
    """

    def __init__(self, nothing: _Total) -> None:
        self._nothing = nothing
        self._known: dict[_Key, _Total] = {}
        self._changed: dict[_Key, None] = {}

    def exchange(self, key: _Key, now: _Total) -> _Total | None:
        """Take in what a thing stands at; what it stood at before, None: there is no room."""
        before = self._known.get(key)
        if before is None:
            if len(self._known) >= MAX_KNOWN:
                return None
            before = self._nothing
        self._known[key] = now
        self._changed[key] = None
        return before

    def take_changed(self) -> Iterator[tuple[_Key, _Total]]:
        """Yield what changed since this was last asked, and is still known."""
        changed, self._changed = self._changed, {}
        for key in changed:
            if key in self._known:
                yield key, self._known[key]

    def known(self, key: _Key) -> _Total:
        """Return what a thing stands at."""
        return self._known.get(key, self._nothing)

    def forget(self, is_over: Callable[[_Key], bool]) -> None:
        """Drop what will not be heard of again."""
        self._known = {key: total for key, total in self._known.items() if not is_over(key)}


class ThreadTotal(NamedTuple):
    """Time that threads of a process spent in one way, and how many intervals of it."""

    time_ns: int
    count: int  # type: ignore[assignment] # the column's name; nobody searches this tuple


def series_totals() -> Totals[int, Aggregate]:
    """Return totals of series, by their number."""
    return Totals(_NOTHING)


def added_row(before: Aggregate, now: Aggregate) -> tuple[Any, ...] | None:
    """
    Return the columns of ``aggregates`` from ``count`` on; None: nothing was added.

    A series that stands lower than before was begun anew.
    """
    added = _added(before.buckets, now.buckets)
    if (
        now.sum < before.sum
        or now.size_bytes < before.size_bytes
        or now.unplaced < before.unplaced
        or min(added.values(), default=0) < 0
    ):
        before = _NOTHING
        added = _added(before.buckets, now.buckets)
    if not added and now == before:
        return None
    unplaced = now.unplaced - before.unplaced
    return (
        sum(added.values()) + unplaced,
        unplaced,
        now.sum - before.sum,
        now.size_bytes - before.size_bytes,
        _least(now.min) if now.min != before.min else None,
        now.max if now.max != before.max or before is _NOTHING else None,
        json.dumps(added, separators=(",", ":")),
    )


def total_row(now: Aggregate) -> tuple[Any, ...]:
    """Return the columns of ``aggregate_totals`` from ``sum`` on."""
    buckets = {number: count for number, count in enumerate(now.buckets) if count}
    return (
        now.unplaced,
        now.sum,
        _least(now.min),
        now.max,
        now.size_bytes,
        json.dumps(buckets, separators=(",", ":")),
    )


class SeriesSum:
    """
    What a series stands at, put together from rows.

    Raises:
        ValueError: From both methods: the buckets of a row are none.
    """

    def __init__(self) -> None:
        self._unplaced = self._sum = self._size_bytes = self._max = 0
        self._min = _NOTHING.min
        self._buckets = [0] * wire.MAX_BUCKETS

    def set(self, row: Sequence[Any]) -> Aggregate:
        """Begin with the columns that ``total_row`` gave."""
        unplaced, total, least, most, size_bytes, buckets = row
        self._buckets = [0] * wire.MAX_BUCKETS
        self._count(buckets)
        self._unplaced, self._sum = unplaced, total
        self._size_bytes, self._max = size_bytes, most
        self._min = _NOTHING.min if least is None else least
        return self._aggregate()

    def add(self, row: Sequence[Any]) -> Aggregate:
        """Add the columns that ``added_row`` gave."""
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


def _added(before: Sequence[int], now: Sequence[int]) -> dict[int, int]:
    # Both lists are long, and nearly the same.
    return {number: more for number, more in enumerate(map(sub, now, before)) if more}


def _least(value: int) -> int | None:
    # The kernel's way of saying that there was none yet is the largest number.
    return None if value > MAX_INTEGER else value


def _bounded(count: int) -> int:
    return max(0, min(count, _MAX_COUNT))
