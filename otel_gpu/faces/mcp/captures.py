"""
The capture that is served: a recording, or a store that may still grow.

Every answer is made of the report that ``explain`` writes, so the two never disagree. A
report is made once for a window of a capture, and kept while the capture is the same.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from otel_gpu.errors import StoreError
from otel_gpu.faces.mcp.arguments import Question
from otel_gpu.findings.collector import Collector
from otel_gpu.findings.document import Document, Window
from otel_gpu.findings.health import Health
from otel_gpu.findings.source import Observers, Source
from otel_gpu.findings.words import format_time
from otel_gpu.store.queries import Answer, QueryLimits
from otel_gpu.store.reader import StoreReader

MAX_ROWS = 200_000
"""Rows of a store that one answer is made of: seconds of work."""

_KEPT = 8
# In 2116; the store adds to what it is asked about.
_LAST_UNIX_NS = 1 << 62
_CHUNKS = "SELECT start_unix_ns, end_unix_ns, rows FROM chunks ORDER BY chunk DESC"
_MOST_CHUNKS = QueryLimits(rows=100_000)


class Study(NamedTuple):
    """A document, what the capture said about itself, and what of it was wrong."""

    document: Document
    health: Health
    rejected: Mapping[str, int]
    error: str


class Capture:
    """
    Answers for one file: a recording, or a store, which may not exist yet.

    May be asked by several threads, one at a time; raises ``OtelGpuError`` where it cannot be read.
    How it is opened, how words for a window of it are read and how a document is made is said by
    the verb that serves it.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_store: bool,
        open_source: Callable[[Path], Source],
        find_window: Callable[[Source, str | None, str | None], Window],
        make_collector: Callable[[Mapping[str, int], Window, Sequence[int]], Collector],
    ) -> None:
        self.path = path
        self.is_store = is_store
        self._open_source = open_source
        self._find_window = find_window
        self._make_collector = make_collector
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], Study] = OrderedDict()

    def study(self, asked: Question) -> Study:
        """Return the document of a window."""
        with self._lock:
            # Before it is opened: what is kept is never older than what it is kept for.
            state = self._state()
            with closing(self._open_source(self.path)) as source:
                window, notes = self._narrow(source, self._named(source, asked))
                key = (state, window, frozenset(asked.pids))
                if key not in self._kept:
                    self._kept[key] = self._study(source, window, asked.pids, notes)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def resolve(self, asked: Question) -> Window:
        """Return the window that a question names."""
        with self._lock, closing(self._open_source(self.path)) as source:
            return self._narrow(source, self._named(source, asked))[0]

    def play(self, window: Window, observers: Observers) -> None:
        """Hand what happened in a window, and more, to observers."""
        with self._lock, closing(self._open_source(self.path)) as source:
            source.play(window, observers)

    def ask(self, sql: str, limits: QueryLimits) -> Answer:
        """Answer a question in SQL; ``StoreError`` without a store, or for a bad one."""
        with self._open_store() as reader:
            return reader.execute(sql, limits)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Return what the tables of the store mean: name, column, meaning, unit."""
        with self._open_store() as reader:
            return reader.describe()

    def _open_store(self) -> StoreReader:
        if not self.is_store:
            hint = "make a store of it: otel-gpu replay FILE --store STORE, and serve that"
            raise StoreError("this is a recording, which cannot be asked in SQL", hint=hint)
        return StoreReader(self.path)

    def _state(self) -> object:
        # Of a store, what it holds: its files change also when it is read.
        if self.is_store:
            with self._open_store() as reader:
                return reader.extent()
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _named(self, source: Source, asked: Question) -> Window:
        named = self._find_window(source, asked.begin or None, asked.end or None)
        # Words can name moments that no store has a number for.
        return Window(*(None if at is None else min(max(0, at), _LAST_UNIX_NS) for at in named))

    def _narrow(self, source: Source, window: Window) -> tuple[Window, list[str]]:
        if self.is_store:
            with self._open_store() as reader:
                chunks = reader.execute(_CHUNKS, _MOST_CHUNKS).rows
            rows, later_unix_ns = 0, None
            for start_unix_ns, _, count in (one for one in chunks if window.overlaps(*one[:2])):
                rows += count
                if rows > MAX_ROWS and later_unix_ns is not None:
                    note = (
                        f"There is more here than the {MAX_ROWS:,} rows that one answer is made "
                        f"of: this is about {format_time(later_unix_ns)} UTC and after. For what "
                        "was before, name a window with from and to."
                    )
                    return Window(later_unix_ns, window.end_unix_ns), [note]
                later_unix_ns = start_unix_ns
        return source.about(window), []

    def _study(
        self, source: Source, window: Window, pids: Sequence[int], notes: list[str]
    ) -> Study:
        collector = self._make_collector(source.rejected, window, pids)
        health = Health()
        source.play(window, [collector, health])
        document = collector.finish(source.name, [*source.notes, *notes])
        return Study(document, health, dict(source.rejected), str(source.error or ""))
