"""
The nouns of a timeline: tracks, and what is drawn on them.

A ``Drawing`` takes them one by one, so that a timeline of any length is drawn in bounded memory.
Times are Unix nanoseconds.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

Details = Mapping[str, object] | None
"""What is shown of a thing that is looked at: whatever JSON can hold, by name."""


class Track(NamedTuple):
    """
    A row of a timeline.

    ``role`` keeps rows of one thread apart, and is said behind its name; empty: what it did. Of a
    device, ``thread`` is a stream.
    """

    process: int
    process_name: str
    thread: int
    thread_name: str
    role: str = ""
    is_device: bool = False


class ArrowEnd(NamedTuple):
    """Where something was drawn, which is what arrows lead to and from."""

    process: int
    lane: int


class Slice(NamedTuple):
    """Something that took time."""

    track: Track
    name: str
    category: str
    start_unix_ns: int
    end_unix_ns: int
    details: Details = None


class Instant(NamedTuple):
    """Something that happened to a process at a moment."""

    track: Track
    name: str
    category: str
    unix_ns: int
    details: Details = None


class Level(NamedTuple):
    """What figures of a process were from a moment on."""

    process: int
    process_name: str
    name: str
    unix_ns: int
    values: Mapping[str, float]


class Arrow(NamedTuple):
    """From what was there first to what came of it; both lie in something that was drawn."""

    name: str
    category: str
    source: ArrowEnd
    source_unix_ns: int
    target: ArrowEnd
    target_unix_ns: int


class Drawing(Protocol):
    """Takes what is to be drawn."""

    def ended(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that ended before; None: there is no room."""

    def began(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that began before; None: there is no room."""

    def instant(self, drawn: Instant) -> None:
        """Draw a moment."""

    def level(self, drawn: Level) -> None:
        """Draw figures."""

    def arrow(self, drawn: Arrow) -> None:
        """Draw an arrow."""
