"""
Reads memory of processes, a question in and an answer out; runs as a process of its own.

A page of another process can be one of a file system that the process serves itself (FUSE). Reading it
waits until the process answers, which it may never do, and nothing ends that wait: no signal, no
deadline. So this process waits, and whoever asked goes on without it.

It imports nothing of the package, and is started by its path.
"""

import os
import socket
import struct

QUESTION = struct.Struct("<iIQ")
"""Pid, size in bytes, address."""


def main() -> None:
    """Answer until the other end is closed."""
    asker = socket.socket(fileno=0)
    while question := asker.recv(QUESTION.size):
        pid, size_bytes, address = QUESTION.unpack(question)
        asker.send(b"." + read(pid, address, size_bytes))


def read(pid: int, address: int, size_bytes: int) -> bytes:
    """Return bytes of a process's memory; fewer or none where there are none."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size_bytes, address)
        finally:
            os.close(fd)
    except (OSError, OverflowError):
        return b""


if __name__ == "__main__":
    main()
