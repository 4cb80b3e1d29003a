"""The latest readings of one thing, to find those around a window."""

from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Reading(NamedTuple, Generic[_T]):
    """A value, and when it was read."""

    unix_ns: int
    value: _T


class ReadingHistory(Generic[_T]):
    """Keeps the latest readings, at most ``most``, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        # A list: most stay nearly empty, and an empty deque takes 600 bytes.
        self._readings: list[Reading[_T]] = []

    def add(self, unix_ns: int, value: _T) -> None:
        """Add a reading."""
        self._readings.append(Reading(unix_ns, value))
        del self._readings[: -self._most]

    def across(self, start_unix_ns: int, end_unix_ns: int) -> list[Reading[_T]]:
        """
        Return the last reading before a window, those in it, and the first one after it.

        If none came after it yet, those in it are all. Empty: fewer than two.
        """
        found: list[Reading[_T]] = []
        for reading in self._readings:
            if reading.unix_ns <= start_unix_ns:
                found = [reading]
            elif found:
                found.append(reading)
                if reading.unix_ns >= end_unix_ns:
                    break
        return found if len(found) > 1 else []

    def around(
        self, start_unix_ns: int, end_unix_ns: int
    ) -> tuple[Reading[_T], Reading[_T]] | None:
        """Return the last reading before a window and the first one after it, if both are kept."""
        before: Reading[_T] | None = None
        for reading in self._readings:
            if reading.unix_ns <= start_unix_ns:
                before = reading
            elif reading.unix_ns >= end_unix_ns:
                return None if before is None else (before, reading)
        return None

    def within(
        self, start_unix_ns: int, end_unix_ns: int
    ) -> tuple[Reading[_T], Reading[_T], Reading[_T]] | None:
        """
        Return the first reading of all, and those before and after a window.

        If there is none before or after it, the nearest one inside takes its place. None: no two
        readings have any of the window between them.
        """
        found = self.around(start_unix_ns, end_unix_ns)
        if found is None and self._readings:
            before = [one for one in self._readings if one.unix_ns <= start_unix_ns]
            after = [one for one in self._readings if one.unix_ns >= end_unix_ns]
            found = (before or self._readings[:1])[-1], (after or self._readings[-1:])[0]
        if found is None or found[0].unix_ns >= found[1].unix_ns:
            return None
        return (self._readings[0], *found)
