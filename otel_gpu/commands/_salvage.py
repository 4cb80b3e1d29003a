"""
Reading a recording as far as it goes.

Not a verb: whatever reads recordings uses it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_gpu.capture.recording import read_recording
from otel_gpu.errors import RecordingError


class Salvage:
    """
    A recording that ends where it is damaged.

    The error waits in ``error`` until what came before it has been used. A recording
    that holds nothing raises at once, so that no output is begun for it.
    """

    def __init__(self, path: Path) -> None:
        self.error: RecordingError | None = None
        self._rest = read_recording(path)
        self._first = next(self._rest, ())

    def close(self) -> None:
        """Let go of the file, which may not have been read to its end."""
        self._rest = iter(())

    def batches(self) -> Iterator[Sequence[bytes]]:
        """Yield what is whole; once."""
        yield self._first
        try:
            yield from self._rest
        except RecordingError as error:
            self.error = error
