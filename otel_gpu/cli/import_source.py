"""A source that may also be a capture of another tool, recognized by its first bytes."""

from argparse import Namespace
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.cli.commands import UsageError
from otel_gpu.cli.part_reports import find_source
from otel_gpu.cli.sources import SQLITE, head_of, open_source
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.importers import open_capture
from otel_gpu.importers.sqlite_source import SqliteSource
from otel_gpu.recorder.tables.schema import APPLICATION_ID
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.source import Observers, Source

# Where a database says what program it is of.
_APPLICATION = slice(68, 72)
_TRACES = frozenset({"torch-trace", "nsys"})
_GZIP = b"\x1f\x8b"


class ImportSource(Source):
    """A capture of another tool; ``kind`` is a name in ``importers.KINDS``."""

    def __init__(self, path: Path, kind: str, config: Config) -> None:
        super().__init__(str(path))
        self.kind = kind
        self._path, self._config = path, config

    @property
    def has_traces(self) -> bool:
        """Whether it holds what devices did, and no calls of a capture."""
        return self.kind in _TRACES

    def about(self, window: Window) -> Window:
        """Refuse a part of a trace, whose figures are of the whole."""
        if self.has_traces and window != Window():
            raise UsageError("--from and --to do not apply to a trace: leave them out")
        return window

    def extent(self) -> tuple[int, int]:
        """Read it once for this."""
        extent = CaptureExtent()
        ImportSource(self._path, self.kind, self._config).play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- all is needed
        """Hand all activities to the observers."""
        with open_capture(self.kind, self._path, self._config) as capture:
            pipeline.process_events(capture.events(), Enricher(), observers)
            self.notes += capture.tally.notes
            self.rejected.update(capture.tally.rejected)


def open_any(path: Path, config: Config) -> Source:
    """Open a file, or a folder of traces, as what it is; a recording if it is nothing else."""
    if kind := _kind_of(path):
        return ImportSource(path, kind, config)
    return open_source(path, config)


def find_any(args: Namespace, config: Config, verb: str) -> Source:
    """Open what the command line names, or else the store that ``run`` writes."""
    if args.recording is not None and args.store is None:
        return open_any(args.recording, config)
    if (source := find_source(args, config)) is None:
        raise UsageError(f"name what to {verb}", hint="a recording, or --store FILE")
    return source


def _kind_of(path: Path) -> str:
    if path.is_dir():
        return "torch-trace"
    head = head_of(path)
    if head.startswith(SQLITE):
        return "" if head[_APPLICATION] == APPLICATION_ID.to_bytes(4) else _database_kind(path)
    return "torch-trace" if head.startswith(_GZIP) or head.lstrip()[:1] in (b"{", b"[") else ""


def _database_kind(path: Path) -> str:
    with SqliteSource(path) as source:
        return "nsys" if "StringIds" in source.tables() else ""
