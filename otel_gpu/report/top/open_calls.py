"""Open calls: those that have not returned."""

from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu.enrich.activities import CallActivity, OpenCallActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.limits.recent import Fifo
from otel_gpu.wire.frames import Frame

MAX_OPEN = 4_096
_NS_PER_S = 1_000_000_000

_Key = tuple[int, int, int]
"""pid, tid and start_ktime_ns of a call."""


class OpenCallRow(NamedTuple):
    """
    A call that has not returned; ``age_ns`` since its start.

    ``began_before_capture``: the age is a lower bound. ``place`` is the program's own code that
    made it.
    """

    process: Program
    api: str
    tid: int
    comm: str
    age_ns: int
    began_before_capture: bool = False
    place: Frame | None = None


class OpenCalls:
    """
    Keeps open calls; bounded.

    The return of a call is seen only if it was recorded, which a rate limit can prevent. So a call
    also counts as returned when it was not reported for some time: threads are checked four times
    in the time after which a call counts as hanging, but not more often than once a second.

    Calls that began before the capture are checked every second, and their return is not seen.
    """

    def __init__(self) -> None:
        self._calls: Fifo[_Key, tuple[OpenCallActivity, int]] = Fifo(MAX_OPEN)

    def observe(self, activity: OpenCallActivity | CallActivity) -> None:
        """Store an open call, or remove one that has returned."""
        event = activity.event
        key = (event.pid, event.tid, event.start_ktime_ns)
        if isinstance(activity, CallActivity):
            self._calls.pop(key, None)
            return
        age_ns = activity.seen_unix_ns - activity.start_unix_ns
        known = self._calls.get(key)
        self._calls[key] = activity, age_ns if known is None else known[1]

    def forget(self, pid: int) -> None:
        """Remove the calls of a process that ended."""
        for key in [key for key in self._calls if key[0] == pid]:
            del self._calls[key]

    def rows(self, now_unix_ns: int) -> Iterator[OpenCallRow]:
        """Yield the calls that are open at a time, the oldest first."""
        calls = sorted(self._calls.items(), key=lambda item: (item[1][0].start_unix_ns, item[0]))
        for _, (activity, first_age_ns) in calls:
            is_early = activity.event.began_before_capture
            patience_ns = 2 * max(_NS_PER_S, 0 if is_early else first_age_ns // 4)
            if now_unix_ns - activity.seen_unix_ns <= patience_ns:
                yield OpenCallRow(
                    process=activity.process,
                    api=activity.api.name,
                    tid=activity.event.tid,
                    comm=activity.event.comm,
                    age_ns=max(0, now_unix_ns - activity.start_unix_ns),
                    began_before_capture=is_early,
                    place=activity.stack.place if activity.stack else None,
                )
