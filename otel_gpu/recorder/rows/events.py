"""
Events as rows, and back: the fields of an event in their order.

The kernel side counts in unsigned 64-bit numbers and SQLite in signed ones. What is a
time, a size or a count never comes near the difference unless a record is broken, and is
cut off at the largest number then. Addresses and ids use all their bits, and are kept as
the signed number of the same bits.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from otel_gpu.recorder.tables.columns import JSON, MAX_INTEGER, WORD, Column, Row
from otel_gpu.recorder.tables.fields import DIMENSIONS, event_columns
from otel_gpu.recorder.text import clean
from otel_gpu.wire.events import CudaCall

WORDS = 1 << 64
"""How many numbers a word can be."""
_new_tuple = tuple.__new__


_Flatten = Callable[[Any], Row]
_Restore = Callable[[Sequence[Any]], Any]


def event_rows(event: Any) -> tuple[_Flatten, _Restore]:  # noqa: ANN401 -- the class of any event
    """Return what makes the columns of an event of a kind, and an event of columns."""
    places = tuple(at for at, column in enumerate(event_columns(event)) if column.kind is WORD)
    # Two at least, so that the getter always gives a tuple.
    words = itemgetter(*places, places[0]) if places else _no_words
    has_shape, gather = (True, _gather) if event is CudaCall else (False, tuple)

    def flatten(one: Any) -> Row:  # noqa: ANN401 -- an event of this kind
        # Takes half as long as unpacking into a new one.
        values = one[:_GRID] + one.grid + one.block + one[_AFTER:] if has_shape else tuple(one)
        if max(words(values)) > MAX_INTEGER:
            changed = list(values)
            for place in places:
                changed[place] = signed(changed[place])
            return tuple(changed)
        return values

    def restore(values: Sequence[Any]) -> Any:  # noqa: ANN401 -- an event of this kind
        if min(words(values)) < 0:
            changed = list(values)
            for place in places:
                changed[place] %= WORDS
            values = changed
        # As event._make, which takes longer.
        return _new_tuple(event, gather(values))

    return flatten, restore


def _no_words(_: Sequence[Any]) -> Row:
    return (0,)


def mend(columns: Sequence[Column], row: Row) -> Row:
    """Return a row that SQLite refused as one that it takes; what is broken stays broken."""
    return tuple(_mend(column, value) for column, value in zip(columns, row, strict=True))


def _mend(column: Column, value: Any) -> Any:  # noqa: ANN401 -- any value of a row
    if isinstance(value, str):
        # Documents are plain ASCII as they are.
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


def _gather(values: Sequence[Any]) -> Row:
    block, after = _GRID + 3, _GRID + 6
    return (
        *values[:_GRID],
        tuple(values[_GRID:block]),
        tuple(values[block:after]),
        *values[after:],
    )
