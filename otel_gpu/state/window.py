"""A part of a capture, as a filter."""

from typing import NamedTuple


class Window(NamedTuple):
    """A part of a capture; None: open at that end."""

    start_unix_ns: int | None = None
    end_unix_ns: int | None = None

    def overlaps(self, start_unix_ns: int, end_unix_ns: int) -> bool:
        """Whether an interval touches the window."""
        if self.start_unix_ns is not None and end_unix_ns < self.start_unix_ns:
            return False
        return self.end_unix_ns is None or start_unix_ns <= self.end_unix_ns
