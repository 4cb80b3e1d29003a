"""
Reads that take a lock which the read process can hold: command line, environment, mappings, memory, names.

A program can hold the lock of its memory map for ever: one thread waits for a page of a file system that
its user serves (FUSE), and another one waits to write to the map, which blocks all readers. So processes
of users other than root and the agent's own are read by a child that is abandoned when it is late (see
``reader_process``). The child looks up names in folders as well, as a folder's lock can be held in the same
way. A process that made a read late is not read for a while, longer each time, and neither are processes
of a user who caused more delay than a share of the agent's time.
"""

import errno
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from otel_gpu.limits.recent import Recent
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs import reader_process as child
from otel_gpu.procfs.file_status import open_cached
from otel_gpu.procfs.proc_files import read_descriptor, read_file, stat_fields
from otel_gpu.procfs.users import file_user, is_trusted

_PROC: Final = Path("/proc")
# Of a sleeping reader, and of one that waits for a CPU or has much to read.
_DEADLINE_S: Final = 0.25
_LAST_DEADLINE_S: Final = 2.0
# Until an interpreter has started on a busy machine, and until a retry.
_START_DEADLINE_S: Final = 2.0
_START_PAUSE_S: Final = 10.0
_PAUSES_S: Final = 1.0, 64.0
# Budgets of delay for a process, a user, and all together.
_WAITING: Final = Share(1.0, 0.01), Share(1.0, 0.02), Share(2.0, 0.05)
_MAX_ABANDONED: Final = 8
_MAX_LATE: Final = 4_096
_MAX_NEWS: Final = 256
_START_TICKS: Final = 19
# It must fit into one message on a socket.
_MAX_MEMORY_BYTES: Final = 128 << 10
_OPENS: Final = (child.OPEN_MAPPING, child.OPEN_MAPS, child.OPEN_NAME)
# The last three come from kernels before 5.12, and from system call filters.
_NOT_CACHED: Final = (errno.EAGAIN, errno.EINVAL, errno.ENOSYS, errno.EPERM)

_logger = logging.getLogger(__name__)


class LateError(OSError):
    """A read of a process was too late, or is not tried at present."""


class Late(NamedTuple):
    """A process that was not read, its user, and the reason as text for reports."""

    pid: int
    uid: int
    reason: str


class _Pause(NamedTuple):
    start_ticks: bytes
    until_s: float
    pause_s: float


class ProcessReader:
    """
    Reads through a child process, with a deadline.

    A late child is killed. If it waits uninterruptibly, it is abandoned: after ``_MAX_ABANDONED`` such
    children, processes of other users are not read any more.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._starts_from_s = 0.0
        self._pauses: Recent[int, _Pause] = Recent(_MAX_LATE)
        self._waiting = WorkBudget(*_WAITING, clock=clock)
        self._news: list[Late] = []

    def ask(
        self,
        pid: int,
        uid: int,
        what: int,
        first: int = 0,
        second: int = 0,
        *,
        name: bytes = b"",
        given: int | None = None,
    ) -> tuple[bytes, int | None]:
        """
        Return the bytes of an answer, and its descriptor, if any.

        Raises:
            LateError: The answer was too late, or the question is not asked at present.
            OSError: The error of the child.
        """
        self._check(pid, uid)
        begun_s = self._clock()
        try:
            asked = self._socket or self._start(pid, uid)
            question = child.QUESTION.pack(pid, what, first, second) + name
            begun_s = self._clock()
            socket.send_fds(asked, [question], [] if given is None else [given])
            answer = self._receive(asked, what in _OPENS)
        except TimeoutError:
            self._abandon()
            self._waiting.pay(pid, uid, self._clock() - begun_s)
            raise self._late(pid, uid, "who reads it is kept waiting") from None
        except ConnectionError as error:
            self._abandon()
            raise LateError(str(error)) from error
        except (OSError, LateError):
            raise
        except BaseException:
            # The answer follows.
            self._abandon()
            raise
        self._pauses.pop(pid, None)
        return answer

    def is_late(self, pid: int) -> bool:
        """Whether the last read of a process was late, so that it is not read at present."""
        pause = self._pauses.get(pid)
        if pause is None or pause.until_s <= self._clock():
            return False
        return _start_ticks(pid) == pause.start_ticks

    def take_news(self) -> list[Late]:
        """Return the processes that were not read since the last call, once for each read."""
        news, self._news = self._news, []
        return news

    def _check(self, pid: int, uid: int) -> None:
        if self.is_late(pid):
            raise LateError(f"process {pid} kept its reader waiting")
        if self._abandoned:
            self._abandoned = [process for process in self._abandoned if process.poll() is None]
        if len(self._abandoned) >= _MAX_ABANDONED:
            raise self._late(pid, uid, "too many readers are kept waiting by others")
        if not self._waiting.allows(pid, uid):
            raise self._late(pid, uid, "readers were kept waiting for too long")

    def _late(self, pid: int, uid: int, reason: str) -> LateError:
        least_s, most_s = _PAUSES_S
        ticks, before = _start_ticks(pid), self._pauses.get(pid)
        is_again = before is not None and before.start_ticks == ticks
        pause_s = min(most_s, 2 * before.pause_s) if before is not None and is_again else least_s
        self._pauses[pid] = _Pause(ticks, self._clock() + pause_s, pause_s)
        if not is_again and len(self._news) < _MAX_NEWS:
            self._news.append(Late(pid, uid, reason))
        return LateError(f"process {pid} is not read: {reason}")

    def _start(self, pid: int, uid: int) -> socket.socket:
        failed = "the process that reads it does not start"
        if self._clock() < self._starts_from_s:
            raise self._late(pid, uid, failed)
        self._starts_from_s = self._clock() + _START_PAUSE_S
        asked, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._socket = asked
        try:
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", str(Path(child.__file__))],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ},
                    start_new_session=True,  # Ctrl-C is for the agent, which can still ask.
                )
            error = "it is not ready in time"
            is_ready = _is_readable(asked, _START_DEADLINE_S) and asked.recv(child.HEAD.size)
        except OSError as problem:
            is_ready, error = b"", str(problem)
        if not is_ready:
            _logger.warning("a process that reads those of other users does not start: %s", error)
            self._abandon()
            raise self._late(pid, uid, failed)
        self._starts_from_s = 0.0
        return asked

    def _receive(self, asked: socket.socket, opens: bool) -> tuple[bytes, int | None]:
        until_s = self._clock() + _LAST_DEADLINE_S
        most = child.HEAD.size + max(_MAX_MEMORY_BYTES, child.MESSAGE_BYTES)
        parts, descriptor, more = [], None, True
        while more:
            while not _is_readable(asked, _DEADLINE_S):
                if self._is_asleep() or self._clock() >= until_s:
                    if _is_readable(asked, 0):
                        break
                    raise TimeoutError
            if opens:
                message, found, _, _ = socket.recv_fds(asked, most, 1)
                descriptor = found[0] if found else None
                if descriptor is not None:
                    # recv_fds() takes flags for the message and uses none.
                    os.set_inheritable(descriptor, False)  # noqa: FBT003 -- not ours
            else:
                message = asked.recv(most)
            if not message:
                raise ConnectionResetError("the process that reads others has ended")
            more, number = child.HEAD.unpack_from(message)
            if number:
                raise OSError(number, os.strerror(number))
            parts.append(message[child.HEAD.size :])
            if more and self._clock() >= until_s:
                raise TimeoutError
        return b"".join(parts), descriptor

    def _is_asleep(self) -> bool:
        return self._process is None or stat_fields(f"/proc/{self._process.pid}")[:1] != [b"R"]

    def _abandon(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._abandoned.append(self._process)
            self._process = None


def _is_readable(asked: socket.socket, limit_s: float) -> bool:
    readable = select.poll()
    readable.register(asked, select.POLLIN)
    return bool(readable.poll(limit_s * 1e3))


def _start_ticks(pid: int) -> bytes:
    return b"".join(stat_fields(f"/proc/{pid}")[_START_TICKS : _START_TICKS + 1])


_reader = ProcessReader()


def read_process_file(pid: int, name: str, limit_bytes: int, proc: Path = _PROC) -> bytes:
    """
    Return the first bytes of one of ``reader_process.FILES`` of a process.

    Empty: not readable, the process has ended, or the read was too late (see ``is_late``).
    """
    uid = file_user(pid)
    if proc != _PROC or is_trusted(uid):
        return read_file(f"{proc}/{pid}/{name}", limit_bytes)
    try:
        what = child.READ_FIRST + child.FILES.index(name)
        return _reader.ask(pid, uid, what=what, first=limit_bytes)[0]
    except OSError:
        return b""


def open_maps(pid: int) -> int:
    """
    Open the list of a process's mappings for ``read_maps``; the caller closes it.

    Raises:
        OSError: It cannot be opened, or not in time.
    """
    uid = file_user(pid)
    if is_trusted(uid):
        return os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    return _descriptor(_reader.ask(pid, uid, child.OPEN_MAPS))


def read_maps(pid: int, descriptor: int, limit_bytes: int) -> bytes:
    """
    Return the first bytes of a list that ``open_maps`` opened.

    Raises:
        LateError: The read was too late.
        OSError: It is not readable.
    """
    uid = file_user(pid)
    if is_trusted(uid):
        return read_descriptor(descriptor, limit_bytes)
    return _reader.ask(pid, uid, what=child.READ_OPEN, first=limit_bytes, given=descriptor)[0]


def open_mapping(pid: int, start: int, end: int) -> int:
    """
    Open the file of a mapping with O_PATH, by its addresses.

    Raises:
        OSError: It cannot be opened, or not in time.
    """
    uid = file_user(pid)
    if is_trusted(uid):
        link = f"/proc/{pid}/map_files/{start:x}-{end:x}"
        return os.open(link, os.O_PATH | os.O_CLOEXEC)
    return _descriptor(_reader.ask(pid, uid, what=child.OPEN_MAPPING, first=start, second=end))


def open_name(pid: int, folder: int, name: str) -> int:
    """
    Open a name in a folder with O_PATH, on a path that a process names; links are not followed.

    A process that lists the folder into a missing page holds the folder's lock, and blocks lookups once another
    process waits to change the folder. Cached names are found without that lock.

    Args:
        pid: The process.
        folder: A descriptor of the folder.
        name: One name, without a slash.

    Raises:
        OSError: It cannot be opened, or not in time.
    """
    uid = file_user(pid)
    if is_trusted(uid):
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return open_cached(folder, name)
    except OSError as error:
        if error.errno not in _NOT_CACHED:
            raise
    text = os.fsencode(name)
    if len(text) > child.MAX_NAME_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)
    return _descriptor(_reader.ask(pid, uid, child.OPEN_NAME, name=text, given=folder))


def read_memory(pid: int, uid: int, address: int, size_bytes: int) -> bytes:
    """
    Return memory of another user's process; fewer bytes, or none, if they are not mapped.

    Raises:
        LateError: The read was too late.
    """
    if size_bytes > _MAX_MEMORY_BYTES or not 0 <= address < 1 << 64:
        return b""
    try:
        return _reader.ask(pid, uid, what=child.READ_MEMORY, first=address, second=size_bytes)[0]
    except LateError:
        raise
    except OSError:
        return b""


def is_late(pid: int) -> bool:
    """Whether the last read of a process was late, so that it is not read at present."""
    return _reader.is_late(pid)


def take_late() -> list[Late]:
    """Return the processes that were not read in time since the last call."""
    return _reader.take_news()


def _descriptor(answer: tuple[bytes, int | None]) -> int:
    if answer[1] is None:
        raise OSError("it was not opened")
    return answer[1]
