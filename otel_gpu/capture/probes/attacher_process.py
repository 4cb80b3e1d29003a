"""The attacher process, which places probes for the agent (see ``attacher``)."""

import contextlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from otel_gpu.capture.probes.detaching import Link, detach_side_by_side
from otel_gpu.capture.processes.inherited import let_go_in_child, name_child
from otel_gpu.errors import BpfError

Attach = Callable[[str, str, Sequence[tuple[int, int]], bool], list[tuple[Link, int]]]
"""(program, path, places, on_return) -> for each link, a function that detaches it, and its descriptor."""

MESSAGE_BYTES = 1 << 17
# A message can carry 253.
_FDS_AT_A_TIME = 250
_MAX_LOG = 8192
_TURN_S = 0.02


def serve(
    agent: socket.socket,
    parent: int,
    attach: Attach,
    links: dict[int, list[Link]],
    kept: Collection[int],
    at_turn: Callable[[], object],
    counts: "memoryview[int]",
) -> None:
    """
    Run the attacher in a forked child; never returns.

    Args:
        agent: The socket with the agent's requests.
        parent: A pidfd of the agent.
        attach: Attaches a program in this process.
        links: Existing links by number.
        kept: Other descriptors to keep open.
        at_turn: Called repeatedly while probes are removed.
        counts: Shared memory for the number of links, and how many were detached at the end.
    """
    # Never return into the agent's code. The end of the process detaches remaining links one by one.
    try:
        let_go_in_child()
        _close_others({0, 1, 2, agent.fileno(), parent, *kept})
        name_child("otel-gpu-attach")
        _Attacher(
            agent=agent, parent=parent, attach=attach, links=links, at_turn=at_turn, counts=counts
        ).run()
    finally:
        sys.stdout = sys.stderr = None  # buffers that are the agent's
        os._exit(0)


class _Attacher:
    def __init__(
        self,
        agent: socket.socket,
        parent: int,
        attach: Attach,
        links: dict[int, list[Link]],
        at_turn: Callable[[], object],
        counts: "memoryview[int]",
    ) -> None:
        self._agent = agent
        self._parent = parent
        self._attach = attach
        self._links = links
        self._at_turn = at_turn
        self._counts = counts
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._is_idle = threading.Event()
        self._count()

    def run(self) -> None:
        # A second thread, because the kernel can block this one when the agent ends.
        watcher = threading.Thread(target=self._end_with_agent, daemon=True)
        watcher.start()
        with contextlib.suppress(OSError):
            while not self._is_ending.is_set() and self._answer():
                pass
        self._is_idle.set()
        watcher.join()

    def _answer(self) -> bool:
        text, fds, _, _ = socket.recv_fds(self._agent, MESSAGE_BYTES, 1)
        if not text or self._is_ending.is_set():
            return False
        question = json.loads(text)
        if "detached" in question:
            found = (self._links.pop(number, ()) for number in question["detached"])
            detach_side_by_side([link for links in found for link in links])
            self._count()
            self._send(None, [])
            return True
        try:
            path = f"/proc/self/fd/{fds[0]}"
            error, found_fds = self._place(question, path)
        finally:
            for fd in fds:
                os.close(fd)
        self._send(error, found_fds)
        return True

    def _place(self, question: dict[str, Any], path: str) -> tuple[list[str] | None, list[int]]:
        try:
            placed = self._attach(
                question["program"], path, question["places"], question["on_return"]
            )
        except BpfError as error:
            return [str(error), error.hint, error.log[-_MAX_LOG:]], []
        self._links[question["link"]] = [link for link, _ in placed]
        self._count()
        return None, [fd for _, fd in placed]

    def _count(self) -> None:
        self._counts[0] = sum(map(len, self._links.values()))

    def _send(self, error: list[str] | None, fds: list[int]) -> None:
        while True:
            now, fds = fds[:_FDS_AT_A_TIME], fds[_FDS_AT_A_TIME:]
            answer = {"is_last": not fds, "error": error}
            socket.send_fds(self._agent, [json.dumps(answer).encode()], now)
            if not fds:
                return

    def _end_with_agent(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._agent, select.POLLRDHUP)
            poller.register(self._parent, select.POLLIN)
            while not poller.poll():
                pass
            self._is_ending.set()
            self._detach_all()
            while not self._is_idle.wait(_TURN_S):
                self._at_turn()
            self._detach_all()
            self._at_turn()
        finally:
            sys.stdout = sys.stderr = None
            os._exit(0)

    def _detach_all(self) -> None:
        taken = [self._links.pop(number) for number in list(self._links)]
        detach_side_by_side([self._noted(link) for links in taken for link in links], self._at_turn)

    def _noted(self, link: Link) -> Link:
        def detach() -> None:
            try:
                link()
            finally:
                with self._lock:
                    self._counts[1] += 1

        return detach


def _close_others(kept: set[int]) -> None:
    # The listing contains its own descriptor, which is closed by then.
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 -- no paths needed
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)
