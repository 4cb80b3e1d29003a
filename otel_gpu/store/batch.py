"""A batch: rows that are written at once, so that all of them are in the store, or none."""

from typing import NamedTuple

from otel_gpu.store.columns import MAX_INTEGER, Row
from otel_gpu.store.pending_rows import PendingRows
from otel_gpu.store.tables import NUMBERED

# What a row takes in the file, with its share of what is around it; generous.
_ROW_BYTES = 120


class Extent(NamedTuple):
    """Which numbers, of what time."""

    first_seq: int
    last_seq: int
    start_unix_ns: int
    end_unix_ns: int


class Batch:
    """
    Gathers rows.

    Attributes:
        chunk: Which chunk the rows belong to.
        rows: Numbered rows by table.
        count: How many numbered rows there are.
        bytes: What they will take in the file, at most.
        pending: Rows that these refer to; what of them fails to be written is written with a
            later batch. None: there are none.
        lost: Rows that were lost so far, by reason.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.rows: dict[str, list[Row]] = {table.name: [] for table in NUMBERED}
        self.pending: PendingRows | None = None
        self.lost: dict[str, int] = {}
        self.count = 0
        self.bytes = 0
        self._first_seq = 0
        self._last_seq = 0
        self._start_unix_ns = 0
        self._end_unix_ns = 0

    def add(self, table: str, row: Row, unix_ns: int) -> None:
        """Add a row that has a number of its own, first in the row; ``unix_ns`` is its time."""
        self.rows[table].append(row)
        self.count += 1
        self.bytes += _ROW_BYTES
        self.reach(row[0], unix_ns)

    def add_part(self, table: str, row: Row, text_bytes: int = 0) -> None:
        """Add a row that is a part of the latest one; ``text_bytes``: of long text in it."""
        self.rows[table].append(row)
        self.count += 1
        self.bytes += _ROW_BYTES + text_bytes

    def add_text(self, text_bytes: int) -> None:
        """Take in that the latest row holds long text."""
        self.bytes += text_bytes

    def reach(self, seq: int, unix_ns: int) -> None:
        """Take in that a number was given, at a time."""
        if unix_ns > self._end_unix_ns:  # noqa: PLR1730 -- for every row: max() takes three times as long
            self._end_unix_ns = unix_ns
        if not self._first_seq:
            self._first_seq = seq
            self._start_unix_ns = unix_ns
        elif unix_ns < self._start_unix_ns:
            self._start_unix_ns = unix_ns
        self._last_seq = seq

    def extent(self) -> Extent:
        """Return what the numbers reach over; all 0 when none was given."""
        # What ends in three hundred years is from a broken record.
        end_unix_ns = min(self._end_unix_ns, MAX_INTEGER)
        start_unix_ns = min(self._start_unix_ns, end_unix_ns)
        return Extent(self._first_seq, self._last_seq, start_unix_ns, end_unix_ns)
