"""Reads the text of a trace in chunks, compressed or not."""

import codecs
import gzip
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Final, Self

from otel_gpu.errors import RecordingError

# Larger ones are new memory each time, which the kernel has to give: of 100 MB in chunks of 1 MiB that
# takes as long as half of the parsing.
CHUNK_BYTES: Final = 1 << 18
MAX_BYTES: Final = 16 << 30
"""Of the text of one trace, without compression."""

_GZIP = b"\x1f\x8b"


class Text:
    """
    A trace as text; a context manager.

    Bytes that are not UTF-8 become U+FFFD. ``problem`` is the reason for an early end of the text.

    Raises:
        RecordingError: It is not a regular file, or the text is too long.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # It is not opened before it is known to be one.
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise RecordingError(f"{path}: is not a regular file")
            with path.open("rb") as stream:
                is_compressed = stream.read(len(_GZIP)) == _GZIP
            self._stream: BufferedReader | gzip.GzipFile = (
                gzip.GzipFile(path) if is_compressed else path.open("rb")
            )
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from error
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._left_bytes = MAX_BYTES
        self.modified_unix_ns = status.st_mtime_ns
        self.problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self) -> str:
        """Return the next chunk; empty: the end."""
        if self.problem:
            return ""
        parts: list[bytes] = []
        wanted = CHUNK_BYTES
        try:
            # What was unpacked before the damage is not lost, as it would be by reading at once.
            while wanted > 0 and (part := self._stream.read1(CHUNK_BYTES)):
                parts.append(part)
                wanted -= len(part)
        except EOFError:
            self.problem = "the compressed file ends early"
        except (zlib.error, gzip.BadGzipFile):
            self.problem = "the compressed file is damaged"
        except OSError as error:
            raise RecordingError(f"{self._path}: {error.strerror or error}") from error
        # Of one part, which is nearly always all, nothing is copied.
        chunk = b"".join(parts)
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise RecordingError(
                f"{self._path}: it has more than {MAX_BYTES >> 30} GiB of text",
                hint="profile fewer steps",
            )
        # A chunk can end within a character.
        text = self._decoder.decode(chunk, final=not chunk)
        return text if text or not chunk else self.read()
