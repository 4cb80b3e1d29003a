"""
The budget of reading files that watched processes name.

Whoever maps a file chooses how much work it is to find its symbols, tables and functions. Each reading has
bounds of its own; this is the bound of all readings together: in seconds, which also pass while a
slow disk is waited for, and in bytes. Symbols of all of PyTorch take 3 s and a gigabyte.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs.mapped_files import MappedFile
from otel_gpu.procfs.process_root import ServedError
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.symbols import elf_file

# Of a process, of a user, and of all.
_SECONDS: Final = Share(8.0, 0.05), Share(10.0, 0.06), Share(15.0, 0.1)
_BYTES: Final = Share(4 << 30, 64 << 20), Share(8 << 30, 128 << 20), Share(16 << 30, 256 << 20)
# Of all, once the capture is to end.
_LAST_S: Final = 1.5
# To list what a process maps takes 2 ms, and 15 ms for PyTorch; with all mappings that there can be,
# 0.6 s. It is done again and again, so the usual costs nothing.
_USUAL_S: Final = 0.05
_MAX_KNOWN: Final = 4096
_USER_AGE_S: Final = 5.0
_USED_UP: Final = "its share of our time, or that of its user, is used up"


class NotReadError(ValueError):
    """A file is not read, as the share of its process, or of its user, is used up."""


class FileWork:
    """
    Keeps what reading files took, by process and user.

    Args:
        lose: Is called with pid, uid and path of what is not read, and why, once for each.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        lose: Callable[[int, int, str, str], None] = lambda _pid, _uid, _path, _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lose = lose
        self._clock = clock
        self._seconds = WorkBudget(*_SECONDS, clock=clock)
        self._bytes = WorkBudget(*_BYTES, clock=clock)
        self._users: Recent[int, tuple[int, float]] = Recent(_MAX_KNOWN)
        self._lost: Recent[tuple[int, str], None] = Recent(_MAX_KNOWN)
        self._is_ending = False
        self._last_s = _LAST_S

    def end_soon(self) -> None:
        """Let readings take a moment more, of all processes together; safe in a signal handler."""
        self._is_ending = True

    def listing(self, pid: int) -> AbstractContextManager[None]:
        """List what a process maps: as ``reading``, but paid for only where that takes unusually long."""
        return self.reading(pid, "the list of what it maps", free_s=_USUAL_S)

    @contextmanager
    def reading(self, pid: int, path: str, free_s: float = 0.0) -> Iterator[None]:
        """
        Read a file that a process names: all that happens inside is paid for, but ``free_s``.

        Raises:
            NotReadError: It is not to be read.
        """
        uid = self._user(pid)
        if not self._allows(pid, uid):
            self._note(pid, uid, path, _USED_UP)
            raise NotReadError(f"the read budget of process {pid} or of user {uid} is used up")
        begun_s, read_bytes = self._clock(), elf_file.read_bytes()
        try:
            yield
        finally:
            taken_s = max(0.0, self._clock() - begun_s - free_s)
            self._last_s -= taken_s if self._is_ending else 0
            self._seconds.pay(pid, uid, taken_s)
            self._bytes.pay(pid, uid, elf_file.read_bytes() - read_bytes)

    def open(self, mapped: MappedFile, root: int | None = None) -> int:
        """Open what a process maps, as ``MappedFile.open`` does; what a user serves is lost."""
        try:
            return mapped.open(root)
        except ServedError as error:
            self.refuse(mapped.pid, mapped.path, error)
            raise

    def refuse(self, pid: int, path: str, error: ServedError) -> None:
        """A file that a process names is not opened."""
        self._note(pid, self._user(pid), path, str(error))

    def _note(self, pid: int, uid: int, path: str, reason: str) -> None:
        if (pid, path) not in self._lost:
            self._lost[pid, path] = None
            self._lose(pid, uid, path, reason)

    def _allows(self, pid: int, uid: int) -> bool:
        if self._is_ending and self._last_s <= 0:
            return False
        return self._seconds.allows(pid, uid) and self._bytes.allows(pid, uid)

    def _user(self, pid: int) -> int:
        if pid <= 0:
            return os.geteuid()  # our own files
        uid, until_s = self._users.use(pid) or (0, 0.0)
        now_s = self._clock()
        if now_s >= until_s:
            uid = user_of(pid).uid
            self._users[pid] = uid, now_s + _USER_AGE_S
        return uid
