"""How far a stream of activities reaches in time."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from otel_gpu.enrich.activities import Activity, CaptureActivity

_NAMES = {"unix_ns", "end_unix_ns", "seen_unix_ns"}
_ENDS: dict[type, Callable[[Any], int]] = {}


class Extent:
    """Watches activities; ``start_unix_ns`` and ``end_unix_ns`` are 0 before the first."""

    def __init__(self) -> None:
        self.start_unix_ns = 0
        self.end_unix_ns = 0

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        unix_ns = _end_of(activity)
        if not self.start_unix_ns or isinstance(activity, CaptureActivity):
            self.start_unix_ns = unix_ns
        self.end_unix_ns = max(self.end_unix_ns, unix_ns)


def _end_of(activity: Activity) -> int:
    end = _ENDS.get(type(activity))
    if end is None:
        # Every activity has one of these.
        (name,) = _NAMES & set(activity._fields)
        end = _ENDS[type(activity)] = attrgetter(name)
    return int(end(activity))
