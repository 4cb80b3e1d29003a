"""
Detaches BPF programs in parallel.

The kernel waits for each program until no CPU runs it. Parallel waits take no longer than one.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable

Link = Callable[[], object]
"""Detaches one program, which takes about 0.1 s."""

# The unit in deploy/ allows 128 threads.
_THREADS = 96
_TURN_S = 0.02


class Links:
    """Links of one BPF object that this process detaches itself."""

    def __init__(self) -> None:
        self._links: dict[Link, None] = {}

    def add(self, link: Link) -> Link:
        """Register a link, and return it."""
        self._links[link] = None
        return link

    def detach(self, links: Iterable[Link]) -> None:
        """Undo attachments."""
        for link in links:
            link()
            del self._links[link]

    def detach_all(self, at_turn: Callable[[], object] = lambda: None) -> None:
        """Undo all attachments, and call ``at_turn`` repeatedly until that is done."""
        detach_side_by_side(self._links, at_turn)
        self._links.clear()


def detach_side_by_side(
    links: Iterable[Link], at_turn: Callable[[], object] = lambda: None
) -> None:
    """Undo attachments in parallel, and call ``at_turn`` repeatedly until that is done."""
    waiting = deque(links)
    threads = [
        threading.Thread(target=_detach, args=(waiting,), name="detach", daemon=True)
        for _ in range(min(_THREADS, len(waiting)))
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # The limit of threads is reached.
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
            # close(2) frees the descriptor even if it returns an error.
            with contextlib.suppress(OSError):
                link()
