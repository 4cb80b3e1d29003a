"""A window: a part of a capture."""

from typing import NamedTuple


class Window(NamedTuple):
    """A part of a capture; None where it is open."""

    start_unix_ns: int | None = None
    end_unix_ns: int | None = None

    def overlaps(self, start_unix_ns: int, end_unix_ns: int) -> bool:
        """Whether something that took this long touches the window."""
        if self.start_unix_ns is not None and end_unix_ns < self.start_unix_ns:
            return False
        return self.end_unix_ns is None or start_unix_ns <= self.end_unix_ns
