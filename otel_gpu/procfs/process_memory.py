"""
Reads memory of processes without stopping them.

Memory of processes of root and of the agent's user is read directly. Other users can make a read block
for ever: a page can be in a file system that they serve themselves (FUSE). While a task waits for it,
the address space is locked, so that not even a probe can be placed. So pages of files are read only if
the file system is known to answer, and only by a process that can be abandoned, as the mapping can
change before the read (see ``reader``).
"""

import contextlib
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.mapped_files import MAX_MAPS_BYTES
from otel_gpu.procfs.mounts import find_mount, server_of, shared_memory_device
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.procfs.reader import LateError, is_late, read_memory, read_process_file
from otel_gpu.procfs.users import is_trusted, user_of

_PROC: Final = Path("/proc")
_MAPS_LINE: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)", re.MULTILINE
)
_MAX_REFUSED: Final = 4_096

_logger = logging.getLogger(__name__)


class _Answering:
    # The addresses of a process that are anonymous memory, or files that can be read without blocking.

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._answers: dict[int, bool] = {}
        maps = read_process_file(pid, "maps", MAX_MAPS_BYTES)
        self._mappings = [
            (int(start, 16), int(end, 16), int(major, 16) << 20 | int(minor, 16), inode != b"0")
            for start, end, major, minor, inode in _MAPS_LINE.findall(maps)
        ]
        self._starts = [start for start, *_ in self._mappings]

    def covers(self, address: int, size_bytes: int) -> bool:
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
        # The layers of an overlay are file systems that only the host has mounted.
        mount = find_mount(self._pid, device, "") or find_mount(os.getpid(), device, "")
        return mount is not None and not mount.is_remote and server_of(device, self._pid) is None


class _Memory:
    # Reads memory of other users' processes; a process whose memory could block is not read again.

    def __init__(self) -> None:
        self._refused: Recent[int, int] = Recent(_MAX_REFUSED)
        self.stalls = 0

    def read(
        self, pid: int, uid: int, address: int, size_bytes: int, answering: _Answering
    ) -> bytes:
        if pid in self._refused or is_late(pid):
            return b""
        if not answering.covers(address, size_bytes):
            self._refuse(pid)
            return b""
        try:
            return read_memory(pid, uid, address=address, size_bytes=size_bytes)
        except LateError:
            self._refuse(pid)
            return b""

    def _refuse(self, pid: int) -> None:
        self.stalls += 1
        self._refused[pid] = 1
        text = "process %d can keep readers of its memory waiting: what it publishes is not read"
        PROCESS_LOG.warning(_logger, pid, text, pid)


_memory = _Memory()


def stalls() -> int:
    """Return the number of processes whose memory was not read, as the read could block."""
    return _memory.stalls


@contextlib.contextmanager
def memory_of(pid: int, proc: Path = _PROC) -> Iterator[Callable[[int, int], bytes]]:
    """
    Return a function that reads a process's memory by address and size in bytes.

    It returns fewer bytes, or none, if they are not mapped, not readable, or not read in time.
    """
    uid = user_of(pid).uid
    if proc == _PROC and not is_trusted(uid):
        answering = _Answering(pid)
        yield lambda address, size_bytes: _memory.read(
            pid, uid, address=address, size_bytes=size_bytes, answering=answering
        )
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
