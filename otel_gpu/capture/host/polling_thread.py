"""A thread that asks again and again what may never answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATE_S = 5.0
"""A reading that takes longer is late."""


class PollingThread:
    """
    Reads in a thread of its own; what derives from it says in ``_turn`` what a turn is.

    Args:
        name: Of the thread.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._begun_s: float | None = None
        self._late = 0
        self._is_late = False
        # A daemon: at the end, one that does not come back is left where it is.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """End soon; an answer that does not come is not waited for."""
        self._stop.set()

    def _turn(self) -> float | None:
        """Ask once; return how many seconds to rest then, None: nothing will ever be there."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stop.is_set() and (rest_s := self._turn()) is not None:
            self._stop.wait(rest_s)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._begun_s = self._clock()
        try:
            yield
        finally:
            self._begun_s = None

    def _lateness(self) -> tuple[bool, dict[str, int | bool]]:
        """Return whether it is news whether a reading is late; and the figures of it."""
        begun_s = self._begun_s
        is_late = begun_s is not None and self._clock() - begun_s > LATE_S
        # One reading is late once.
        self._late += is_late and not self._is_late
        was_late, self._is_late = self._is_late, is_late
        return is_late != was_late, {"late": self._late, "is_late": is_late}
