"""
The memory of processes, read from outside: nothing stops meanwhile.

Memory of root's processes and of our own user's is read directly. Other users can make a read wait
for ever: a page can be one of a file system that they serve themselves (FUSE), and while somebody
waits for it, the whole address space is locked, so that not even a probe can be placed. So pages of
files are read only where the file system is known to answer, and all by a process that can be
abandoned: the mapping may be another one by then (see ``memory_reader``).
"""

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.procfs import memory_reader
from otel_gpu.procfs.mapped_files import MAX_MAPS_BYTES
from otel_gpu.procfs.mounts import find_mount, server_of, shared_memory_device
from otel_gpu.procfs.proc_files import read_file
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.procfs.users import user_of

_PROC: Final = Path("/proc")
_PROGRAM: Final = Path(memory_reader.__file__)
_DEADLINE_S: Final = 0.25
# The first answer comes after an interpreter has started, on a busy machine.
_START_DEADLINE_S: Final = 2.0
_MAPS_LINE: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)", re.MULTILINE
)
_MAX_ABANDONED: Final = 8
_MAX_REFUSED: Final = 4_096
# One message on a socket has to hold it.
_MAX_READ_BYTES: Final = 128 << 10

_logger = logging.getLogger(__name__)


class _Answering:
    """Which addresses of a process are of memory, or of files that are sure to be read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._answers: dict[int, bool] = {}
        maps = read_file(f"{_PROC}/{pid}/maps", MAX_MAPS_BYTES)
        self._mappings = [
            (int(start, 16), int(end, 16), int(major, 16) << 20 | int(minor, 16), inode != b"0")
            for start, end, major, minor, inode in _MAPS_LINE.findall(maps)
        ]
        self._starts = [start for start, *_ in self._mappings]

    def covers(self, address: int, size_bytes: int) -> bool:
        """Say whether no part of a range is of a file that may not answer."""
        first = max(bisect_right(self._starts, address) - 1, 0)
        last = bisect_right(self._starts, address + size_bytes)
        return all(
            self._file_answers(device)
            for _, end, device, is_file in self._mappings[first:last]
            if is_file and end > address
        )

    def _file_answers(self, device: int) -> bool:
        if device not in self._answers:
            self._answers[device] = device == shared_memory_device() or self._is_local(device)
        return self._answers[device]

    def _is_local(self, device: int) -> bool:
        # Below an overlay is a file system that only the host has mounted.
        mount = find_mount(self._pid, device, "") or find_mount(os.getpid(), device, "")
        return mount is not None and not mount.is_remote and server_of(device, self._pid) is None


class _Reader:
    """
    Reads in another process, with a deadline.

    Whose memory kept it waiting is not read again. Readers that hang are abandoned, and cannot be
    ended: after ``_MAX_ABANDONED`` of them memory of other users is not read any more.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._refused: Recent[int, int] = Recent(_MAX_REFUSED)
        self.stalls = 0

    def read(self, pid: int, address: int, size_bytes: int, answering: _Answering) -> bytes:
        if pid in self._refused or size_bytes > _MAX_READ_BYTES or not 0 <= address < 1 << 64:
            return b""
        if not answering.covers(address, size_bytes):
            self._refuse(pid)
            return b""
        self._abandoned = [process for process in self._abandoned if process.poll() is None]
        if len(self._abandoned) >= _MAX_ABANDONED:
            self._refuse(pid)
            return b""
        deadline_s = _DEADLINE_S if self._socket is not None else _START_DEADLINE_S
        try:
            asked = self._socket or self._start()
            asked.settimeout(deadline_s)
            asked.send(memory_reader.QUESTION.pack(pid, size_bytes, address))
            answer = asked.recv(1 + size_bytes)
        except TimeoutError:
            self._abandon()
            self._refuse(pid)
            return b""
        except OSError as error:
            PROCESS_LOG.warning(_logger, pid, "memory of process %d is not read: %s", pid, error)
            self._abandon()
            return b""
        if not answer:
            self._abandon()
        return answer[1:]

    def _start(self) -> socket.socket:
        self._socket, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_PROGRAM)],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                start_new_session=True,  # A Ctrl-C is for the agent, which may still ask.
            )
        return self._socket

    def _abandon(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._abandoned.append(self._process)
            self._process = None

    def _refuse(self, pid: int) -> None:
        self.stalls += 1
        self._refused[pid] = 1
        text = "process %d can keep readers of its memory waiting: what it publishes is not read"
        PROCESS_LOG.warning(_logger, pid, text, pid)


_reader = _Reader()


def stalls() -> int:
    """Return of how many processes memory was not read, as they could keep readers waiting."""
    return _reader.stalls


@contextlib.contextmanager
def memory_of(pid: int, proc: Path = _PROC) -> Iterator[Callable[[int, int], bytes]]:
    """
    Give a function that reads a process's memory, by address and size in bytes.

    It returns fewer bytes, or none, where there are none, where it may not be read, and where it
    cannot be read in time.
    """
    if proc == _PROC and user_of(pid).uid not in (0, os.geteuid()):
        answering = _Answering(pid)
        yield lambda address, size_bytes: _reader.read(pid, address, size_bytes, answering)
        return
    try:
        fd = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda _address, _size_bytes: b""
        return

    def read(address: int, size_bytes: int) -> bytes:
        try:
            return os.pread(fd, size_bytes, address)
        except (OSError, OverflowError):
            return b""

    try:
        yield read
    finally:
        os.close(fd)
