"""Sources that can also be captures of other tools, recognized by their first bytes."""

from argparse import Namespace
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.cli.commands import UsageError
from otel_gpu.cli.part_reports import find_source
from otel_gpu.cli.sources import SQLITE, head_of, open_source
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.importers import ImportKind, open_capture
from otel_gpu.importers.sqlite_source import SqliteSource
from otel_gpu.recorder.tables.schema import APPLICATION_ID
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.source import Observers, Source

# The application id in the header of an SQLite file.
_APPLICATION = slice(68, 72)
_TRACES = frozenset({ImportKind.TORCH_TRACE, ImportKind.NSYS})
_GZIP = b"\x1f\x8b"


class ImportSource(Source):
    """A capture of another tool."""

    def __init__(self, path: Path, kind: ImportKind, config: Config) -> None:
        super().__init__(str(path))
        self.kind = str(kind)
        self._kind = kind
        self._path, self._config = path, config

    @property
    def has_traces(self) -> bool:
        """Whether it has device activity and no captured calls."""
        return self._kind in _TRACES

    def about(self, window: Window) -> Window:
        """Return the window; ``UsageError`` for a part of a trace, whose figures are totals."""
        if self.has_traces and window != Window():
            raise UsageError("--from and --to do not apply to a trace: leave them out")
        return window

    def extent(self) -> tuple[int, int]:
        """Return the first and the last Unix time, after reading all of it."""
        extent = CaptureExtent()
        ImportSource(self._path, self._kind, self._config).play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- all is needed
        """Pass all activities to the observers."""
        with open_capture(self._kind, self._path, self._config) as capture:
            pipeline.process_events(capture.events(), Enricher(), observers)
            self.notes += capture.counts.notes
            self.rejected.update(capture.counts.rejected)


def open_any(path: Path, config: Config) -> Source:
    """Open a file, or a folder of traces, by its kind. An unknown kind is opened as a recording."""
    if kind := _kind_of(path):
        return ImportSource(path, kind, config)
    return open_source(path, config)


def find_any(args: Namespace, config: Config, verb: str) -> Source:
    """Open the named source, else the store that ``run`` writes; ``UsageError`` without either."""
    if args.recording is not None and args.store is None:
        return open_any(args.recording, config)
    if (source := find_source(args, config)) is None:
        raise UsageError(f"name what to {verb}", hint="a recording, or --store FILE")
    return source


def _kind_of(path: Path) -> ImportKind | None:
    if path.is_dir():
        return ImportKind.TORCH_TRACE
    head = head_of(path)
    if head.startswith(SQLITE):
        return None if head[_APPLICATION] == APPLICATION_ID.to_bytes(4) else _database_kind(path)
    is_json = head.startswith(_GZIP) or head.lstrip()[:1] in (b"{", b"[")
    return ImportKind.TORCH_TRACE if is_json else None


def _database_kind(path: Path) -> ImportKind | None:
    with SqliteSource(path) as source:
        return ImportKind.NSYS if "StringIds" in source.tables() else None
