"""A batch: rows that are written at once, so that all of them are in the store, or none."""

from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from otel_gpu.store.columns import MAX_INTEGER, Row
from otel_gpu.store.event_tables import EVENT_TABLES
from otel_gpu.store.pending_rows import PendingRows
from otel_gpu.store.tables import NUMBERED

# What a row takes in the file, with its share of what is around it; generous.
ROW_BYTES = 120


class Extent(NamedTuple):
    """Which numbers, of what time."""

    first_seq: int
    last_seq: int
    start_unix_ns: int
    end_unix_ns: int


class Batch:
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

    def reach(self, seq: int, unix_ns: int) -> None:
        """Take in that a number was given, at a time."""
        self._reached.append((seq, unix_ns))

    @cached_property
    def extent(self) -> Extent:
        """What the numbers reach over, once all are in; all 0 when none was given."""
        seqs = [seq for seq, _ in self._reached]
        times = [unix_ns for _, unix_ns in self._reached]
        for kind in EVENT_TABLES:
            if rows := self.rows[kind.name]:
                ends = [*map(itemgetter(kind.end_place), rows)]
                seqs += (rows[0][0], rows[-1][0])
                times += (min(ends), max(ends))
        if not seqs:
            return Extent(0, 0, 0, 0)
        # What ends in three hundred years is from a broken record.
        end_unix_ns = min(max(times), MAX_INTEGER)
        return Extent(min(seqs), max(seqs), min(*times, end_unix_ns), end_unix_ns)
