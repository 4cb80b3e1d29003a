"""Periodic actions of the capture loop."""

import time
from collections.abc import Callable, Iterable, Iterator

from otel_gpu.faults import Faults

Action = Callable[[], Iterable[bytes] | None]

_TOGETHER_S = 0.02
"""Actions that are due this soon run as well, so the loop wakes up less often."""


class Schedule:
    """
    Actions with intervals; they return records.

    An error ends one run of its action and does not affect the others.

    Args:
        faults: Counts errors by the action's name.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, faults: Faults, clock: Callable[[], float] = time.monotonic) -> None:
        self._faults = faults
        self._clock = clock
        self._actions: list[tuple[float, str, Action]] = []
        self._due_s: list[float] = []
        self._always: list[tuple[str, Action]] = []

    def every(self, interval_s: float, place: str, action: Action) -> None:
        """Run an action after each interval, first one interval from now."""
        self._actions.append((interval_s, place, action))
        self._due_s.append(self._clock() + interval_s)

    def at_each_turn(self, place: str, action: Action) -> None:
        """Run an action whenever the loop is awake; it causes no wake-up."""
        self._always.append((place, action))

    def wait_s(self) -> float:
        """Return the time until the next action is due."""
        return max(0.0, min(self._due_s) - self._clock())

    def run_due(self) -> Iterator[bytes]:
        """Run the actions that are due, once each, even if several intervals have passed."""
        for place, action in self._always:
            with self._faults.at(place):
                yield from action() or ()
        now_s = self._clock()
        for index, (interval_s, place, action) in enumerate(self._actions):
            if now_s + min(_TOGETHER_S, interval_s / 10) >= self._due_s[index]:
                # From the due time, so that actions that are due together stay together.
                due_s = self._due_s[index] + interval_s
                self._due_s[index] = due_s if due_s > now_s else now_s + interval_s
                with self._faults.at(place):
                    yield from action() or ()
