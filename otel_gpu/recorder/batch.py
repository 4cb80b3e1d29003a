"""Batches: rows that are written in one transaction, all or none."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.tables.events import EVENT_TABLES
from otel_gpu.recorder.tables.tables import NUMBERED

# Bytes of a row in the file, with its share of page overhead; an upper estimate.
ROW_BYTES = 120


class ChunkExtent(NamedTuple):
    """The first and last ``seq`` of a chunk or batch, and its time range in Unix time."""

    first_seq: int
    last_seq: int
    start_unix_ns: int
    end_unix_ns: int


# Bytes of a referred row in the file beside its text; an upper estimate.
_REFERRED_BYTES = 160

Kept = dict[str, dict[object, Row]]
"""Rows by table and key."""


class PendingRows:
    """
    Rows to write that other rows refer to, by table and key. A later row replaces one of the same key.

    If a batch is lost they are kept, because later rows can refer to them. They can be large (a
    program's stack takes kilobytes), so their bytes are limited: above ``most_bytes`` the oldest rows
    of the largest table are dropped and counted, as they are needed least. ``bytes`` is their
    estimated size in the file.
    """

    def __init__(self, most_bytes: int, lost: Counter[str]) -> None:
        self._most_bytes = most_bytes
        self._lost = lost
        self._rows: Kept = {}
        self._table_bytes: Counter[str] = Counter()
        self.bytes = 0

    def __iter__(self) -> Iterator[tuple[str, object, Row]]:
        for table, rows in self._rows.items():
            for key, row in rows.items():
                yield table, key, row

    def add(self, table: str, key: object, row: Row) -> None:
        """Add a row, or replace the one with the same key."""
        self._drop(table, key)
        self._rows.setdefault(table, {})[key] = row
        self._grow(table, _size_of(row))
        while self.bytes > self._most_bytes:
            ((largest, _),) = self._table_bytes.most_common(1)
            self._drop(largest, next(iter(self._rows[largest])))
            self._lost[RowLoss.NAMES_BUSY] += 1

    def merge(self, other: "PendingRows") -> None:
        """Add all rows of another instance."""
        for table, key, row in other:
            self.add(table, key, row)

    def part(self, most_bytes: int) -> tuple[Kept, int]:
        """Return the first rows up to ``most_bytes``, but at least one, and their bytes."""
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
        """Remove rows that were written."""
        for table, rows in part.items():
            for key in rows:
                self._drop(table, key)

    def change(self, make: Callable[[str, Row], Row]) -> None:
        """Replace each row by the result of ``make`` for its table and itself."""
        for table, rows in self._rows.items():
            self._rows[table] = {key: make(table, row) for key, row in rows.items()}

    def _drop(self, table: str, key: object) -> None:
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
    Collects rows of a chunk.

    Attributes:
        rows: Numbered rows by table; ``count`` is their number.
        text_bytes: Bytes of long text in them.
        pending: Rows that these refer to. Those that cannot be written go into a later batch.
        lost: Rows lost so far, by reason.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.rows: dict[str, list[Row]] = {table.name: [] for table in NUMBERED}
        self.pending: PendingRows | None = None
        self.lost: dict[str, int] = {}
        self.count = self.text_bytes = 0
        # Assigned numbers with their times, except those of events.
        self._reached: list[tuple[int, int]] = []

    @property
    def bytes(self) -> int:
        """Upper estimate of the bytes of the rows in the file."""
        return self.count * ROW_BYTES + self.text_bytes

    def add(self, table: str, row: Row, unix_ns: int, text_bytes: int = 0) -> None:
        """Add a row with its own number and time; ``text_bytes`` of it are long text."""
        self.add_part(table, row, text_bytes)
        self.reach(row[0], unix_ns)

    def add_part(self, table: str, row: Row, text_bytes: int = 0) -> None:
        """Add a row that shares the number and the time of another row or of its event."""
        self.rows[table].append(row)
        self.count += 1
        self.text_bytes += text_bytes

    def add_all(
        self, table: str, rows: Sequence[Row], extent: ChunkExtent, text_bytes: int
    ) -> None:
        """Add rows with their own numbers, which share one time range."""
        self.rows[table] += rows
        self.count += len(rows)
        self.text_bytes += text_bytes
        self.reach(extent.first_seq, extent.start_unix_ns)
        self.reach(extent.last_seq, extent.end_unix_ns)

    def reach(self, seq: int, unix_ns: int) -> None:
        """Note that a number was assigned, with its time."""
        self._reached.append((seq, unix_ns))

    @cached_property
    def extent(self) -> ChunkExtent:
        """The extent of all numbers, cached at the first use; all 0 without numbers."""
        seqs = [seq for seq, _ in self._reached]
        times = [unix_ns for _, unix_ns in self._reached]
        for kind in EVENT_TABLES:
            if rows := self.rows[kind.name]:
                ends = [*map(itemgetter(kind.end_place), rows)]
                seqs += (rows[0][0], rows[-1][0])
                times += (min(ends), max(ends))
        if not seqs:
            return ChunkExtent(first_seq=0, last_seq=0, start_unix_ns=0, end_unix_ns=0)
        # A broken record can have a time that SQLite cannot hold.
        end_unix_ns = min(max(times), MAX_INTEGER)
        return ChunkExtent(
            first_seq=min(seqs),
            last_seq=max(seqs),
            start_unix_ns=min(*times, end_unix_ns),
            end_unix_ns=end_unix_ns,
        )
