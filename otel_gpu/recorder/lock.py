"""
The lock of a store, which allows one writer, and records how far the last one got.

The lock is a file beside the store, ``NAME.lock``, with three numbers: the pid of the writer, its
writer number, and a ``seq`` above those of all its rows. That ``seq`` is raised in steps of 64. The
file survives a killed writer, so the next one knows the maximum number of rows lost with it.

The store's own file must not be opened outside SQLite: closing it would drop the locks of SQLite in
this process.
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
"""The last row that was written, if this writer is the last one and did not record its end."""
_NUMBERS = struct.Struct("=QQQ")
_STEP = 64
_DAMAGED = (1 << 64) - 1
_MOST_LOST = 1 << 32
_LARGEST = (1 << 63) - 1


class LastWriter(NamedTuple):
    """The last writer, from the lock file; all 0: there was none."""

    pid: int
    writer: int
    unreached_seq: int

    def lost_rows(self, last_seq: int) -> int:
        """Return the maximum number of rows that it lost, given the last row that it wrote."""
        lost = self.unreached_seq - 1 - last_seq
        # No writer holds more in memory, so a larger number is not ours.
        return lost if 0 < lost < _MOST_LOST else 0

    @property
    def found_damage(self) -> bool:
        """Whether it found the store damaged."""
        return self.writer == _DAMAGED


_NO_WRITER = LastWriter(0, 0, 0)


class Lock:
    """
    The lock of a store, held until it is closed or the process ends.

    Raises:
        StoreError: Another process writes the store, or the lock cannot be created or belongs to
            another user.
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
        """Forget the last writer, because its store was set aside."""
        self.last = _NO_WRITER

    def sign(self, writer: int, next_seq: int) -> None:
        """Write the number of the new writer, and its first ``seq``."""
        self._writer = writer
        self._write(next_seq)

    def reach(self, next_seq: int) -> int:
        """Record a ``seq`` above ``next_seq`` if none is recorded yet; return the recorded one."""
        if next_seq > self._unreached_seq:
            self._write(next_seq + _STEP)
        return self._unreached_seq

    def mark_damaged(self) -> None:
        """Record that the store is damaged, for the next writer."""
        self._writer = _DAMAGED
        self._write(self._unreached_seq)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)

    def _write(self, unreached_seq: int) -> None:
        self._unreached_seq = unreached_seq
        # On a full disk only the number of lost rows stays unknown.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _NUMBERS.pack(os.getpid(), self._writer, unreached_seq), 0)


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of a store."""
    return path.with_name(f"{path.name}.lock")


def read_lock(path: Path) -> LastWriter | None:
    """Return the last writer. None: a process writes now, or it is unknown."""
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
        return _NO_WRITER
    last = LastWriter(*_NUMBERS.unpack(data))
    # Numbers that SQLite cannot hold are not ours.
    is_ours = max(last.pid, last.unreached_seq) <= _LARGEST
    return last if is_ours and (last.writer <= _LARGEST or last.found_damage) else _NO_WRITER
