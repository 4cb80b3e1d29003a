"""The reader: what a store holds, for a window of time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from otel_gpu.enrich.activities import Activity
from otel_gpu.recorder.dictionary import Dictionary
from otel_gpu.recorder.files import open_reading
from otel_gpu.recorder.lock import UNENDED, read_lock
from otel_gpu.recorder.losses import KILLED
from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.playback import Playback
from otel_gpu.recorder.queries import Answer, QueryLimits, ask
from otel_gpu.recorder.span import Span, find_span
from otel_gpu.recorder.tables.columns import Row
from otel_gpu.recorder.text import from_json, read_counts


class StoreExtent(NamedTuple):
    """How far a store reaches: its earliest moment, and the end of what was written last."""

    start_unix_ns: int
    end_unix_ns: int
    rows: int


class StoreReader:
    """
    Reads a store, also while it is written; ``path`` is its file.

    Raises:
        StoreError: There is none, it may not be read, or it is of another version. The
            methods raise it too, where the file cannot be read any further.
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
        """Let go of the file."""
        self._connection.close()

    @property
    def rejected(self) -> Mapping[str, int]:
        """Rows that are not what their table holds, by table; only a damaged store has any."""
        return self._pages.rejected

    def extent(self) -> StoreExtent | None:
        """Return how far the store reaches; None: it is empty."""
        chunks = self._pages.where("chunks", "1")
        if not chunks:
            return None
        start = min(row[3] for row in chunks)
        # What was written last, also after a clock was set back: "the last minutes" are those.
        return StoreExtent(start, chunks[-1][4], sum(row[6] for row in chunks))

    def span(self, start_unix_ns: int | None = None, end_unix_ns: int | None = None) -> Span | None:
        """Return which rows a window needs; None: there are none."""
        return find_span(self._pages, start_unix_ns, end_unix_ns)

    def activities(
        self, start_unix_ns: int | None = None, end_unix_ns: int | None = None
    ) -> Iterator[Activity]:
        """Yield the activities of a window, and of a little before and after it, in order."""
        span = self.span(start_unix_ns, end_unix_ns)
        if span is not None:
            # What a process is called may have become known since another window was read.
            directory = Dictionary(self._pages)
            yield from Playback(self._pages, directory, span).activities()

    def has_only_traces(self) -> bool:
        """Say whether there are traces of devices, and nothing that was counted."""
        return bool(self._pages.where("device_traces", "1")) and not (
            self._pages.where("series", "series = (SELECT min(series) FROM series)")
        )

    def imports(
        self, start_unix_ns: int | None = None, end_unix_ns: int | None = None
    ) -> Iterator[tuple[list[str], dict[str, int]]]:
        """Yield what is to be known of the imports in a window: sentences, and counts by reason."""
        span = self.span(start_unix_ns, end_unix_ns)
        if span is None:
            return
        for *_, notes, rejected in self._pages.between("imports", span.first_seq, span.last_seq):
            try:
                yield [str(note) for note in from_json(notes, list)], read_counts(rejected)
            except ValueError:
                self._pages.reject("imports")

    def losses(self) -> dict[str, int]:
        """Return what did not reach the store, by reason, over its whole life until now."""
        lost: Counter[str] = Counter(dict(self._pages.where("losses", "rows > 0")))
        # Nobody holds the lock, so the last writer is gone.
        if last := read_lock(self.path):
            for (written,) in self._pages.fetch(UNENDED, (last.writer,)):
                lost[KILLED] += last.lost_rows(written) if isinstance(written, int) else 0
        return dict(+lost)

    def execute(self, sql: str, limits: QueryLimits | None = None) -> Answer:
        """Answer a question in SQL, as ``queries.ask`` does."""
        return ask(self.path, sql, QueryLimits() if limits is None else limits)

    def describe(self) -> list[Row]:
        """Return what tables, views and columns mean: name, column, meaning, unit."""
        return [row[1:] for row in self._pages.where("schema_info", "1")]
