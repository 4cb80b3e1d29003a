"""A FUSE file system with one file, which answers reads on demand; implemented without a library."""

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_LIBC = ctypes.CDLL(None, use_errno=True)
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI7I")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_STATUS = struct.Struct("<5Q10I")
_LOOKUP, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 3, 14, 15, 17, 18, 25, 26
_NO_REPLY = frozenset({2, 36, 42})  # forget, interrupt, batch_forget
_ROOT, _FILE = 1, 2
_DETACH = 2
_DIRECT_IO, _KEEP_CACHE = 1, 2
# Who waits for an answer cannot be killed.
_SILENT_FOR_S = 90.0
_LOOKS_EACH_MS = 50
_REQUEST_BYTES = 1 << 17
NAME = "remote"


class FileSystem:
    """
    A mounted file system of FUSE, as a context manager.

    Args:
        folder: The mount point.
        subtype: The subtype that it reports.
        before_read: Called with the pid of the reader, before its read is answered.
        user: The uid of its server, as the kernel sees it.
        name: Name of the file.
        content: Content of the file; None: it is large, and the kernel caches no part of it.

    Attributes:
        requests: The kinds of all requests so far that a process waits for.
    """

    def __init__(
        self,
        folder: Path,
        subtype: str,
        before_read: Callable[[int], object] = lambda _pid: None,
        *,
        user: int = 0,
        name: str = NAME,
        content: bytes | None = None,
    ) -> None:
        self._user = user
        self._name = name
        self._content = content
        self._answers_from_s = 0.0
        self.requests: list[int] = []
        self._is_ending = threading.Event()
        self._is_over = threading.Event()
        self._folder = folder
        self._subtype = subtype
        self._before_read = before_read
        self._device = -1
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id={self._user},group_id=0,allow_other"
        target, kind = str(self._folder).encode(), f"fuse.{self._subtype}".encode()
        if _LIBC.mount(b"test", target, kind, 0, options.encode()):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number))
        self._thread.start()
        # The kernel's first question, which nobody waits for.
        while not self.requests:
            time.sleep(0.001)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_ending.set()
        self.detach()
        # Not when it is gone: any namespace that was made meanwhile has it mounted, too.
        self._is_over.set()
        self._thread.join()
        os.close(self._device)

    def detach(self) -> None:
        """Unmount it lazily: processes keep their open files."""
        _LIBC.umount2(str(self._folder).encode(), _DETACH)

    def fall_silent(self) -> None:
        """Stop answering."""
        self._answers_from_s = time.monotonic() + _SILENT_FOR_S

    def answer(self) -> None:
        """Answer waiting requests, and later ones."""
        self._is_ending.set()

    def _serve(self) -> None:
        requests = select.poll()
        requests.register(self._device, select.POLLIN)
        while not self._is_over.is_set():
            if not requests.poll(_LOOKS_EACH_MS):
                continue
            try:
                request = os.read(self._device, _REQUEST_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, kind, unique, node, _, _, pid, *_ = _IN_HEADER.unpack_from(request)
            if kind in _NO_REPLY:
                continue
            if kind != _RELEASE:
                self.requests.append(kind)
            self._is_ending.wait(max(0.0, self._answers_from_s - time.monotonic()))
            reply = self._answer(kind, node, pid, request[_IN_HEADER.size :])
            result, body = (0, reply) if isinstance(reply, bytes) else (-reply, b"")
            header = _OUT_HEADER.pack(_OUT_HEADER.size + len(body), result, unique)
            with contextlib.suppress(OSError):  # the request was interrupted
                os.write(self._device, header + body)

    def _answer(self, kind: int, node: int, pid: int, body: bytes) -> bytes | int:
        if kind == _INIT:
            major, minor, ahead, _ = struct.unpack_from("<IIII", body)
            sizes = (12, 10, 4096, 1, 1, 0)
            return _INIT_OUT.pack(major, min(minor, 31), ahead, 0, *sizes, *[0] * 8)
        if kind == _LOOKUP:
            if body.rstrip(b"\0") != self._name.encode():
                return errno.ENOENT
            return struct.pack("<QQQQII", _FILE, 1, 0, 0, 0, 0) + self._attributes(_FILE)
        if kind == _READ:
            self._before_read(pid)
            _, offset, size_bytes = struct.unpack_from("<QQI", body)
            return b"x" if self._content is None else self._content[offset : offset + size_bytes]
        answers = {
            _GETATTR: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            _OPEN: struct.pack("<QII", 0, _DIRECT_IO if self._content is None else _KEEP_CACHE, 0),
            _STATFS: _STATUS.pack(0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7),
            _RELEASE: b"",
            _FLUSH: b"",
        }
        return answers.get(kind, errno.ENOSYS)

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o755
        size_bytes = 1 << 20 if self._content is None else len(self._content)
        return _ATTRIBUTES.pack(node, size_bytes, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
