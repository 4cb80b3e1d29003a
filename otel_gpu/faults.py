"""
Faults: unexpected exceptions, isolated in the part of the agent that raised them.

A place is the constant name of a part: an observer such as ``store``, a periodic task such as
``discovery``, the handler of a record. The item that raised is dropped and counted under the place;
everything else continues. KeyboardInterrupt and SystemExit are not faults.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

_logger = logging.getLogger(__name__)

# Between two log lines about a place; the second one counts the errors in between.
_FIRST_SILENCE_S, _LONGEST_SILENCE_S = 60.0, 3_600.0
# Errors without a quiet minute between them after which a part gets a clean state; after the last
# of these counts it is switched off, and tried again after a pause that doubles.
_STRIKES = (10, 100, 1_000)
_QUIET_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3_600.0


class Observer(Protocol):
    """
    Takes activities, one at a time.

    An observer with an attribute ``observes``, a set of types, gets activities of these types only.
    """

    def observe(self, activity: Any, /) -> object:  # noqa: ANN401 -- of a package that imports this one
        """Process one activity; activities come in the order of the stream."""


T = TypeVar("T", bound=Observer)


class Faults:
    """The errors of one agent, by place; thread-safe; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        # By place: when the next line is due, the silence after it, and errors since the last one.
        self._logged: dict[str, tuple[float, float, int]] = {}
        self._off: dict[str, bool] = {}

    def add(self, place: str, error: BaseException) -> None:
        """Count and log an error, the first one of a place with its traceback."""
        with self._lock:
            self._errors[place] += 1
            due_s, silence_s, unlogged = self._logged.get(place, (0.0, 0.0, 0))
            now_s = self.clock()
            is_first = not silence_s
            if not is_first and now_s < due_s:
                self._logged[place] = (due_s, silence_s, unlogged + 1)
                return
            silence_s = min(2 * silence_s or _FIRST_SILENCE_S, _LONGEST_SILENCE_S)
            self._logged[place] = (now_s + silence_s, silence_s, 0)
        text = f"{type(error).__name__}: {error}"
        if is_first:
            _logger.error(
                "%s failed and goes on without what it was doing: %s", place, text, exc_info=error
            )
        else:
            _logger.error("%s failed %d times more, the last time: %s", place, unlogged + 1, text)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Return a context that counts and suppresses an error."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- its purpose
            self.add(place, error)

    def skip(self, place: str) -> None:
        """Count an item that a part missed while it was switched off."""
        with self._lock:
            self._skipped[place] += 1

    def switch(self, place: str, *, off: bool) -> None:
        """Note that a part is switched off, or tried again."""
        with self._lock:
            self._off[place] = off

    def status(self) -> dict[str, dict[str, int]]:
        """
        Return the figures of RECORD_STATUS about faults, by place.

        ``errors``; ``skipped``: items that came while the part was switched off; ``off``: 1 for each
        part that is switched off now, 0 for one that was.
        """
        with self._lock:
            return {
                "errors": dict(self._errors),
                "skipped": dict(self._skipped),
                "off": {place: int(off) for place, off in self._off.items()},
            }

    def summary(self) -> str:
        """Return one line for the operator: errors, and the parts that are switched off; or nothing."""
        with self._lock:
            errors = ", ".join(f"{place} {n:,}" for place, n in sorted(self._errors.items()))
            off = ", ".join(sorted(place for place, is_off in self._off.items() if is_off))
        parts = (errors and f"errors: {errors}", off and f"switched off: {off}")
        return "; ".join(filter(None, parts))

    @property
    def cost_a_part(self) -> bool:
        """Whether a part was ever switched off, so that its output is incomplete."""
        return bool(self._off)


class Stage(Generic[T]):
    """A part that gets items; its errors are raised, which is right for a command that runs once."""

    def __init__(self, part: T) -> None:
        self.part = part
        self.observe: Callable[[object], object] = part.observe

    def call(self, act: Callable[[T], object]) -> None:
        """Call a function with the part."""
        act(self.part)

    def failed(self, error: Exception) -> None:
        """Handle an error that the part raised for one item."""
        raise error


class Isolated(Stage[T]):
    """
    A part whose errors neither end the capture nor reach other parts.

    An error costs one item. After many errors the part is renewed, then switched off, and tried
    again later. On hot paths, call ``observe`` in a ``try``, which is free, and pass the caught
    error to ``failed``.

    Args:
        faults: Counts the errors.
        place: The part's name.
        part: The isolated part.
        renew: Returns a part in a clean state, given the broken one; default: the same part.
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
        """Call a function with the part, unless it is switched off."""
        if self._is_off:
            self._skip()
            return
        try:
            act(self.part)
        except Exception as error:  # noqa: BLE001 -- its purpose
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Handle an error that the part raised for one item."""
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

    def _skip(self, activity: object = None) -> None:
        if activity is None or self._faults.clock() < self._retry_s:
            self._faults.skip(self._place)
            return
        # It gets as many chances as before its first renewal.
        self._strikes = _STRIKES[-1] - _STRIKES[0]
        self._last_s = self._faults.clock()
        self._begin_anew()
        try:
            self.observe(activity)
        except Exception as error:  # noqa: BLE001 -- as above
            self.failed(error)
