"""A thread that polls a source whose calls can block forever."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATE_S = 5.0
"""A reading that takes longer counts as late."""


class PollingThread:
    """
    Calls ``_turn`` of a subclass repeatedly in a thread.

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
        # A daemon, so that a blocked call does not delay the end of the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after its current call, without waiting for it."""
        self._stop.set()

    def _turn(self) -> float | None:
        # Read once; return the seconds until the next reading, or None to stop for good.
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
        # Whether lateness changed since the previous call, and its fields for a record.
        begun_s = self._begun_s
        is_late = begun_s is not None and self._clock() - begun_s > LATE_S
        # Each late reading counts once.
        self._late += is_late and not self._is_late
        was_late, self._is_late = self._is_late, is_late
        return is_late != was_late, {"late": self._late, "is_late": is_late}
