"""
Faults: exceptions that nobody expected, kept from spreading beyond where they arose.

A place is a part of the agent, named with a constant: an observer such as ``store``, a periodic
task such as ``discovery``, the handler of a record. What an error costs is dropped and counted
under the place; everything else goes on. KeyboardInterrupt and SystemExit are no faults.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

_logger = logging.getLogger(__name__)

# From one line about a place to the next, which says how many errors there were in between.
_FIRST_SILENCE_S, _LONGEST_SILENCE_S = 60.0, 3_600.0
# Errors without a quiet minute between them after which a part gets a clean state; after the
# last of them it is switched off, and tried again after a pause that doubles.
_STRIKES = (10, 100, 1_000)
_QUIET_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3_600.0


class Observer(Protocol):
    """
    Takes activities, one at a time.

    One that has an attribute ``observes``, a set of types, gets activities of these types only.
    """

    def observe(self, activity: Any, /) -> object:  # noqa: ANN401 -- of a room after this one
        """Take one activity, in the order of the stream."""


T = TypeVar("T", bound=Observer)


class Faults:
    """The errors of one agent, by place; safe between threads; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        # By place: when the next line is due, the silence after it, and errors since the last one.
        self._said: dict[str, tuple[float, float, int]] = {}
        self._off: dict[str, bool] = {}

    def add(self, place: str, error: BaseException) -> None:
        """Count an error, which cost one item, and log it: with its traceback the first time."""
        with self._lock:
            self._errors[place] += 1
            due_s, silence_s, unsaid = self._said.get(place, (0.0, 0.0, 0))
            now_s = self.clock()
            is_first = not silence_s
            if not is_first and now_s < due_s:
                self._said[place] = (due_s, silence_s, unsaid + 1)
                return
            silence_s = min(2 * silence_s or _FIRST_SILENCE_S, _LONGEST_SILENCE_S)
            self._said[place] = (now_s + silence_s, silence_s, 0)
        text = f"{type(error).__name__}: {error}"
        if is_first:
            _logger.error(
                "%s failed and goes on without what it was doing: %s", place, text, exc_info=error
            )
        else:
            _logger.error("%s failed %d times more, the last time: %s", place, unsaid + 1, text)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Return a context in which an error is counted under a place, and ends the context alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- that is what this is for
            self.add(place, error)

    def skip(self, place: str) -> None:
        """Count an item that a part did not get while it was switched off."""
        with self._lock:
            self._skipped[place] += 1

    def switch(self, place: str, *, off: bool) -> None:
        """Note that a part is switched off, or tried again."""
        with self._lock:
            self._off[place] = off

    def status(self) -> dict[str, dict[str, int]]:
        """
        Return what RECORD_STATUS says of faults.

        ``errors`` by place, ``skipped``: items that came while a part was switched off, and
        ``off``: 1 for each part that is switched off now, 0 for one that was.
        """
        with self._lock:
            return {
                "errors": dict(self._errors),
                "skipped": dict(self._skipped),
                "off": {place: int(off) for place, off in self._off.items()},
            }

    def summary(self) -> str:
        """Return one line for an operator: errors, and what is switched off; empty: none."""
        with self._lock:
            errors = ", ".join(f"{place} {n:,}" for place, n in sorted(self._errors.items()))
            off = ", ".join(sorted(place for place, is_off in self._off.items() if is_off))
        parts = (errors and f"errors: {errors}", off and f"switched off: {off}")
        return "; ".join(filter(None, parts))

    @property
    def cost_a_part(self) -> bool:
        """Whether a part was ever switched off, so that what it made is incomplete."""
        return bool(self._off)


class Stage(Generic[T]):
    """Something that is given items; its errors are raised, as they should be where a tool runs once."""

    def __init__(self, part: T) -> None:
        self.part = part
        self.observe: Callable[[Any], object] = part.observe

    def call(self, act: Callable[[T], object]) -> None:
        """Have something done with the part."""
        act(self.part)

    def failed(self, error: Exception) -> None:
        """Take in an error that the part raised about one item."""
        raise error


class Isolated(Stage[T]):
    """
    A part whose errors neither end the capture nor reach other parts.

    An error costs the item that it was about. After many of them the part is renewed, then
    switched off, and tried again later. Whoever has many items calls ``observe`` in a ``try``
    of its own, which costs nothing, and hands what it catches to ``failed``.

    Args:
        faults: Counts the errors.
        place: The part's name.
        part: What is isolated.
        renew: Returns the part in a clean state, given the broken one; default: as it is.
    """

    def __init__(
        self, faults: Faults, place: str, part: T, renew: Callable[[T], T] = lambda part: part
    ) -> None:
        super().__init__(part)
        self._faults = faults
        self._place = place
        self._renew = renew
        self._strikes = 0
        self._last_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._retry_s = 0.0
        self._is_off = False

    def call(self, act: Callable[[T], object]) -> None:
        """Have something done with the part, unless it is switched off."""
        if self._is_off:
            self._skip()
            return
        try:
            act(self.part)
        except Exception as error:  # noqa: BLE001 -- that is what this is for
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Take in an error that the part raised about one item."""
        self._faults.add(self._place, error)
        now_s = self._faults.clock()
        if now_s - self._last_s >= _QUIET_S:
            self._strikes = 0
            self._pause_s = _FIRST_PAUSE_S
        self._last_s = now_s
        self._strikes += 1
        if self._strikes >= _STRIKES[-1]:
            self._switch_off()
        elif self._strikes in _STRIKES:
            self._begin_anew()

    def _begin_anew(self) -> None:
        try:
            self.part = self._renew(self.part)
        except Exception as error:  # noqa: BLE001 -- as above
            self._faults.add(self._place, error)
            self._switch_off()
            return
        self.observe = self.part.observe
        if self._is_off:
            self._is_off = False
            self._faults.switch(self._place, off=False)

    def _switch_off(self) -> None:
        self._is_off = True
        self.observe = self._skip
        self._faults.switch(self._place, off=True)
        self._retry_s = self._faults.clock() + self._pause_s
        text = "%s failed too often: it is switched off, and tried again in %.0f s"
        _logger.error(text, self._place, self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _skip(self, activity: Any = None) -> None:  # noqa: ANN401 -- see Observer
        if activity is None or self._faults.clock() < self._retry_s:
            self._faults.skip(self._place)
            return
        # It gets no more chances than a part has before it is renewed for the first time.
        self._strikes = _STRIKES[-1] - _STRIKES[0]
        self._last_s = self._faults.clock()
        self._begin_anew()
        try:
            self.observe(activity)
        except Exception as error:  # noqa: BLE001 -- as above
            self.failed(error)
