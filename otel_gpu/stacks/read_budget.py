"""
The budget for reading files that watched processes map or name.

A process that maps a file controls how much work its symbols, tables and functions are. Each read has
its own bounds; this is the bound of all reads together, in seconds and in bytes. The seconds include
waits for a slow disk, but not waits for a CPU. The symbols of all of PyTorch take 3 s and a gigabyte.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs.kernel_clock import run_queue_ns
from otel_gpu.procfs.mapped_files import MappedFile
from otel_gpu.procfs.process_root import ServedError
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.symbols import elf_file

# Shares of a process, of a user, and of all together.
_SECONDS: Final = Share(8.0, 0.05), Share(10.0, 0.06), Share(15.0, 0.1)
_BYTES: Final = Share(4 << 30, 64 << 20), Share(8 << 30, 128 << 20), Share(16 << 30, 256 << 20)
# Share of all together at the end of a capture.
_LAST_S: Final = 1.5
# Reading the mappings of a process takes 2 ms, 15 ms with PyTorch, 0.6 s with as many mappings as
# possible. It is repeated, so the usual cost is free.
_USUAL_S: Final = 0.05
_MAX_KNOWN: Final = 4096
_USER_AGE_S: Final = 5.0
_USED_UP: Final = "its share of our time, or that of its user, is used up"


class NotReadError(ValueError):
    """A file is not read, as the share of its process or user is used up."""


class FileWork:
    """
    The cost of reading files, by process and user.

    Args:
        lose: Called once for each unread file, with pid, uid, path and reason.
        clock: A monotonic clock in seconds.
        waited_ns: How long this thread has waited for a CPU so far.
    """

    def __init__(
        self,
        lose: Callable[[int, int, str, str], None] = lambda _pid, _uid, _path, _reason: None,
        clock: Callable[[], float] = time.monotonic,
        waited_ns: Callable[[], int] = run_queue_ns,
    ) -> None:
        self._lose = lose
        self._clock = clock
        self._waited_ns = waited_ns
        self._seconds = WorkBudget(*_SECONDS, clock=clock)
        self._bytes = WorkBudget(*_BYTES, clock=clock)
        self._users: Recent[int, tuple[int, float]] = Recent(_MAX_KNOWN, cache="known_processes")
        self._lost: Recent[tuple[int, str], None] = Recent(_MAX_KNOWN, cache="known_processes")
        self._is_ending = False
        self._last_s = _LAST_S

    def end_soon(self) -> None:
        """Limit all further reads to a last share; safe in a signal handler."""
        self._is_ending = True

    def listing(self, pid: int) -> AbstractContextManager[None]:
        """As ``reading``, for the mappings of a process; only unusually long reads are charged."""
        return self.reading(pid, "the list of what it maps", free_s=_USUAL_S)

    @contextmanager
    def reading(self, pid: int, path: str, free_s: float = 0.0) -> Iterator[None]:
        """
        Charge the time and bytes inside, except ``free_s``, to a process that names a file.

        Raises:
            NotReadError: The share is used up.
        """
        uid = self._user(pid)
        if not self._allows(pid, uid):
            self._note(pid, uid, path=path, reason=_USED_UP)
            raise NotReadError(f"the read budget of process {pid} or of user {uid} is used up")
        begun_s, waited_ns, read_bytes = self._clock(), self._waited_ns(), elf_file.read_bytes()
        try:
            yield
        finally:
            waited_s = (self._waited_ns() - waited_ns) / 1e9
            taken_s = max(0.0, self._clock() - begun_s - waited_s - free_s)
            self._last_s -= taken_s if self._is_ending else 0
            self._seconds.pay(pid, uid, taken_s)
            self._bytes.pay(pid, uid, elf_file.read_bytes() - read_bytes)

    def open(self, mapped: MappedFile, root: int | None = None) -> int:
        """Open a mapped file as ``MappedFile.open`` does; one that a user serves is counted as lost."""
        try:
            return mapped.open(root)
        except ServedError as error:
            self.refuse(mapped.pid, mapped.path, error)
            raise

    def refuse(self, pid: int, path: str, error: ServedError) -> None:
        """Count a file that a process names and that is not opened."""
        self._note(pid, uid=self._user(pid), path=path, reason=str(error))

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
