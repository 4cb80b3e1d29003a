"""What a report is made from, whichever kind of file it is."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from otel_gpu.errors import OtelGpuError
from otel_gpu.faults import Observer
from otel_gpu.findings.document import Window

Observers = Sequence[Observer]


class Source(Protocol):
    """
    Holds activities.

    Attributes:
        name: What a report says that it is about.
        notes: What a reader of the report is to know, once it was played.
        error: What was wrong with it, once it was played; what came before that is right.
        rejected: What could not be understood, by reason.
        exit_code: Of the command that was captured; 0 without one.
    """

    name: str
    notes: list[str]
    error: OtelGpuError | None
    rejected: Counter[str]
    exit_code: int

    def extent(self) -> tuple[int, int]:
        """When it begins and ends, in Unix nanoseconds."""

    def about(self, window: Window) -> Window:
        """What a report of a window is to be about."""

    def play(self, window: Window, observers: Observers) -> None:
        """Hand what a window needs to the observers, in order; once."""

    def close(self) -> None:
        """Let go of the file."""
