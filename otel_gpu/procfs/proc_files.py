"""
Reads of files of /proc up to a bound, and closing of files that processes name.

A process decides how long its command line is, and how much it maps. It can end during a read.
"""

import contextlib
import io
import math
import os
import time
from typing import BinaryIO

_CHUNK_BYTES = 1 << 16
# The kernel keeps 16 bytes for a program; kernel threads have longer names.
_MAX_COMM_BYTES = 256


def read_file(path: str, limit_bytes: int, limit_s: float = math.inf) -> bytes:
    """
    Return the first bytes of a file; none: it is not readable, or its process ended.

    It stops at ``limit_bytes``, or when the read has taken about ``limit_s`` of CPU time.
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
    """Return the comm of a process; empty: it has ended."""
    return read_file(f"/proc/{pid}/comm", _MAX_COMM_BYTES).decode(errors="replace").rstrip("\n")


def read_descriptor(descriptor: int, limit_bytes: int, limit_s: float = math.inf) -> bytes:
    """
    Return the first bytes of an open file, as ``read_file`` does.

    Raises:
        OSError: It is not readable, or its process ended.
    """
    chunks = []
    os.lseek(descriptor, 0, os.SEEK_SET)
    until_s = time.thread_time() + limit_s
    while limit_bytes > 0 and (chunk := os.read(descriptor, min(limit_bytes, _CHUNK_BYTES))):
        chunks.append(chunk)
        limit_bytes -= len(chunk)
        if time.thread_time() > until_s:
            break
    return b"".join(chunks)


def close_file(descriptor: int) -> None:
    """Close a file that a process named; an error of its file system is ignored, as the file is closed."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class _ForeignFile(io.FileIO):
    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def stream_of(descriptor: int) -> BinaryIO:
    """
    Return a stream that owns the descriptor of a file that a process named.

    Raises:
        OSError: It is not readable.
    """
    return io.BufferedReader(_ForeignFile(descriptor, "rb"))


def process_of(number: int) -> int | None:
    """Return the pid of a process or thread id; None: not readable."""
    status = read_file(f"/proc/{number}/status", 4096)
    _, found, rest = status.partition(b"\nTgid:")
    return int(rest.split(None, 1)[0]) if found else None


def stat_fields(folder: str) -> list[bytes]:
    """
    Return the fields of ``stat`` after the name; empty: the process has ended.

    The first is field 3 of proc(5), the state. The name can contain spaces and ")".
    """
    return read_file(f"{folder}/stat", 4096).rpartition(b")")[2].split()
