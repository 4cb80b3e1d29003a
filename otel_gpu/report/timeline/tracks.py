"""
Types of a timeline: tracks, and what is drawn on them.

A ``Drawing`` receives items one by one, so that a timeline of any length is drawn in bounded
memory. Times are Unix nanoseconds.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

Details = Mapping[str, object] | None
"""Details of a selected item: JSON values by name."""


class Track(NamedTuple):
    """
    A row of a timeline.

    ``role`` separates several rows of one thread, and follows its name; empty: its activity. For a
    device, ``thread`` is a stream.
    """

    process: int
    process_name: str
    thread: int
    thread_name: str
    role: str = ""
    is_device: bool = False


class ArrowEnd(NamedTuple):
    """The position of a drawn slice, for arrows."""

    process: int
    lane: int


class SliceCategory(StrEnum):
    """What a slice, an instant or an arrow is; idle time of devices has ``IDLE`` and its cause."""

    # Of devices.
    KERNEL = "kernel"
    GRAPH = "graph"
    COPY = "copy"
    FILL = "fill"
    COMMUNICATION = "communication"
    """Work that several devices do together."""
    STEP = "step"
    # Of threads.
    CALL = "cuda"
    GAP = "gap"
    WAIT = "wait"
    OPERATION = "operation"
    ANNOTATION = "annotation"
    PYTHON = "python"
    PROCESS = "process"
    """A fork or an exit."""
    # Of explanations.
    EFFECT = "effect"
    CULPRIT = "culprit"
    CAUSE = "cause"
    INCIDENT = "incident"


class Slice(NamedTuple):
    """Something that took time."""

    track: Track
    name: str
    category: str
    start_unix_ns: int
    end_unix_ns: int
    details: Details = None


class Instant(NamedTuple):
    """An event of a process at one time."""

    track: Track
    name: str
    category: str
    unix_ns: int
    details: Details = None


class Level(NamedTuple):
    """Counters of a process from a time on."""

    process: int
    process_name: str
    name: str
    unix_ns: int
    values: Mapping[str, float]


class Arrow(NamedTuple):
    """An arrow from a cause to its result; both ends lie in drawn slices."""

    name: str
    category: str
    source: ArrowEnd
    source_unix_ns: int
    target: ArrowEnd
    target_unix_ns: int


class Drawing(Protocol):
    """Receives the items of a timeline."""

    def ended(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that ended before; None: it does not fit."""

    def began(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that began before; None: it does not fit."""

    def instant(self, drawn: Instant) -> None:
        """Draw an instant."""

    def level(self, drawn: Level) -> None:
        """Draw counters."""

    def arrow(self, drawn: Arrow) -> None:
        """Draw an arrow."""
