"""The time that a stream's captures cover."""

from collections.abc import Iterator

from otel_gpu.enrich.activities import END_OF, Activity, CaptureActivity
from otel_gpu.state.window import Window

_SHORTEST_GAP_NS = 1_000_000


class CaptureExtent:
    """
    Records the begin and the last activity of each capture.

    A stream can have several captures, as a store has, in the order in which they were written.
    They can overlap, and an older one can come later.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        unix_ns = END_OF[type(activity)](activity)
        if isinstance(activity, CaptureActivity) or not self._starts:
            self._starts.append(unix_ns)
            self._ends.append(unix_ns)
        elif unix_ns > self._ends[-1]:
            self._ends[-1] = unix_ns

    def __len__(self) -> int:
        """Return the number of captures so far."""
        return len(self._starts)

    def capture(self, number: int) -> tuple[int, int]:
        """Return begin and end of a capture so far, in Unix nanoseconds."""
        return self._starts[number], self._ends[number]

    @property
    def start_unix_ns(self) -> int:
        """The begin of the earliest capture; 0 before the first activity."""
        return min(self._starts, default=0)

    @property
    def end_unix_ns(self) -> int:
        """The end of the latest capture; 0 before the first activity."""
        return max(self._ends, default=0)

    def covered(self, window: Window) -> list[tuple[int, int, list[int]]]:
        """
        Return the parts of a window that captures cover, in order of time.

        Each has its begin, its end, and the indices of its captures, which overlap.
        """
        found: list[tuple[int, int, list[int]]] = []
        first, last = window.start_unix_ns or 0, window.end_unix_ns
        for number in sorted(range(len(self)), key=self._starts.__getitem__):
            start = max(self._starts[number], first)
            end = self._ends[number] if last is None else min(self._ends[number], last)
            if end < start:
                continue
            if found and start <= found[-1][1]:
                before = found.pop()
                found.append((before[0], max(before[1], end), [*before[2], number]))
            else:
                found.append((start, end, [number]))
        return found

    def uncovered(self, window: Window) -> Iterator[Window]:
        """Yield the parts of a window, 1 ms or longer, without a capture."""
        at = window.start_unix_ns or 0
        last = max(at, window.end_unix_ns or 0)
        for start, end, _ in [*self.covered(window), (last, last, [])]:
            if start - at >= _SHORTEST_GAP_NS:
                yield Window(at, start)
            at = max(at, end)
