"""
Files of /proc, read up to a bound, and files of processes, closed whatever that says.

A process decides how long its command line is, and how much it maps; and it may end while it is
read.
"""

import contextlib
import io
import math
import os
import time
from typing import BinaryIO

_PIECE_BYTES = 1 << 16
# The kernel keeps 16 of a program; its own threads have longer names.
_MAX_COMM_BYTES = 256


def read_file(path: str, limit_bytes: int, limit_s: float = math.inf) -> bytes:
    """
    Return the first bytes of a file; none where it cannot be read, or its process ended.

    As many as are there when the kernel has taken ``limit_s`` of this thread's time, about.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_descriptor(descriptor, limit_bytes, limit_s)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def process_name(pid: int) -> str:
    """Return what a process calls itself (its comm); empty where it has ended."""
    return read_file(f"/proc/{pid}/comm", _MAX_COMM_BYTES).decode(errors="replace").rstrip("\n")


def read_descriptor(descriptor: int, limit_bytes: int, limit_s: float = math.inf) -> bytes:
    """
    Return the first bytes of an open file, as ``read_file`` does.

    Raises:
        OSError: It cannot be read, or its process ended meanwhile.
    """
    pieces = []
    os.lseek(descriptor, 0, os.SEEK_SET)
    until_s = time.thread_time() + limit_s
    while limit_bytes > 0 and (piece := os.read(descriptor, min(limit_bytes, _PIECE_BYTES))):
        pieces.append(piece)
        limit_bytes -= len(piece)
        if time.thread_time() > until_s:
            break
    return b"".join(pieces)


def close_file(descriptor: int) -> None:
    """Close a file that a process named: its file system may answer with an error, and is rid of it too."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class _ForeignFile(io.FileIO):
    def close(self) -> None:
        """Close it as ``close_file`` does."""
        with contextlib.suppress(OSError):
            super().close()


def stream_of(descriptor: int) -> BinaryIO:
    """
    Return the stream of a file that a process named, which takes over the descriptor.

    Raises:
        OSError: It cannot be read.
    """
    return io.BufferedReader(_ForeignFile(descriptor, "rb"))


def process_of(number: int) -> int | None:
    """Return the process that a process id or thread id is of; None: that cannot be read."""
    status = read_file(f"/proc/{number}/status", 4096)
    _, found, rest = status.partition(b"\nTgid:")
    return int(rest.split(None, 1)[0]) if found else None


def stat_fields(folder: str) -> list[bytes]:
    """
    Return what ``stat`` says behind the name, empty when the process is gone.

    The first is field 3 of proc(5), the state. The name may hold spaces and ")".
    """
    return read_file(f"{folder}/stat", 4096).rpartition(b")")[2].split()
