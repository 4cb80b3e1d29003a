r"""
Recordings: the record stream in a file.

Format
------

A recording outlives the host, the processes and the version of otel_gpu that wrote it, and it is
untrusted input. Its writer can be killed at any byte. So a file is a header, then chunks that can be
read independently, then a mark that shows that it is complete. Numbers are little-endian.

    header      ┌───────────────────┬────────┬────────┬────────┐
                │ "OTELGPU\0"       │ format │ wire   │ crc32  │
                └───────────────────┴────────┴────────┴────────┘
                  8 bytes             u16      u16      u32, of the 12 bytes before

    chunk       ┌────────────┬────────────┬────────┬───────────────────────┐
                │ compressed │ raw        │ crc32  │ zlib stream           │
                └────────────┴────────────┴────────┴───────────────────────┘
                  u32 bytes    u32 bytes    u32      "compressed" bytes; the crc32
                                                     is of the "raw" bytes within

    raw         ┌────────┬──────────────┬────────┬──────────────┬┄
                │ length │ record       │ length │ record       │   whole records
                └────────┴──────────────┴────────┴──────────────┴┄
                  u32      "length" bytes

    end mark    ┌────────────┬────────────┬────────────┐
                │ 0          │ 0xffffffff │ 0xffffffff │   no zeroed disk block
                └────────────┴────────────┴────────────┘   looks like it

One clock record (unix_ns 2 at ktime 1), alone in its recording:

    4f 54 45 4c 47 50 55 00  01 00  02 00  5f c2 34 67    OTELGPU, format 1, wire 2
    18 00 00 00  2c 00 00 00  24 54 25 77  78 01 d3 …     24 bytes hold 44: 4 + 40
    00 00 00 00  ff ff ff ff  ff ff ff ff                 and that is all

A reader yields every whole chunk before it raises an error, so a killed writer loses only its last
chunk. Each length is checked against a bound before use, no chunk unpacks to more than it declares,
and every checksum is checked. Records of an older wire version are yielded unchanged; decoding converts
those that have changed.
"""

import logging
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from otel_gpu import wire
from otel_gpu.errors import RecordingError
from otel_gpu.files import safe_files

MAGIC = b"OTELGPU\0"
FORMAT_VERSION = 1
_OLDEST_WIRE_VERSION = 1
MAX_CHUNK_BYTES = 16 << 20
"""No chunk holds more than this, unpacked."""

_HEADER = struct.Struct("<8sHHI")
_CHECKED_HEADER_BYTES = _HEADER.size - 4
_CHUNK = struct.Struct("<III")
_END = _CHUNK.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
_LENGTH = struct.Struct("<I")
# Where zlib cannot compress it adds 5 bytes per 16 KiB, and a frame.
_MAX_COMPRESSED_BYTES = MAX_CHUNK_BYTES + MAX_CHUNK_BYTES // 1024
# Level 1 packs records of calls to about a fifth; higher levels take too much CPU.
_COMPRESSION_LEVEL = 1
_FLUSH_BYTES = 256 << 10
_FLUSH_INTERVAL_S = 1.0
_BATCH_RECORDS = 4096

_logger = logging.getLogger(__name__)


class RecordingWriter:
    """
    Writes a recording in chunks.

    It replaces a recording at ``path``, and refuses to replace any other file. Only the owner can
    read the file, because it contains command lines. If the writer is killed, buffered records (less
    than ``flush_bytes``) are lost.

    Args:
        path: Of the file; a symbolic link is refused.
        flush_bytes: The size at which buffered records become a chunk.
        flush_interval_s: The age at which a ``write`` makes them a chunk, whatever their size.

    Raises:
        RecordingError: Another file is at ``path``, or it cannot be created.
    """

    def __init__(
        self,
        path: Path,
        *,
        flush_bytes: int = _FLUSH_BYTES,
        flush_interval_s: float = _FLUSH_INTERVAL_S,
    ) -> None:
        self._path = path
        self._flush_bytes = flush_bytes
        self._flush_interval_s = flush_interval_s
        self._flushed_s = time.monotonic()
        self._buffer = bytearray()
        self._file_bytes = 0
        self._fd = -1
        self._fd = _create_file(path)
        self._append(_make_header())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def write(self, batch: Sequence[bytes]) -> None:
        """
        Append records.

        Raises:
            RecordingError: The file cannot grow. Its content stays readable, and the writer is closed.
            ValueError: A record is larger than the largest chunk, or the writer is closed.
        """
        if self._fd < 0:
            raise ValueError("the recording is closed")
        buffer = self._buffer
        for record in batch:
            if len(record) > MAX_CHUNK_BYTES - _LENGTH.size:
                raise ValueError(f"a record of {len(record)} bytes does not fit a chunk")
            if len(buffer) + _LENGTH.size + len(record) > MAX_CHUNK_BYTES:
                self.flush()
            buffer += _LENGTH.pack(len(record))
            buffer += record
            if len(buffer) >= self._flush_bytes:
                self.flush()
        if time.monotonic() - self._flushed_s >= self._flush_interval_s:
            self.flush()

    def flush(self) -> None:
        """Write buffered records as a chunk; raises like ``write``."""
        self._flushed_s = time.monotonic()
        if not self._buffer:
            return
        compressed = zlib.compress(self._buffer, _COMPRESSION_LEVEL)
        header = _CHUNK.pack(len(compressed), len(self._buffer), zlib.crc32(self._buffer))
        self._buffer.clear()
        self._append(header + compressed)

    def close(self) -> None:
        """Write buffered records and the end mark, unless closed; raises like ``write``."""
        if self._fd < 0:
            return
        self.flush()
        self._append(_END)
        self._close_file()

    def _append(self, data: bytes) -> None:
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[os.write(self._fd, remaining) :]
        except OSError as error:
            self._forget_partial_chunk()
            self._close_file()
            raise RecordingError(
                f"{self._path}: cannot continue the recording: {error.strerror}",
                hint="replay the file: it is complete up to this point",
            ) from error
        self._file_bytes += len(data)

    def _forget_partial_chunk(self) -> None:
        try:
            os.ftruncate(self._fd, self._file_bytes)
        except OSError as error:
            # A reader stops at the partial chunk, too, but reports it.
            _logger.debug("%s: partial chunk left in place: %s", self._path, error)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        self._buffer.clear()
        os.close(fd)


def read_recording(path: Path) -> Iterator[Sequence[bytes]]:
    """
    Read a recording's records in order, in batches.

    Memory is bounded for any content. All whole chunks are yielded before an error is raised.

    Yields:
        Batches of records; none is empty.

    Raises:
        RecordingError: The file is missing, not a recording, of another version, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            _check_header(file.read(_HEADER.size), path)
            while (chunk := _read_chunk(file, path)) is not None:
                yield from _split_chunk(chunk, path)
            if file.read(1):
                raise _damaged(path, "bytes follow its end")
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error


def _make_header() -> bytes:
    checked = _HEADER.pack(MAGIC, FORMAT_VERSION, wire.WIRE_VERSION, 0)[:_CHECKED_HEADER_BYTES]
    return checked + _LENGTH.pack(zlib.crc32(checked))


def _create_file(path: Path) -> int:
    try:
        return safe_files.replace_own(path, _refuse_other_content)
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be created: {error.strerror}",
            hint="name a file of your own, in a writable folder",
        ) from error


def _refuse_other_content(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
    raise RecordingError(
        f"{path}: exists and is not a recording, so it is not overwritten",
        hint="name another file, or remove this one",
    )


def _check_header(header: bytes, path: Path) -> None:
    if len(header) < _HEADER.size:
        if header and (MAGIC + header[len(MAGIC) :]).startswith(header):
            raise _truncated(path)
        raise _not_a_recording(path)
    magic, format_version, wire_version, checksum = _HEADER.unpack(header)
    if magic != MAGIC:
        raise _not_a_recording(path)
    # Before the checksum, which later formats may compute in another way.
    if format_version > FORMAT_VERSION:
        raise RecordingError(
            f"{path}: is a recording of format {format_version}; "
            f"this otel-gpu reads format {FORMAT_VERSION}",
            hint="upgrade otel-gpu",
        )
    if format_version != FORMAT_VERSION or zlib.crc32(header[:_CHECKED_HEADER_BYTES]) != checksum:
        raise _damaged(path, "its header is invalid")
    if not _OLDEST_WIRE_VERSION <= wire_version <= wire.WIRE_VERSION:
        newer = wire_version > wire.WIRE_VERSION
        raise RecordingError(
            f"{path}: holds records of wire version {wire_version}; "
            f"this otel-gpu reads version {wire.WIRE_VERSION}",
            hint="upgrade otel-gpu" if newer else "replay it with the otel-gpu that recorded it",
        )


def _read_chunk(file: BinaryIO, path: Path) -> bytes | None:
    # The next chunk, unpacked; None at the end mark.
    header = file.read(_CHUNK.size)
    if len(header) < _CHUNK.size:
        raise _truncated(path)
    if header == _END:
        return None
    compressed_bytes, raw_bytes, checksum = _CHUNK.unpack(header)
    if not 0 < compressed_bytes <= _MAX_COMPRESSED_BYTES or not 0 < raw_bytes <= MAX_CHUNK_BYTES:
        raise _damaged(path, "a chunk has an impossible size")
    compressed = file.read(compressed_bytes)
    if len(compressed) < compressed_bytes:
        raise _truncated(path)
    unpacker = zlib.decompressobj()
    try:
        # One byte more than declared shows that there is more.
        raw = unpacker.decompress(compressed, raw_bytes + 1)
    except zlib.error as error:
        raise _damaged(path, "a chunk cannot be unpacked") from error
    if not unpacker.eof or unpacker.unused_data or len(raw) != raw_bytes:
        raise _damaged(path, "a chunk differs from its stated length")
    if zlib.crc32(raw) != checksum:
        raise _damaged(path, "a chunk has the wrong checksum")
    return raw


def _split_chunk(chunk: bytes, path: Path) -> Iterator[Sequence[bytes]]:
    batch: list[bytes] = []
    position, end = 0, len(chunk)
    while position < end:
        start = position + _LENGTH.size
        if start > end:
            raise _damaged(path, "a chunk ends inside a record")
        position = start + int.from_bytes(chunk[start - _LENGTH.size : start], "little")
        if position > end:
            raise _damaged(path, "a chunk ends inside a record")
        batch.append(chunk[start:position])
        if len(batch) == _BATCH_RECORDS:
            yield batch
            batch = []
    if batch:
        yield batch


def _not_a_recording(path: Path) -> RecordingError:
    return RecordingError(f"{path}: is not a recording of otel-gpu")


def _truncated(path: Path) -> RecordingError:
    return RecordingError(
        f"{path}: ends early; everything before that was read",
        hint="the agent that wrote it was killed, or the copy is incomplete",
    )


def _damaged(path: Path, what: str) -> RecordingError:
    return RecordingError(
        f"{path}: is damaged: {what}; everything before that was read",
        hint="copy it again from its origin",
    )
