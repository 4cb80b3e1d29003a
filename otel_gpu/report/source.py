"""What a report is made from, whichever kind of file it is."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from otel_gpu.errors import OtelGpuError
from otel_gpu.faults import Observer
from otel_gpu.report.document import Window

Observers = Sequence[Observer]


class Source(ABC):
    """
    Holds activities; a report names it by ``name``.

    Once it was played, ``notes`` are what a reader of the report is to know, ``error`` is what was
    wrong after what came before it, ``rejected`` counts what was not understood by reason, and
    ``exit_code`` is that of a command that was captured.
    """

    kind = "recording"
    """What it is: ``store``, ``recording``, or what it is imported as."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self.error: OtelGpuError | None = None
        self.rejected: Counter[str] = Counter()
        self.exit_code = 0

    @property
    def has_traces(self) -> bool:
        """Whether it holds what devices did, and no calls of a capture."""
        return False

    def extent(self) -> tuple[int, int]:
        """When it begins and ends, in Unix nanoseconds."""
        return 0, 0

    def about(self, window: Window) -> Window:
        """What a report of a window is to be about."""
        return window

    @abstractmethod
    def play(self, window: Window, observers: Observers) -> None:
        """Hand what a window needs to the observers, in order; once."""

    def close(self) -> None:  # noqa: B027 -- there may be nothing to let go of
        """Let go of the file."""
