"""
Events as rows, and back: the fields of an event in their order.

The kernel side has unsigned 64-bit numbers, SQLite signed ones. Times, sizes and counts are only that
large in broken records, and are limited to the largest signed number. Addresses and ids use all bits,
and are stored as the signed number of the same bits.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from otel_gpu.recorder.storable_text import clean
from otel_gpu.recorder.tables.columns import JSON, MAX_INTEGER, WORD, Column, Row
from otel_gpu.recorder.tables.fields import DIMENSIONS, event_columns
from otel_gpu.wire.events import CudaCall

WORDS = 1 << 64
"""Number of values of a 64-bit word."""
_new_tuple = tuple.__new__


_Flatten = Callable[[object], Row]
_Restore = Callable[[Sequence[object]], Any]


def event_rows(event: Any) -> tuple[_Flatten, _Restore]:  # noqa: ANN401 -- the class of any event
    """Return two functions for a class of events: event to columns, and columns to event."""
    places = tuple(at for at, column in enumerate(event_columns(event)) if column.kind is WORD)
    # At least two, so that the getter always returns a tuple.
    words = itemgetter(*places, places[0]) if places else _no_words
    has_shape, gather = (True, _gather) if event is CudaCall else (False, tuple)

    def flatten(one: Any) -> Row:  # noqa: ANN401 -- an event of this kind
        # Takes half as long as unpacking into a new tuple.
        values = one[:_GRID] + one.grid + one.block + one[_AFTER:] if has_shape else tuple(one)
        if max(words(values)) > MAX_INTEGER:
            changed = list(values)
            for place in places:
                changed[place] = signed(changed[place])
            return tuple(changed)
        return values

    def restore(values: Sequence[Any]) -> object:
        if min(words(values)) < 0:
            changed = list(values)
            for place in places:
                changed[place] %= WORDS
            values = changed
        # Inlined event._make, which takes longer.
        return _new_tuple(event, gather(values))

    return flatten, restore


def _no_words(_: Sequence[object]) -> Row:
    return (0,)


def make_storable(columns: Sequence[Column], row: Row) -> Row:
    """Change values that SQLite refuses, so that a row can be written; it stays wrong."""
    return tuple(_storable(column, value) for column, value in zip(columns, row, strict=True))


def _storable(column: Column, value: object) -> object:
    if isinstance(value, str):
        # JSON documents are ASCII already.
        return value if column.kind is JSON else clean(value)
    if isinstance(value, int):
        if column.kind is WORD:
            return signed(value % WORDS)
        return max(-MAX_INTEGER - 1, min(value, MAX_INTEGER))
    return value


def signed(word: int) -> int:
    """Return a word as the signed number of the same bits."""
    return word - WORDS if word > MAX_INTEGER else word


_GRID = CudaCall._fields.index(DIMENSIONS[0])
_AFTER = _GRID + len(DIMENSIONS)
assert CudaCall._fields[_GRID:_AFTER] == DIMENSIONS  # noqa: S101 -- both are next to each other


def _gather(values: Sequence[object]) -> Row:
    block, after = _GRID + 3, _GRID + 6
    return (
        *values[:_GRID],
        tuple(values[_GRID:block]),
        tuple(values[block:after]),
        *values[after:],
    )
