"""Where activities come from that a verb explains: a recording, a memory snapshot, or a store."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError, StoreError
from otel_gpu.importers import open_capture
from otel_gpu.recorder.losses import describe_losses
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.source import Observers, Source
from otel_gpu.report.wording.formats import count_of, format_time

SQLITE = b"SQLite format 3\0"
"""What a database begins with."""
_HEAD_BYTES = 128
# Of the pickles that PyTorch writes.
_PICKLE = b"\x80"


def open_source(path: Path, config: Config) -> Source:
    """Open a file as what it is: a store, or else as ``open_recording`` does."""
    return StoreSource(path) if head_of(path).startswith(SQLITE) else open_recording(path, config)


def open_recording(path: Path, config: Config) -> Source:
    """Open a memory snapshot of PyTorch, or else a recording."""
    is_snapshot = head_of(path).startswith(_PICKLE)
    return SnapshotSource(path, config) if is_snapshot else RecordingSource(path)


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, which say what it is; nothing of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        # Who reads recordings says what is wrong with it.
        return b""


class RecordingSource(Source):
    """
    A recording, as far as it goes; all of it is played, since what was usual before a window counts.

    One that holds nothing raises at once, so that no output is begun for it. What damage comes
    later is in ``error`` when what came before has been used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._rest = read_recording(path)
        self._first = next(self._rest, ())

    def batches(self) -> Iterator[Sequence[bytes]]:
        """Yield what is whole; once."""
        yield self._first
        try:
            yield from self._rest
        except RecordingError as error:
            self.error = error
            self.notes.append("The recording is damaged: what comes after that is not known.")

    def extent(self) -> tuple[int, int]:
        """Read the recording once for this: only its end says when that is."""
        extent = CaptureExtent()
        RecordingSource(self._path).play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- all is needed
        """Hand all activities to the observers."""
        pipeline.process(self.batches(), Enricher(), observers, self.rejected)

    def close(self) -> None:
        """Let go of the file, which may not have been read to its end."""
        self._rest = iter(())


class SnapshotSource(Source):
    """A memory snapshot of PyTorch; raises as its importer does."""

    kind = "torch-memory"

    def __init__(self, path: Path, config: Config) -> None:
        super().__init__(str(path))
        with open_capture("torch-memory", path, config) as capture:
            self._events = tuple(capture.events())
            self._tally = capture.tally

    def extent(self) -> tuple[int, int]:
        """When what was recorded began and ended."""
        extent = CaptureExtent()
        self.play(Window(), [extent])
        return extent.start_unix_ns, extent.end_unix_ns

    def play(self, window: Window, observers: Observers) -> None:  # noqa: ARG002 -- as of recordings
        """Hand all activities to the observers."""
        pipeline.process_events(self._events, Enricher(), observers)
        self.notes[:] = self._tally.notes
        self.rejected.update(self._tally.rejected)


class StoreSource(Source):
    """A store; only what a window needs is read."""

    kind = "store"

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._reader = StoreReader(path)

    @property
    def has_traces(self) -> bool:
        """Whether it holds what devices did, and no calls of a capture."""
        return self._reader.has_only_traces()

    def extent(self) -> tuple[int, int]:
        """How far the store reaches."""
        extent = self._reader.extent()
        return (0, 0) if extent is None else (extent.start_unix_ns, extent.end_unix_ns)

    def about(self, window: Window) -> Window:
        """
        What a report of a window is about.

        What was counted before the oldest chunk belongs to no window, so a store that
        does not hold one capture from its beginning is reported from its oldest chunk on.
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
            # Before the first capture nothing was counted.
            first_unix_ns = span.before_unix_ns if span.chunk else span.start_unix_ns
            return window if span.is_whole else window._replace(start_unix_ns=first_unix_ns)
        if span.chunk:
            start_unix_ns = max(start_unix_ns, span.before_unix_ns)
        return window._replace(start_unix_ns=start_unix_ns)

    def play(self, window: Window, observers: Observers) -> None:
        """Hand the activities of the window, and of a little around it, to the observers."""
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
        """Let go of the file."""
        self._reader.close()
