"""
Detaching of programs, so that the end of a capture does not wait for the kernel.

The kernel waits for each probe that it takes away: until no CPU runs its program, and for the lock of the
address space of each process that maps the file. A user can map thousands of files, and can hold that
lock for as long as it likes. No signal ends that wait, and no process ends before it.

A program is detached when the last file descriptor of its link is closed. A child inherits all
descriptors; once the agent has closed its own, only the child waits.
"""

import contextlib
import logging
import os
import select
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from otel_gpu.capture.inherited import let_go_in_child

Link = Callable[[], object]
"""Detaches one program. The kernel waits until no CPU runs it, for 0.1 s or so."""

# So many cost less than a child, which takes 15 ms of a CPU.
_FEW_LINKS = 96
# They share the kernel's waiting. The unit in deploy/ allows 128 threads.
_THREADS = 96
_TURN_S = 0.02
# How long the agent waits for its child: nearly always, nothing is left behind.
_WAITS_S = 1.0
_PERF_EVENT = "anon_inode:[perf_event]"
_KERNEL_SIDE = ("anon_inode:bpf", _PERF_EVENT)

_logger = logging.getLogger(__name__)


class Remainder(NamedTuple):
    """What is not detached yet: how many links, and which child is at them."""

    links: int
    pid: int


class Links:
    """The links of one BPF object."""

    def __init__(self) -> None:
        # Of those at uprobes, the descriptor.
        self._links: dict[Link, int | None] = {}
        self._have_perf_events = False

    def add(
        self, link: Link, uprobe_fd: int | None = None, *, has_perf_event: bool = False
    ) -> Link:
        """
        Keep a link, and return it.

        Args:
            link: What detaches it.
            uprobe_fd: Its descriptor, if it is at uprobes: in files that others map, too.
            has_perf_event: Whether there is one beside it, which libbpf keeps to itself.
        """
        self._links[link] = uprobe_fd
        self._have_perf_events |= has_perf_event
        return link

    def detach(self, links: Iterable[Link]) -> None:
        """Undo attachments."""
        for link in links:
            link()
            del self._links[link]

    def detach_all(
        self, at_turn: Callable[[], object] = lambda: None, *, is_patient: bool = True
    ) -> Remainder | None:
        """
        Undo all of them: many by a child, which is waited for a second.

        Args:
            at_turn: Is called all the while, also by the child.
            is_patient: Whether few are waited for, however long the kernel takes.

        Returns:
            What the child has not detached yet; None: from now on none of the programs runs.
        """
        uprobes = [link for link, fd in self._links.items() if fd is not None]
        others = [link for link, fd in self._links.items() if fd is None]
        left = None
        # With a perf event, each waits by itself.
        is_patient &= not self._have_perf_events
        if len(uprobes) > (_FEW_LINKS if is_patient else 0):
            _detach_side_by_side(others, at_turn)
            others = []
            try:
                left = _detach_in_child(uprobes, self._close_uprobes, at_turn)
                uprobes = []
            except OSError as error:
                _logger.info("probes are taken away without a process for it: %s", error)
        _detach_side_by_side([*others, *uprobes], at_turn)
        self._links.clear()
        return left

    def _close_uprobes(self) -> None:
        """Close the descriptors of links that another process has, too."""
        fds = {fd for fd in self._links.values() if fd is not None}
        if self._have_perf_events:
            fds.update(fd for fd in _open_files() if _is_perf_event(fd))
        for fd in fds:
            os.close(fd)


def _detach_side_by_side(links: Iterable[Link], at_turn: Callable[[], object]) -> None:
    waiting = deque(links)
    threads = [
        threading.Thread(target=_detach, args=(waiting,), name="detach", daemon=True)
        for _ in range(min(_THREADS, len(waiting)))
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # There are as many as are allowed.
        threads = [thread for thread in threads if thread.ident is not None]
        if not threads:
            _detach(waiting)
    for thread in threads:
        while thread.is_alive():
            thread.join(_TURN_S)
            at_turn()


def _detach(waiting: deque[Link]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            link = waiting.popleft()
            # The descriptor is closed, whatever is wrong with its file.
            with contextlib.suppress(OSError):
                link()


def _detach_in_child(
    links: list[Link], close_ours: Callable[[], object], at_turn: Callable[[], object]
) -> Remainder | None:
    """
    Have a child detach, and wait for a second.

    ``close_ours`` closes our descriptors of all the links, which detaches none.

    Raises:
        OSError: There can be no child. Nothing was closed.
    """
    go, go_write = os.pipe2(os.O_CLOEXEC)
    # Of each that is detached it holds a byte.
    detached, detached_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with warnings.catch_warnings():
            # That there are threads. The child takes none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _be_child(links, at_turn, go, detached_write, {go_write, detached})
        close_ours()
        os.close(go_write)
        go_write = -1
        if _waits_for(pid):
            return None
        with contextlib.suppress(BlockingIOError):
            return Remainder(len(links) - len(os.read(detached, len(links))), pid)
        return Remainder(len(links), pid)
    finally:
        for fd in (go, go_write, detached, detached_write):
            if fd >= 0:
                os.close(fd)


def _waits_for(pid: int) -> bool:
    """Say whether a child has ended in time."""
    with contextlib.suppress(OSError):
        pid_fd = os.pidfd_open(pid)
        try:
            poller = select.poll()
            poller.register(pid_fd, select.POLLIN)
            if poller.poll(1000 * _WAITS_S):
                os.waitpid(pid, 0)
                return True
        finally:
            os.close(pid_fd)
    return False


def _be_child(
    links: list[Link], at_turn: Callable[[], object], go: int, detached: int, theirs: set[int]
) -> None:
    # It must never return into the agent's code. Its end detaches what is left, one by one.
    try:
        let_go_in_child()
        # Whoever waits for the agent's locks would wait for us.
        for fd in theirs:
            os.close(fd)
        _close_others({0, 1, 2, go, detached})
        Path("/proc/self/comm").write_text("otel-gpu-detach", encoding="ascii")
        os.read(go, 1)
        _detach_side_by_side((_noted(link, detached) for link in links), at_turn)
        at_turn()
    finally:
        sys.stdout = sys.stderr = None  # buffers that are the agent's
        os._exit(0)


def _close_others(kept: set[int]) -> None:
    """Close all that is not of the kernel side."""
    for fd in _open_files():
        with contextlib.suppress(OSError):
            if fd not in kept and not _name(fd).startswith(_KERNEL_SIDE):
                os.close(fd)


def _open_files() -> list[int]:
    # And one that is closed again.
    return list(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 -- no paths needed


def _is_perf_event(fd: int) -> bool:
    try:
        return _name(fd) == _PERF_EVENT
    except OSError:
        return False


def _name(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _noted(link: Link, detached: int) -> Link:
    def detach() -> None:
        link()
        with contextlib.suppress(OSError):
            os.write(detached, b"\0")

    return detach
