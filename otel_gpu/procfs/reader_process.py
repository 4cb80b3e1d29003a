"""
A child process of the agent that reads other processes: it gets questions and sends answers.

A page of another process can be in a file system that the process serves itself (FUSE). A read of it
blocks until the process answers, perhaps for ever. During that time the lock of the memory map can be
held, which reads of the command line, the environment and the mappings take as well. So this child
blocks, and the agent does not. The same holds for the lock of a folder: a program holds it while it lists
the folder into such a page.

It imports nothing of the package, and is started by its path.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

QUESTION = struct.Struct("<iBQQ")
"""Pid, kind of question, and two arguments."""
READ_MEMORY, OPEN_MAPPING, OPEN_MAPS, READ_OPEN, OPEN_NAME, READ_FIRST = range(6)
"""
Kinds of questions: memory, by address and size in bytes; the file of a mapping, by its start and end;
an open list of mappings; the first bytes of a file, whose descriptor comes with the question; the file of
a name, which follows the question, in a folder, whose descriptor comes with it; the first bytes of one of
``FILES``, which have numbers from ``READ_FIRST`` on.
"""
FILES = ("cmdline", "environ", "maps")
MAX_NAME_BYTES = 255
"""The longest name of a file."""

HEAD = struct.Struct("<?i")
"""Header of each message of an answer: whether more follow, and an error number."""
MESSAGE_BYTES = 64 << 10
"""Most bytes after the header of one message."""
_BUFFER, _LAST = HEAD.pack(1, 0), HEAD.pack(0, 0)


def main() -> None:
    """Answer until the other end is closed."""
    asker = socket.socket(fileno=0)
    asker.send(_LAST)
    while True:
        question, descriptors, _, _ = socket.recv_fds(asker, QUESTION.size + MAX_NAME_BYTES, 1)
        if not question:
            return
        try:
            name = question[QUESTION.size :]
            _answer(asker, descriptors, name, *QUESTION.unpack_from(question))
        except (OSError, OverflowError) as error:
            number = error.errno if isinstance(error, OSError) else None
            asker.send(HEAD.pack(0, number or 0))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _answer(
    asker: socket.socket,
    given: list[int],
    name: bytes,
    pid: int,
    what: int,
    first: int,
    second: int,
) -> None:
    folder = f"/proc/{pid}"
    if what == READ_MEMORY:
        with _open(f"{folder}/mem") as fd:
            asker.send(_LAST + os.pread(fd, second, first))
    elif what == OPEN_MAPPING:
        with _open(f"{folder}/map_files/{first:x}-{second:x}", os.O_PATH) as fd:
            socket.send_fds(asker, [_LAST], [fd])
    elif what == OPEN_MAPS:
        with _open(f"{folder}/maps") as fd:
            socket.send_fds(asker, [_LAST], [fd])
    elif what == OPEN_NAME:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=given[0])
        try:
            socket.send_fds(asker, [_LAST], [fd])
        finally:
            os.close(fd)
    elif what == READ_OPEN:
        os.lseek(given[0], 0, os.SEEK_SET)
        _send_first(asker, given[0], first)
    else:
        with _open(f"{folder}/{FILES[what - READ_FIRST]}") as fd:
            _send_first(asker, fd, first)


@contextlib.contextmanager
def _open(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _send_first(asker: socket.socket, fd: int, limit_bytes: int) -> None:
    part = b""
    while limit_bytes > 0 and (found := os.read(fd, min(limit_bytes, MESSAGE_BYTES - len(part)))):
        part += found
        limit_bytes -= len(found)
        if len(part) == MESSAGE_BYTES:
            asker.send(_BUFFER + part)
            part = b""
    asker.send(_LAST + part)


if __name__ == "__main__":
    main()
