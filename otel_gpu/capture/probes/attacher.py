"""
Places and removes probes by a child process, the attacher, because the kernel can block it.

Before the kernel changes a probe in a file, it waits for the lock of the memory map of each process that
maps the file. A program can hold that lock as long as it wants, by a page of a file system that it serves
itself (FUSE), and no signal ends the wait. So the attacher does this. The agent waits a limited time for
its answers; later answers are handled when they arrive.

Both processes hold each link, so if the attacher dies, its probes stay and another attacher replaces it.
To remove a probe, the agent closes its descriptor first, so that only the attacher blocks. When the agent
ends in any way, the attacher removes all probes and ends.
"""

import contextlib
import json
import logging
import mmap
import os
import select
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from otel_gpu.capture.probes.attacher_process import MESSAGE_BYTES, Attach, serve
from otel_gpu.capture.probes.detaching import Link, detach_side_by_side
from otel_gpu.errors import BpfError
from otel_gpu.procfs.uninterruptible_waits import Sleep, note_change, sleeps_of

# How long the attacher can sleep in one place before it counts as late. Normal waits take milliseconds,
# more on busy machines and while other agents change probes.
_SLEEPS_S = 1.5
# The limit while the attacher makes progress.
_WAITS_S = 30.0
_WAITS_AT_END_S = 1.0
_SLICE_S = 0.1
_TURN_S = 0.02
# How long the end waits for the attacher. Nearly always that is enough.
_ENDS_S = 1.0
_MAX_QUEUED = 1024
_TRIES = 2
_CHANGE = "probes"
# The low bits of a process's CPU clock id; the complement of the pid is above, see clock_getcpuclockid(3).
_CPU_CLOCK = 2

_logger = logging.getLogger(__name__)


class Remainder(NamedTuple):
    """Links that were not detached yet, and the process that detaches them."""

    links: int
    pid: int


class ProbeLink:
    """
    One program at places of one file, attached by the attacher.

    Attributes:
        is_waiting: Whether its probes are not placed yet.
        error: Why it has no probes, if that was reported late.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_waiting = True
        self.error: BpfError | None = None
        self.fds: list[int] = []

    def close(self) -> None:
        """Close the agent's descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


AnyLink = Link | ProbeLink
"""A link that ``BpfObject.detach`` accepts."""


def waiting(links: Iterable[object]) -> list[ProbeLink]:
    """Return the links whose probes are not placed yet."""
    return [link for link in links if isinstance(link, ProbeLink) and link.is_waiting]


class _Request:
    def __init__(self, question: dict[str, object]) -> None:
        self.text = json.dumps(question).encode()
        self.fd = -1
        self.link: ProbeLink | None = None
        self.tries = 0
        self.is_waited_for = True
        self.is_done = False
        self.error: BpfError | None = None


class Attacher:
    """
    The agent's side of the attacher.

    Create it before the agent has threads or much memory, because it forks.

    Args:
        attach: Attaches in this process, see ``attacher_process.Attach``.
        kept: Descriptors that the attacher needs.
        at_turn: Called repeatedly while probes are removed at the end, by either process.

    Attributes:
        pid: Of the attacher; 0: it has ended.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self, attach: Attach, kept: Collection[int], at_turn: Callable[[], object] = lambda: None
    ) -> None:
        self._attach = attach
        self._kept = kept
        self._at_turn = at_turn
        self._links: dict[int, ProbeLink] = {}
        self._queue: deque[_Request] = deque()
        self._sent: _Request | None = None
        self._sleeps: set[Sleep] = set()
        self._asleep_since_s = 0.0
        self._is_hurried = False
        self._is_late = False
        self._number = 0
        self.pid = 0
        self._start()

    @property
    def is_late(self) -> bool:
        """Whether a request is unanswered, because the kernel blocks the attacher."""
        return self._sent is not None

    @property
    def can_queue(self) -> bool:
        """Whether the queue has space for the probes of another file."""
        return len(self._queue) < _MAX_QUEUED // 2

    def attach(
        self, program: str, fd: int, places: Sequence[tuple[int, int]], *, on_return: bool
    ) -> ProbeLink:
        """
        Attach a program to (file offset, cookie) pairs of a file; the caller keeps the descriptor.

        Returns:
            The link, which is waiting if the kernel blocks.

        Raises:
            BpfError: One probe failed, so none is placed; or the queue is full.
        """
        if len(self._queue) >= _MAX_QUEUED:
            raise BpfError(f"{program} is not attached: {_MAX_QUEUED} other probes are waiting")
        if not self.pid:
            try:
                self._start()
            except OSError as error:
                what = f"{program} is not attached, as there is no process that does it"
                raise BpfError(f"{what}: {error.strerror}") from error
        self._number += 1
        link = ProbeLink(self._number)
        question = {
            "link": link.number,
            "program": program,
            "on_return": on_return,
            "places": places,
        }
        request = _Request(question)
        if len(request.text) > MESSAGE_BYTES:
            raise BpfError(f"{program} is not attached: {len(places)} places are too many")
        request.fd, request.link = os.dup(fd), link
        self._ask(request)
        if request.is_done and request.error:
            raise request.error
        return link

    def detach(self, links: Iterable[ProbeLink]) -> None:
        """Remove probes, now or when the kernel allows it."""
        numbers = []
        for link in links:
            queued = next((one for one in self._queue if one.link is link), None)
            if queued:
                self._queue.remove(queued)
                os.close(queued.fd)
                link.is_waiting = False
            elif link.is_waiting or link.number in self._links:
                # The attacher holds it, too, and blocks in place of the agent.
                link.close()
                link.is_waiting = False
                numbers.append(link.number)
                self._links.pop(link.number, None)
                if self._sent and self._sent.link is link:
                    self._sent.link = None
        if numbers and self.pid:
            self._ask(_Request({"detached": numbers}))

    def cpu_ns(self) -> int:
        """Return the attacher's CPU time; 0 if it has ended."""
        try:
            return time.clock_gettime_ns(~self.pid << 3 | _CPU_CLOCK) if self.pid else 0
        except OSError:
            return 0

    def end_soon(self) -> None:
        """Wait at most a second for answers from now on; safe in a signal handler."""
        self._is_hurried = True

    def take_answers(self) -> None:
        """Handle late answers, and send queued requests."""
        self._exchange(0.0)
        note_change(_CHANGE, waits=self.is_late)

    def close(self) -> Remainder | None:
        """
        Remove all probes, and end the attacher.

        Returns:
            What remains to be removed; None: no program runs any more.
        """
        links, self._links = list(self._links.values()), {}
        requests = [*self._queue, *([self._sent] if self._sent else ())]
        self._queue.clear()
        for request in requests:
            if request.fd >= 0:
                os.close(request.fd)
        if not self.pid:
            fds = [fd for link in links for fd in link.fds]
            detach_side_by_side([partial(os.close, fd) for fd in fds], self._at_turn)
            return None
        for link in links:
            link.close()
        self._socket.close()
        pid, self.pid = self.pid, 0
        note_change(_CHANGE, waits=False)
        if _ends_in_time(pid, self._at_turn):
            return None
        # At least 1: a probe may be in the middle of being placed.
        return Remainder(max(1, self._counts[0] - self._counts[1]), pid)

    def _start(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        # The number of links, and how many of them were detached at the end.
        self._counts = memoryview(self._memory).cast("Q")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        with theirs:
            parent = os.pidfd_open(os.getpid())
            try:
                with warnings.catch_warnings():
                    # The warning about threads; the child takes none of their locks.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self.pid = os.fork()
                if not self.pid:
                    links: dict[int, list[Link]] = {
                        number: [partial(os.close, fd) for fd in link.fds]
                        for number, link in self._links.items()
                    }
                    kept = {*self._kept, *(fd for link in self._links.values() for fd in link.fds)}
                    serve(
                        agent=theirs,
                        parent=parent,
                        attach=self._attach,
                        links=links,
                        kept=kept,
                        at_turn=self._at_turn,
                        counts=self._counts,
                    )
            except OSError:
                self._socket.close()
                raise
            finally:
                os.close(parent)

    def _ask(self, request: _Request) -> None:
        # Waits a limited time for the answer.
        self._queue.append(request)
        began_s = time.monotonic()
        while True:
            self._exchange(0.0 if self._is_late else _SLICE_S)
            if request.is_done or self._is_late:
                break
            limit_s = _WAITS_AT_END_S if self._is_hurried else _WAITS_S
            self._is_late = time.monotonic() - began_s >= limit_s
        request.is_waited_for = False
        note_change(_CHANGE, waits=self.is_late)

    def _exchange(self, wait_s: float) -> None:
        try:
            self._send()
            while self._sent and self._has_answer(wait_s):
                self._receive(self._sent)
                self._send()
                wait_s = 0.0
        except OSError:
            self._replace()
            return
        if self._sent and not self._is_late:
            self._note_sleeps()

    def _note_sleeps(self) -> None:
        # The attacher makes progress while any of its threads does.
        sleeps, now_s = sleeps_of(self.pid), time.monotonic()
        if not sleeps or sleeps != self._sleeps:
            self._sleeps, self._asleep_since_s = sleeps, now_s
        self._is_late = now_s - self._asleep_since_s >= _SLEEPS_S

    def _has_answer(self, wait_s: float) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(1000 * wait_s))

    def _send(self) -> None:
        if self._sent or not self._queue:
            return
        request = self._sent = self._queue.popleft()
        self._sleeps = set()
        request.tries += 1
        socket.send_fds(self._socket, [request.text], [request.fd] if request.fd >= 0 else [])

    def _receive(self, request: _Request) -> None:
        text, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 253)
        if not text:
            raise ConnectionResetError
        answer, link = json.loads(text), request.link
        if link:
            link.fds += fds
        else:
            for fd in fds:
                os.close(fd)
        if not answer["is_last"]:
            return
        self._sent, self._is_late = None, False
        error = answer["error"]
        self._finish(request, error and BpfError(error[0], hint=error[1], log=error[2]))

    def _finish(self, request: _Request, error: BpfError | None) -> None:
        request.is_done, request.error = True, error
        if request.fd >= 0:
            os.close(request.fd)
        if error and not request.is_waited_for:
            _logger.warning("late: %s", error)
        if link := request.link:
            link.is_waiting, link.error = False, error
            if error:
                link.close()
            else:
                self._links[link.number] = link

    def _replace(self) -> None:
        # The attacher has ended. The agent holds all of its links, so another one can continue.
        _logger.warning("process %d, which places probes, has ended", self.pid)
        self._socket.close()
        _ends_in_time(self.pid)
        self.pid, self._is_late = 0, False
        request, self._sent = self._sent, None
        if request:
            if request.link:
                request.link.close()
            # A request to detach needs no retry: the attacher's descriptors are closed with it.
            if request.fd >= 0 and request.tries < _TRIES:
                self._queue.appendleft(request)
            else:
                text = "the process that places probes has ended"
                self._finish(request, BpfError(text) if request.fd >= 0 else None)
        try:
            self._start()
        except OSError as error:
            _logger.warning("there is no other process that places probes: %s", error.strerror)
            while self._queue:
                text = "there is no process that places probes"
                self._finish(self._queue.popleft(), BpfError(text))


def _ends_in_time(pid: int, at_turn: Callable[[], object] = lambda: None) -> bool:
    try:
        pid_fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(pid_fd, select.POLLIN)
        until_s = time.monotonic() + _ENDS_S
        while not poller.poll(1000 * _TURN_S):
            at_turn()
            if time.monotonic() >= until_s:
                return False
    finally:
        os.close(pid_fd)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return True
