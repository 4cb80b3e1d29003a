"""A batch: rows that are written at once, so that all of them are in the store, or none."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from otel_gpu.recorder.losses import NAMES_BUSY
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.tables.events import EVENT_TABLES
from otel_gpu.recorder.tables.tables import NUMBERED

# What a row takes in the file, with its share of what is around it; generous.
ROW_BYTES = 120


class ChunkExtent(NamedTuple):
    """Which numbers, of what time."""

    first_seq: int
    last_seq: int
    start_unix_ns: int
    end_unix_ns: int


# What a row takes in the file beside its text; generous.
_REFERRED_BYTES = 160

Kept = dict[str, dict[Any, Row]]
"""Rows by table and key."""


class PendingRows:
    """
    Holds rows that others refer to by table and key, of which the latest one counts.

    They are not given up as the others are: what refers to them may be written later. But they
    can be large (a program's stack takes kilobytes), so how much waits is bounded, by bytes.
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
    return _REFERRED_BYTES + sum(len(value) for value in row if isinstance(value, str))


class RowBatch:
    """
    Gathers rows of a chunk.

    Attributes:
        rows: Numbered rows by table; ``count``: how many they are.
        text_bytes: How much long text is in them.
        pending: Rows that these refer to; what of them fails to be written is written with a
            later batch. None: there are none.
        lost: Rows that were lost so far, by reason.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.rows: dict[str, list[Row]] = {table.name: [] for table in NUMBERED}
        self.pending: PendingRows | None = None
        self.lost: dict[str, int] = {}
        self.count = self.text_bytes = 0
        # Numbers that were given, with their time, but for those of events.
        self._reached: list[tuple[int, int]] = []

    @property
    def bytes(self) -> int:
        """What the rows will take in the file, at most."""
        return self.count * ROW_BYTES + self.text_bytes

    def add(self, table: str, row: Row, unix_ns: int, text_bytes: int = 0) -> None:
        """Add a row with a number and a time of its own; ``text_bytes``: of long text in it."""
        self.add_part(table, row, text_bytes)
        self.reach(row[0], unix_ns)

    def add_part(self, table: str, row: Row, text_bytes: int = 0) -> None:
        """Add a row that has the number and the time of another one, or those of its event."""
        self.rows[table].append(row)
        self.count += 1
        self.text_bytes += text_bytes

    def add_all(
        self, table: str, rows: Sequence[Row], extent: ChunkExtent, text_bytes: int
    ) -> None:
        """Add rows that have numbers of their own and are of the same time."""
        self.rows[table] += rows
        self.count += len(rows)
        self.text_bytes += text_bytes
        self.reach(extent.first_seq, extent.start_unix_ns)
        self.reach(extent.last_seq, extent.end_unix_ns)

    def reach(self, seq: int, unix_ns: int) -> None:
        """Take in that a number was given, at a time."""
        self._reached.append((seq, unix_ns))

    @cached_property
    def extent(self) -> ChunkExtent:
        """What the numbers reach over, once all are in; all 0 when none was given."""
        seqs = [seq for seq, _ in self._reached]
        times = [unix_ns for _, unix_ns in self._reached]
        for kind in EVENT_TABLES:
            if rows := self.rows[kind.name]:
                ends = [*map(itemgetter(kind.end_place), rows)]
                seqs += (rows[0][0], rows[-1][0])
                times += (min(ends), max(ends))
        if not seqs:
            return ChunkExtent(0, 0, 0, 0)
        # What ends in three hundred years is from a broken record.
        end_unix_ns = min(max(times), MAX_INTEGER)
        return ChunkExtent(min(seqs), max(seqs), min(*times, end_unix_ns), end_unix_ns)
