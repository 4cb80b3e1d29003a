"""Sources of activities for verbs: a recording, a memory snapshot, or a store."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError, StoreError
from otel_gpu.importers import ImportKind, open_capture
from otel_gpu.recorder.losses import describe_losses
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.source import Observers, Source
from otel_gpu.report.wording.formats import count_of, format_time

SQLITE = b"SQLite format 3\0"
"""The first bytes of an SQLite database."""
_HEAD_BYTES = 128
# The first byte of the pickles that PyTorch writes.
_PICKLE = b"\x80"


def open_source(path: Path, config: Config) -> Source:
    """Open a store, or else as ``open_recording`` does."""
    return StoreSource(path) if head_of(path).startswith(SQLITE) else open_recording(path, config)


def open_recording(path: Path, config: Config) -> Source:
    """Open a memory snapshot of PyTorch, or else a recording."""
    is_snapshot = head_of(path).startswith(_PICKLE)
    return SnapshotSource(path, config) if is_snapshot else RecordingSource(path)


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, to recognize its kind; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        # Opening it as a recording reports the error.
        return b""


class RecordingSource(Source):
    """
    A recording. All of it is played, because activity before a window shows what is usual.

    An empty recording raises at once, before any output. Later damage is in ``error`` after the
    activities before it were played.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._rest = read_recording(path)
        self._first = next(self._rest, ())

    def batches(self) -> Iterator[Sequence[bytes]]:
        """Yield the undamaged batches. Can be called once."""
        yield self._first
        try:
            yield from self._rest
        except RecordingError as error:
            self.error = error
            self.notes.append("The recording is damaged: what comes after that is not known.")

    def extent(self) -> tuple[int, int]:
        """Return the first and the last Unix time, after reading all of it."""
        extent = CaptureExtent()
        RecordingSource(self._path).play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- all is needed
        """Pass all activities to the observers."""
        pipeline.process(self.batches(), Enricher(), observers=observers, rejected=self.rejected)

    def close(self) -> None:
        """Close the file, also before its end was read."""
        self._rest = iter(())


class SnapshotSource(Source):
    """A memory snapshot of PyTorch. Raises the errors of its importer."""

    kind = ImportKind.TORCH_MEMORY

    def __init__(self, path: Path, config: Config) -> None:
        super().__init__(str(path))
        with open_capture(ImportKind.TORCH_MEMORY, path, config) as capture:
            self._events = tuple(capture.events())
            self._counts = capture.counts

    def extent(self) -> tuple[int, int]:
        """Return the first and the last Unix time."""
        extent = CaptureExtent()
        self.play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- as of recordings
        """Pass all activities to the observers."""
        pipeline.process_events(self._events, Enricher(), observers)
        self.notes[:] = self._counts.notes
        self.rejected.update(self._counts.rejected)


class StoreSource(Source):
    """A store. Only the rows that a window needs are read."""

    kind = "store"

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._reader = StoreReader(path)

    @property
    def has_traces(self) -> bool:
        """Whether it has device activity and no captured calls."""
        return self._reader.has_only_traces()

    def extent(self) -> tuple[int, int]:
        """Return the first and the last Unix time; (0, 0) for an empty store."""
        extent = self._reader.extent()
        return (0, 0) if extent is None else (extent.start_unix_ns, extent.end_unix_ns)

    def about(self, window: Window) -> Window:
        """
        Return the window that a report can cover.

        Counts from before the oldest chunk belong to no window. So if the store does not have one
        capture from its beginning, the window starts with the oldest chunk.
        """
        span = self._reader.span(*window)
        if span is None:
            self.notes.append("The store has nothing of this time.")
            return window
        if span.left_out:
            first, last = (format_time(at(span.left_out)) for at in (min, max))
            began = (
                f"which began at {first} UTC" if first == last else f"from {first} to {last} UTC"
            )
            self.notes.append(
                f"{count_of(len(span.left_out), 'capture')} of this time left out, {began}: of another "
                "host or boot than what was written last, or with other histograms. Choose a window "
                "(--from, --to) that holds no others, or replay them into a store of their own."
            )
        start_unix_ns = window.start_unix_ns
        if start_unix_ns is None:
            # Before the first capture there were no counts.
            first_unix_ns = span.before_unix_ns if span.chunk else span.start_unix_ns
            return window if span.is_whole else window._replace(start_unix_ns=first_unix_ns)
        if span.chunk:
            start_unix_ns = max(start_unix_ns, span.before_unix_ns)
        return window._replace(start_unix_ns=start_unix_ns)

    def play(self, window: Window, observers: Observers) -> None:
        """Pass the activities of the window, and of a margin around it, to the observers."""
        reader = self._reader
        try:
            for activity in reader.activities(*window):
                for observer in observers:
                    observer.observe(activity)
            for notes, rejected in reader.imports(*window):
                self.notes += notes
                self.rejected.update(rejected)
            for sentence in describe_losses(reader.losses()):
                self.notes.append(f"Over the whole life of the store: {sentence}.")
        except StoreError as error:
            self.error = error
            self.notes.append("The store is damaged: what comes after that is not known.")
        self.rejected.update(reader.rejected)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
