"""
Rows that others refer to, until they are written.

They are not given up as the others are: what refers to them may be written later. But they
can be large (a program's stack takes kilobytes), so how much waits is bounded, by bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from otel_gpu.store.columns import Row
from otel_gpu.store.losses import NAMES_BUSY

# What a row takes in the file beside its text; generous.
_ROW_BYTES = 160

Kept = dict[str, dict[Any, Row]]
"""Rows by table and key."""


class PendingRows:
    """
    Holds rows by table and key, of which the latest one counts.

    Beyond ``most_bytes`` the oldest rows of the table that takes most are dropped, and counted: they
    are missed least. ``bytes`` is what all of them will take in the file, about.
    """

    def __init__(self, most_bytes: int, lost: Counter[str]) -> None:
        self._most_bytes = most_bytes
        self._lost = lost
        self._rows: Kept = {}
        self._table_bytes: Counter[str] = Counter()
        self.bytes = 0

    def __iter__(self) -> Iterator[tuple[str, Any, Row]]:
        for table, rows in self._rows.items():
            for key, row in rows.items():
                yield table, key, row

    def add(self, table: str, key: Any, row: Row) -> None:  # noqa: ANN401 -- any key
        """Add a row; one with the same key is replaced."""
        self._drop(table, key)
        self._rows.setdefault(table, {})[key] = row
        self._grow(table, _size_of(row))
        while self.bytes > self._most_bytes:
            ((largest, _),) = self._table_bytes.most_common(1)
            self._drop(largest, next(iter(self._rows[largest])))
            self._lost[NAMES_BUSY] += 1

    def merge(self, other: "PendingRows") -> None:
        """Take over the rows of another one."""
        for table, key, row in other:
            self.add(table, key, row)

    def part(self, most_bytes: int) -> tuple[Kept, int]:
        """Return rows that take no more than this, but for the first, and what they take."""
        part: Kept = {}
        part_bytes = 0
        for table, key, row in self:
            size_bytes = _size_of(row)
            if part and part_bytes + size_bytes > most_bytes:
                break
            part.setdefault(table, {})[key] = row
            part_bytes += size_bytes
        return part, part_bytes

    def remove(self, part: Kept) -> None:
        """Let go of rows that were written."""
        for table, rows in part.items():
            for key in rows:
                self._drop(table, key)

    def change(self, make: Callable[[str, Row], Row]) -> None:
        """Put others in the place of all rows: what ``make`` makes of a table and a row."""
        for table, rows in self._rows.items():
            self._rows[table] = {key: make(table, row) for key, row in rows.items()}

    def _drop(self, table: str, key: Any) -> None:  # noqa: ANN401 -- any key
        row = self._rows.get(table, {}).pop(key, None)
        if row is not None:
            self._grow(table, -_size_of(row))

    def _grow(self, table: str, size_bytes: int) -> None:
        self._table_bytes[table] += size_bytes
        self.bytes += size_bytes


def _size_of(row: Row) -> int:
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str))
