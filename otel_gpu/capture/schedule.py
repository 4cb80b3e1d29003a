"""Things to do at intervals, for a loop that asks."""

import time
from collections.abc import Callable, Iterable, Iterator

from otel_gpu.faults import Faults

Action = Callable[[], Iterable[bytes] | None]

_TOGETHER_S = 0.02
"""What is due that soon is run as well, so that the loop wakes up once for all of it."""


class Schedule:
    """
    Actions, each with its own interval; what they return is records.

    An error ends one run of its action, and keeps no other action from its time.

    Args:
        faults: Counts errors, by the place of the action.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, faults: Faults, clock: Callable[[], float] = time.monotonic) -> None:
        self._faults = faults
        self._clock = clock
        self._actions: list[tuple[float, str, Action]] = []
        self._due_s: list[float] = []
        self._always: list[tuple[str, Action]] = []

    def every(self, interval_s: float, place: str, action: Action) -> None:
        """Run an action an interval from now, and again after each."""
        self._actions.append((interval_s, place, action))
        self._due_s.append(self._clock() + interval_s)

    def at_each_turn(self, place: str, action: Action) -> None:
        """Run an action whenever the loop is awake; it wakes nobody up."""
        self._always.append((place, action))

    def wait_s(self) -> float:
        """Return how long nothing is due."""
        return max(0.0, min(self._due_s) - self._clock())

    def run_due(self) -> Iterator[bytes]:
        """Run what is due. A loop that is late runs an action once, not once per interval."""
        for place, action in self._always:
            with self._faults.at(place):
                yield from action() or ()
        now_s = self._clock()
        for index, (interval_s, place, action) in enumerate(self._actions):
            if now_s + min(_TOGETHER_S, interval_s / 10) >= self._due_s[index]:
                # From when it was due, so that what is due together stays so.
                due_s = self._due_s[index] + interval_s
                self._due_s[index] = due_s if due_s > now_s else now_s + interval_s
                with self._faults.at(place):
                    yield from action() or ()
