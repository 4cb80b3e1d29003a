"""
The lock of a store: one writer at a time, and how far the last one got.

The lock is a file beside the store, ``NAME.lock``, with three numbers: the process that
writes, its number as a writer, and a number that none of its rows has reached. The last
one is raised by a few at a time, and what is written to a file outlives a process that is
killed: so the next one can tell how many rows were lost with it, at most.

SQLite's own file must not be opened by other means: closing it would drop the locks that
SQLite has on it in this process.
"""

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from otel_gpu.errors import StoreError
from otel_gpu.files import safe_files
from otel_gpu.recorder.problems import ELSEWHERE, explained

UNENDED = (
    "SELECT (SELECT coalesce(max(last_seq), 0) FROM chunks) FROM writers "
    "WHERE writer = (SELECT max(writer) FROM writers) AND writer = ? AND ended_unix_ns IS NULL"
)
"""The last row that was written, if this writer is the last one and did not say that it ended."""
_NUMBERS = struct.Struct("=QQQ")
_STEP = 64
_CONDEMNED = (1 << 64) - 1
_MOST_LOST = 1 << 32
_LARGEST = (1 << 63) - 1


class LastWriter(NamedTuple):
    """What the lock says of who wrote last; all 0 when nobody did."""

    pid: int
    writer: int
    unreached_seq: int

    def lost_rows(self, last_seq: int) -> int:
        """Return how many rows it lost at most, when this was the last one it wrote."""
        lost = self.unreached_seq - 1 - last_seq
        # More are in no writer's memory: what says so is not what we wrote.
        return lost if 0 < lost < _MOST_LOST else 0

    @property
    def found_damage(self) -> bool:
        """Whether it found the store damaged."""
        return self.writer == _CONDEMNED


_NOBODY = LastWriter(0, 0, 0)


class Lock:
    """
    The lock of a store, held until it is closed, or its process ends.

    Raises:
        StoreError: Another process writes the store, or the lock cannot be made or is another
            user's.
    """

    def __init__(self, path: Path) -> None:
        with explained(path, hint=ELSEWHERE):
            self._fd = safe_files.open_own(lock_path(path), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.last = _read(self._fd)
        except OSError as error:
            pid = _read(self._fd).pid
            os.close(self._fd)
            who = f"process {pid}" if pid else "another process"
            raise StoreError(
                f"{path}: is being written by {who}",
                hint="end that one, or name another file with --store",
            ) from error
        self._writer = 0
        self._unreached_seq = 0

    def forget_last(self) -> None:
        """Drop what is known of the last writer: it wrote a store that is not in use any more."""
        self.last = _NOBODY

    def sign(self, writer: int, next_seq: int) -> None:
        """Say who holds the lock."""
        self._writer = writer
        self._write(next_seq)

    def reach(self, next_seq: int) -> int:
        """Say how far the writer got: no row has this number yet; return up to where that is said."""
        if next_seq > self._unreached_seq:
            self._write(next_seq + _STEP)
        return self._unreached_seq

    def condemn(self) -> None:
        """Say that the store is damaged."""
        self._writer = _CONDEMNED
        self._write(self._unreached_seq)

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._fd)

    def _write(self, unreached_seq: int) -> None:
        self._unreached_seq = unreached_seq
        # On a full disk nobody will know how much was lost; that is all.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _NUMBERS.pack(os.getpid(), self._writer, unreached_seq), 0)


def lock_path(path: Path) -> Path:
    """Return where the lock of a store is."""
    return path.with_name(f"{path.name}.lock")


def read_lock(path: Path) -> LastWriter | None:
    """Return who wrote last, if nobody writes now and it is known; else None."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(lock_path(path), flags)
    except OSError:
        return None
    try:
        if path.exists() and os.fstat(fd).st_uid != path.stat().st_uid:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _read(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def _read(fd: int) -> LastWriter:
    data = os.pread(fd, _NUMBERS.size, 0)
    if len(data) < _NUMBERS.size:
        return _NOBODY
    last = LastWriter(*_NUMBERS.unpack(data))
    # What SQLite cannot hold is no number of ours.
    is_ours = max(last.pid, last.unreached_seq) <= _LARGEST
    return last if is_ours and (last.writer <= _LARGEST or last.found_damage) else _NOBODY
