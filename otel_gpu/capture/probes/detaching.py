"""
Detaching of programs, many side by side.

The kernel waits for each program that it takes away: until no CPU runs it. Many share that wait.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable

Link = Callable[[], object]
"""Detaches one program. The kernel waits until no CPU runs it, for 0.1 s or so."""

# They share the kernel's waiting. The unit in deploy/ allows 128 threads.
_THREADS = 96
_TURN_S = 0.02


class Links:
    """The links of one BPF object that this process detaches itself."""

    def __init__(self) -> None:
        self._links: dict[Link, None] = {}

    def add(self, link: Link) -> Link:
        """Keep a link, and return it."""
        self._links[link] = None
        return link

    def detach(self, links: Iterable[Link]) -> None:
        """Undo attachments."""
        for link in links:
            link()
            del self._links[link]

    def detach_all(self, at_turn: Callable[[], object] = lambda: None) -> None:
        """Undo all of them; ``at_turn`` is called all the while."""
        detach_side_by_side(self._links, at_turn)
        self._links.clear()


def detach_side_by_side(
    links: Iterable[Link], at_turn: Callable[[], object] = lambda: None
) -> None:
    """Undo attachments, at most 96 at a time; ``at_turn`` is called all the while."""
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
