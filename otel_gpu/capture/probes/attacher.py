"""
Placing probes, and taking them away, by a process that can be left waiting.

The kernel waits for the lock of the memory map of each process that maps a file before it changes a
probe in that file. A program holds that lock for as long as it likes, by a page of a file system that
it serves itself, and no signal ends the wait. So a child of the agent, the attacher, does all of this;
the agent waits for its answers for a while only, and goes on. What is not answered in time is placed
when the kernel lets it.

Both have each link: the attacher's death takes no probe away, and another attacher takes its place. The
agent closes its descriptor first, so that the attacher is the one that waits. When the agent
ends, however it ends, the attacher takes all probes away and ends, too.
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
from otel_gpu.procfs.kernel_waits import Sleep, note_change, sleeps_of

# The kernel sleeps for some milliseconds at a time: longer on a machine whose processors are busy, and while
# other agents change probes.
_SLEEPS_S = 1.5
# While the attacher gets on.
_WAITS_S = 30.0
_WAITS_AT_END_S = 1.0
_SLICE_S = 0.1
_TURN_S = 0.02
# How long the end waits: nearly always, nothing is left behind.
_ENDS_S = 1.0
_MAX_QUEUED = 1024
_TRIES = 2
_CHANGE = "probes"
# With the complement of a pid above it, the clock of a process's CPU time, as of clock_getcpuclockid(3).
_CPU_CLOCK = 2

_logger = logging.getLogger(__name__)


class Remainder(NamedTuple):
    """What is not taken away yet: how many links, and which process is at them."""

    links: int
    pid: int


class ProbeLink:
    """
    One program at places of one file.

    Attributes:
        is_waiting: Whether the kernel has not placed its probes yet.
        error: Why it has none, if that was found out late.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_waiting = True
        self.error: BpfError | None = None
        self.fds: list[int] = []

    def close(self) -> None:
        """Close our descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


AnyLink = Link | ProbeLink
"""What ``BpfObject.detach`` takes."""


def waiting(links: Iterable[object]) -> list[ProbeLink]:
    """Return those of some links whose probes the kernel has not placed yet."""
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

    Made before the agent has threads or much memory, for it is a fork of it.

    Args:
        attach: Does it in this process. Takes the name of a program, a path, places and whether they are
            returns, and returns what detaches each link, with its descriptor.
        kept: The descriptors that it needs.
        at_turn: Is called all the while probes are taken away at the end, by either process.

    Attributes:
        pid: Of the attacher; 0: there is none any more.

    Raises:
        OSError: There can be no other process.
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
        """Whether the kernel keeps the attacher waiting."""
        return self._sent is not None

    @property
    def can_queue(self) -> bool:
        """Whether the probes of another file can wait, too."""
        return len(self._queue) < _MAX_QUEUED // 2

    def attach(
        self, program: str, fd: int, places: Sequence[tuple[int, int]], *, on_return: bool
    ) -> ProbeLink:
        """
        Attach a program to (file offset, cookie) pairs of a file; the descriptor stays the caller's.

        Returns:
            The link, which is still waiting if the kernel is.

        Raises:
            BpfError: One of them cannot be, so that none is; or too many wait already.
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
        """Take probes away: now, or when the kernel lets it."""
        numbers = []
        for link in links:
            queued = next((one for one in self._queue if one.link is link), None)
            if queued:
                self._queue.remove(queued)
                os.close(queued.fd)
                link.is_waiting = False
            elif link.is_waiting or link.number in self._links:
                # The attacher has it, too, and is the one that waits.
                link.close()
                link.is_waiting = False
                numbers.append(link.number)
                self._links.pop(link.number, None)
                if self._sent and self._sent.link is link:
                    self._sent.link = None
        if numbers and self.pid:
            self._ask(_Request({"detached": numbers}))

    def cpu_ns(self) -> int:
        """Return the CPU time that the attacher has taken; 0: there is none."""
        try:
            return time.clock_gettime_ns(~self.pid << 3 | _CPU_CLOCK) if self.pid else 0
        except OSError:
            return 0

    def end_soon(self) -> None:
        """Wait for no answer for more than a second any more; safe in a signal handler."""
        self._is_hurried = True

    def take_answers(self) -> None:
        """Take in what was answered late, and ask for what has waited meanwhile."""
        self._exchange(0.0)
        note_change(_CHANGE, waits=self.is_late)

    def close(self) -> Remainder | None:
        """
        Take all probes away, and end the attacher.

        Returns:
            What is not taken away yet; None: from now on none of the programs runs.
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
        # And what is being placed.
        return Remainder(max(1, self._counts[0] - self._counts[1]), pid)

    def _start(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        # How many links there are, and how many of them were detached at the end.
        self._counts = memoryview(self._memory).cast("Q")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        with theirs:
            parent = os.pidfd_open(os.getpid())
            try:
                with warnings.catch_warnings():
                    # That there are threads. The child takes none of their locks.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self.pid = os.fork()
                if not self.pid:
                    links: dict[int, list[Link]] = {
                        number: [partial(os.close, fd) for fd in link.fds]
                        for number, link in self._links.items()
                    }
                    kept = {*self._kept, *(fd for link in self._links.values() for fd in link.fds)}
                    serve(theirs, parent, self._attach, links, kept, self._at_turn, self._counts)
            except OSError:
                self._socket.close()
                raise
            finally:
                os.close(parent)

    def _ask(self, request: _Request) -> None:
        """Ask, and wait for the answer for a while."""
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
        # Its threads wait for each other, too. It gets on while any of them does.
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
        """Start another attacher: ours is gone, and we have all of its links."""
        _logger.warning("process %d, which places probes, has ended", self.pid)
        self._socket.close()
        _ends_in_time(self.pid)
        self.pid, self._is_late = 0, False
        request, self._sent = self._sent, None
        if request:
            if request.link:
                request.link.close()
            # What we had of detached links is closed, and the rest ended with it.
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
