"""
The served capture: a recording, a store that can still grow, or another tool's file.

Every answer comes from the same report that ``explain`` writes, so the two never disagree. A report
is made once for a window of a capture, and cached while the capture is unchanged.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from otel_gpu.errors import OtelGpuError, StoreError
from otel_gpu.limits.recent import Recent
from otel_gpu.mcp.arguments import Question
from otel_gpu.recorder.queries import Answer, QueryLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.collector import Collector
from otel_gpu.report.comparison.comparison import Comparison, Side, compare
from otel_gpu.report.document import Document, Window
from otel_gpu.report.health import Health
from otel_gpu.report.source import Observers, Source
from otel_gpu.report.wording.formats import format_time

MAX_ROWS = 200_000
"""Rows of a store for one answer: seconds of work."""

_KEPT = 8
# In 2116; the store adds to the times of a query.
_LAST_UNIX_NS = 1 << 62
# Captures that were replayed into a store can be in any order of time.
_CHUNKS = (
    "SELECT start_unix_ns, end_unix_ns, rows FROM chunks ORDER BY start_unix_ns DESC, chunk DESC"
)
_MOST_CHUNKS = QueryLimits(rows=100_000)


class ServedDocument(NamedTuple):
    """A document, the health of the capture, and errors in its source."""

    document: Document
    health: Health
    rejected: Mapping[str, int]
    error: str


class ServedCapture:
    """
    Answers from one file, or folder of traces; a store can be missing at first.

    Several threads can call it; it answers one at a time. ``OtelGpuError``: the capture cannot be
    read. The verb that serves it passes the functions that open it, find windows, make documents
    and make sides of a comparison. ``kind`` is that of its source; ``baseline`` is the file to
    compare with.
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: str,
        open_source: Callable[[Path], Source],
        find_window: Callable[[Source, str | None, str | None], Window],
        make_collector: Callable[[Mapping[str, int], Window, Sequence[int]], Collector],
        make_side: Callable[[str, Source, Window], Side],
        baseline: Path | None = None,
    ) -> None:
        self.path = path
        self.kind = kind
        self.is_store = kind == "store"
        self.baseline = baseline
        self._open_source = open_source
        self._find_window = find_window
        self._make_collector = make_collector
        self._make_side = make_side
        self._lock = threading.Lock()
        self._kept: Recent[tuple[object, ...], ServedDocument] = Recent(_KEPT)

    def examine(self, asked: Question) -> ServedDocument:
        """Return the document of a window."""
        with self._lock:
            # Read before the source is opened, so that a cached document is never older than its
            # key.
            state = self._state()
            with closing(self._open_source(self.path)) as source:
                window, notes = self._narrow(source, self._named(source, asked))
                key = (state, window, frozenset(asked.pids))
                document = self._kept.use(key)
                if document is None:
                    document = self._kept[key] = self._examine(
                        source, window, pids=asked.pids, notes=notes
                    )
            return document

    def resolve(self, asked: Question) -> Window:
        """Return the window of a question."""
        with self._lock, closing(self._open_source(self.path)) as source:
            return self._narrow(source, self._named(source, asked))[0]

    def compare(self, asked: Question, before: Question | None) -> Comparison:
        """Compare a window with another one of this capture; None: with the baseline."""
        path = self.path if before else self.baseline
        if path is None:
            raise OtelGpuError(
                "there is nothing to compare with",
                hint="give a window of this capture with before_from and before_to, or start the "
                "server with --baseline FILE",
            )
        with self._lock:
            # Fixed names: no traced name becomes part of a sentence.
            sides = (
                ("before", path, before or Question.model_validate({})),
                ("after", self.path, asked),
            )
            return compare(*(self._side(*side) for side in sides))

    def _side(self, name: str, path: Path, asked: Question) -> Side:
        with closing(self._open_source(path)) as source:
            window = self._named(source, asked)
            window = self._narrow(source, window)[0] if path == self.path else source.about(window)
            side = self._make_side(name, source, window)
        if source.error:
            raise source.error
        return side

    def play(self, window: Window, observers: Observers) -> None:
        """Replay the activities of a window, and those around it, to observers."""
        with self._lock, closing(self._open_source(self.path)) as source:
            source.play(window, observers)

    def ask(self, sql: str, limits: QueryLimits) -> Answer:
        """Run an SQL query; ``StoreError``: not a store, or a bad query."""
        with self._open_store() as reader:
            return reader.execute(sql, limits)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Return the store's tables and columns: name, column, meaning, unit."""
        with self._open_store() as reader:
            return reader.describe()

    def _open_store(self) -> StoreReader:
        if not self.is_store:
            verb = "replay" if self.kind == "recording" else f"import {self.kind}"
            hint = f"make a store of it: otel-gpu {verb} FILE --store STORE, and serve that"
            raise StoreError(f"this is a {self.kind}, which has no SQL tables", hint=hint)
        return StoreReader(self.path)

    def _state(self) -> object:
        # A store's content: its files also change when they are read.
        if self.is_store:
            with self._open_store() as reader:
                return reader.extent()
        try:
            files = [self.path, *(sorted(self.path.iterdir()) if self.path.is_dir() else ())]
            found = [one.stat() for one in files]
        except OSError:
            return None
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _named(self, source: Source, asked: Question) -> Window:
        named = self._find_window(source, asked.begin or None, asked.end or None)
        # Times in a question can exceed a store's integers.
        return Window(*(None if at is None else min(max(0, at), _LAST_UNIX_NS) for at in named))

    def _narrow(self, source: Source, window: Window) -> tuple[Window, list[str]]:
        if self.is_store:
            with self._open_store() as reader:
                chunks = reader.execute(_CHUNKS, _MOST_CHUNKS).rows
            rows, later_unix_ns = 0, None
            for start_unix_ns, _, count in (one for one in chunks if window.overlaps(*one[:2])):
                rows += count
                # A device trace has one time, and is never split.
                if rows > MAX_ROWS and later_unix_ns is not None and start_unix_ns != later_unix_ns:
                    note = (
                        f"The window has more than the {MAX_ROWS:,} rows that one answer can use. "
                        f"This answer starts at {format_time(later_unix_ns)} UTC. For the time "
                        "before, give a window with from and to."
                    )
                    return Window(later_unix_ns, window.end_unix_ns), [note]
                later_unix_ns = start_unix_ns
        return source.about(window), []

    def _examine(
        self, source: Source, window: Window, pids: Sequence[int], notes: list[str]
    ) -> ServedDocument:
        collector = self._make_collector(source.rejected, window, pids)
        health = Health()
        source.play(window, [collector, health])
        document = collector.finish(source.name, [*source.notes, *notes])
        return ServedDocument(
            document, health, rejected=dict(source.rejected), error=str(source.error or "")
        )
