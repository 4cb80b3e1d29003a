"""The reader of a store, by windows of time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from otel_gpu.enrich.activities import Activity
from otel_gpu.recorder.dictionary import Dictionary
from otel_gpu.recorder.files import open_reading
from otel_gpu.recorder.lock import UNENDED, read_lock
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.playback import Playback
from otel_gpu.recorder.queries import Answer, QueryLimits, ask
from otel_gpu.recorder.span import Span, find_span
from otel_gpu.recorder.storable_text import from_json, read_counts
from otel_gpu.recorder.tables.columns import Row


class StoreExtent(NamedTuple):
    """The earliest time in a store, the end of the last written chunk, and the number of rows."""

    start_unix_ns: int
    end_unix_ns: int
    rows: int


class StoreReader:
    """
    Reads a store, also while it is written.

    Raises:
        StoreError: The store does not exist, cannot be read, or is of another version. Methods raise
            it if the file cannot be read further.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_reading(path)
        self._pages = Pages(self._connection, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def rejected(self) -> Mapping[str, int]:
        """Invalid rows by table; only a damaged store has any."""
        return self._pages.rejected

    def extent(self) -> StoreExtent | None:
        """Return the time range of the store; None: it is empty."""
        chunks = self._pages.where("chunks", "1")
        if not chunks:
            return None
        start = min(row[3] for row in chunks)
        # The last written chunk, also after a clock was set back: "the last minutes" means these.
        return StoreExtent(start, chunks[-1][4], sum(row[6] for row in chunks))

    def span(self, start_unix_ns: int | None = None, end_unix_ns: int | None = None) -> Span | None:
        """Return the rows that a window needs; None: there are none."""
        return find_span(self._pages, start_unix_ns, end_unix_ns)

    def activities(
        self, start_unix_ns: int | None = None, end_unix_ns: int | None = None
    ) -> Iterator[Activity]:
        """Yield the activities of a window, and of margins before and after it, in order."""
        span = self.span(start_unix_ns, end_unix_ns)
        if span is not None:
            # A new one, because names of processes can be written after another window was read.
            dictionary = Dictionary(self._pages)
            yield from Playback(self._pages, dictionary, span).activities()

    def has_only_traces(self) -> bool:
        """Return whether the store has device traces and no counts of a capture."""
        return bool(self._pages.where("device_traces", "1")) and not (
            self._pages.where("series", "series = (SELECT min(series) FROM series)")
        )

    def imports(
        self, start_unix_ns: int | None = None, end_unix_ns: int | None = None
    ) -> Iterator[tuple[list[str], dict[str, int]]]:
        """Yield the notes of each import in a window, and its rejected records by reason."""
        span = self.span(start_unix_ns, end_unix_ns)
        if span is None:
            return
        for *_, notes, rejected in self._pages.between("imports", span.first_seq, span.last_seq):
            try:
                yield [str(note) for note in from_json(notes, list)], read_counts(rejected)
            except ValueError:
                self._pages.reject("imports")

    def losses(self) -> dict[str, int]:
        """Return the rows that did not reach the store, by reason, over its whole life."""
        lost: Counter[str] = Counter(dict(self._pages.where("losses", "rows > 0")))
        # No process holds the lock, so the last writer has ended.
        if last := read_lock(self.path):
            for (written,) in self._pages.fetch(UNENDED, (last.writer,)):
                lost[RowLoss.KILLED] += last.lost_rows(written) if isinstance(written, int) else 0
        return dict(+lost)

    def execute(self, sql: str, limits: QueryLimits | None = None) -> Answer:
        """Run a query in SQL, as ``queries.ask`` does."""
        return ask(self.path, sql, QueryLimits() if limits is None else limits)

    def describe(self) -> list[Row]:
        """Return tables, views and columns as rows of name, column, meaning, unit."""
        return [row[1:] for row in self._pages.where("schema_info", "1")]
