"""Events of threads in a window, to the microsecond."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
)
from otel_gpu.enrich.cuda_errors import error_name
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain import evidence
from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.explain.wakers import is_ended_by_threads
from otel_gpu.report.document import EvidenceKind, Window


class WindowEvent(NamedTuple):
    """One event of a thread; ``what`` is an API or a reason."""

    process: Program
    tid: int
    comm: str
    what: str
    interval: Evidence
    size_bytes: int = 0
    error: str = ""

    @property
    def length_ns(self) -> int:
        """Its length; a clock can have been set back."""
        return max(0, self.interval.end_unix_ns - self.interval.start_unix_ns)


class WindowDetail:
    """
    Keeps the longest events of a window.

    Args:
        window: The window.
        pids: Of these processes; empty: all.
        tid: Of this thread; None: all.
        least_ns: Shorter ones are only counted.
        limit: The number that is kept.

    Attributes:
        counts: Counts of events, by kind.
    """

    def __init__(
        self,
        window: Window,
        *,
        pids: Sequence[int] = (),
        tid: int | None = None,
        least_ns: int = 0,
        limit: int = 100,
    ) -> None:
        self._window = window
        self._pids = frozenset(pids)
        self._tid = tid
        self._least_ns = least_ns
        self._limit = limit
        self._longest: list[tuple[int, int, str, int, WindowEvent]] = []
        self._number = 0
        self.counts: Counter[str] = Counter()

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        for moment in self._events_of(activity):
            if self._chooses(moment):
                self._keep(moment)

    def in_order(self) -> list[WindowEvent]:
        """Return the kept events, in order of time."""
        return [
            entry[-1]
            for entry in sorted(self._longest, key=lambda entry: (-entry[1], -entry[0], entry[2]))
        ]

    def left_out(self) -> int:
        """Return how many events of the window were not kept: the shortest."""
        return self.counts.total() - len(self._longest)

    def _chooses(self, moment: WindowEvent) -> bool:
        interval = moment.interval
        return (
            (not self._pids or moment.process.pid in self._pids)
            and self._tid in (None, moment.tid)
            and self._window.overlaps(interval.start_unix_ns, interval.end_unix_ns)
        )

    def _keep(self, moment: WindowEvent) -> None:
        interval = moment.interval
        self.counts[interval.kind] += 1
        if moment.length_ns < self._least_ns:
            return
        # Of equals the earlier one is kept.
        entry = (moment.length_ns, -interval.start_unix_ns, interval.id, self._number, moment)
        self._number += 1
        if len(self._longest) < self._limit:
            heapq.heappush(self._longest, entry)
        else:
            heapq.heappushpop(self._longest, entry)

    def _events_of(self, activity: Activity) -> Iterator[WindowEvent]:
        match activity:
            case CallActivity(process, event):
                whole = evidence.of_whole(activity, activity.end_unix_ns)
                yield WindowEvent(
                    process=process,
                    tid=event.tid,
                    comm=event.comm,
                    what=activity.api.name,
                    interval=whole,
                    size_bytes=event.size_bytes,
                    error=error_name(activity.api.layer, event.status) if event.status else "",
                )
            case GapActivity(process, event):
                whole = evidence.of_whole(activity, activity.end_unix_ns)
                what = f"{activity.previous_api.name} to {activity.next_api.name}"
                yield WindowEvent(
                    process=process, tid=event.tid, comm=event.comm, what=what, interval=whole
                )
            case OpenCallActivity(process, event):
                whole = evidence.of_whole(activity, activity.seen_unix_ns)
                whole = whole._replace(id=f"open_{whole.id}", kind=EvidenceKind.OPEN_CALL)
                yield WindowEvent(
                    process=process,
                    tid=event.tid,
                    comm=event.comm,
                    what=activity.api.name,
                    interval=whole,
                )
            case StallActivity():
                yield from self._stalls_of(activity)
            case ForkActivity(process, event, child):
                fork = evidence.of_fork(activity)
                yield WindowEvent(
                    process=process,
                    tid=event.tid,
                    comm=event.comm,
                    what=f"child {child.pid}",
                    interval=fork,
                )
            case ExitActivity(process, end_unix_ns, code):
                name = f"exit-{process.pid}-{process.program_ktime_ns}"
                end = Evidence(
                    id=name,
                    kind=EvidenceKind.EXIT,
                    start_unix_ns=end_unix_ns,
                    end_unix_ns=end_unix_ns,
                    culprit=None,
                    waker=None,
                    reason="",
                    functions=(),
                    span_id=b"",
                )
                what = "exit" if code is None else f"exit code {code}"
                yield WindowEvent(
                    process=process, tid=process.pid, comm=process.comm, what=what, interval=end
                )
            case _:
                pass

    def _stalls_of(self, stall: StallActivity) -> Iterator[WindowEvent]:
        process, event = stall.process, stall.event
        for part in (evidence.of_blocked(stall, _waker(stall)), evidence.of_run_queue(stall)):
            if part.end_unix_ns > part.start_unix_ns:
                yield WindowEvent(
                    process=process, tid=event.tid, comm=event.comm, what=part.reason, interval=part
                )


def _waker(stall: StallActivity) -> Culprit | None:
    # The thread that ended a wait; None for interrupts that ran in another thread's context.
    event = stall.event
    if not event.waker_tid or event.waker_tid == event.tid:
        return None
    if event.waker_pid != event.pid and not is_ended_by_threads(stall.reason, stall.functions):
        return None
    return Culprit(event.waker_pid, event.waker_tid, event.waker_comm)
