"""The source of a report, of any file type."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from otel_gpu.errors import OtelGpuError
from otel_gpu.faults import Observer
from otel_gpu.report.document import Window

Observers = Sequence[Observer]


class Source(ABC):
    """
    Plays activities to observers; a report shows its ``name``.

    After ``play``, ``notes`` are for the reader of the report, ``error`` is the problem at which
    reading stopped, ``rejected`` counts undecodable records by reason, and ``exit_code`` is that of
    a captured command.
    """

    kind = "recording"
    """Its type: ``store``, ``recording``, or the type of import."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self.error: OtelGpuError | None = None
        self.rejected: Counter[str] = Counter()
        self.exit_code = 0

    @property
    def has_traces(self) -> bool:
        """Whether it has device traces instead of captured calls."""
        return False

    def extent(self) -> tuple[int, int]:
        """Return its begin and end in Unix nanoseconds."""
        return 0, 0

    def about(self, window: Window) -> Window:
        """Return the window that a report of ``window`` covers."""
        return window

    @abstractmethod
    def play(self, window: Window, observers: Observers) -> None:
        """Play the activities of a window to observers, in order; call it once."""

    def close(self) -> None:  # noqa: B027 -- a source may hold nothing
        """Close the file."""
