"""Splits the time of a thread off its CPU into intervals with one cause each."""

from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import StallActivity
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.explain import evidence, rules
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.wakers import Wakers, is_for_network
from otel_gpu.state.code_lines import NO_LINES
from otel_gpu.state.cpu_samples import EVERYWHERE, Samples
from otel_gpu.wire.events import Stall
from otel_gpu.wire.probe_table import API_BY_NUMBER


class ThreadWindow(NamedTuple):
    """A thread and a window of it; ``place`` is one of ``rules``' places."""

    pid: int
    tid: int
    start_ktime_ns: int
    end_ktime_ns: int
    place: rules.Place


class OffCpuSplit:
    """Splits stalls, with what the timeline keeps of other threads."""

    def __init__(self, timeline: EventTimeline, quotas: Quotas, samples: Samples) -> None:
        self._timeline = timeline
        self._quotas = quotas
        self._samples = samples
        self._wakers = Wakers(timeline)

    def cut(self, window: ThreadWindow, stalls: Iterable[StallActivity]) -> list[CauseInterval]:
        """Split the stalls in a window into intervals that do not overlap."""
        intervals: list[CauseInterval] = []
        cursor = window.start_ktime_ns
        for stall in stalls:
            event = stall.event
            start = max(event.start_ktime_ns, cursor)
            end = min(event.end_ktime_ns, window.end_ktime_ns)
            if end <= start:
                continue
            runnable = min(max(event.runnable_ktime_ns, start), end)
            if runnable > start:
                intervals += self._cut_blocked(
                    stall=stall, start=start, end=runnable, place=_place_of(event, window.place)
                )
            if end > runnable:
                intervals.append(self._cut_run_queue(stall, runnable, end))
            cursor = end
        return intervals

    def _cut_blocked(
        self, stall: StallActivity, start: int, end: int, place: rules.Place
    ) -> Iterable[CauseInterval]:
        event, reason = stall.event, stall.reason
        kind = rules.blocked_kind(reason, place)
        # Older stores have only the flag.
        if kind == CauseKind.STOPPED and event.flags & wire.STALL_AGENT:
            kind = CauseKind.CAPTURE
        waker = self._wakers.find(stall)
        blocked = evidence.of_blocked(stall, waker)
        if kind in (CauseKind.MMAP_LOCK, CauseKind.PAGE_FAULT):
            fork = self._fork_during(event, start, end)
            if fork is not None:
                yield fork
                forked_ns = fork.time_ns
                if end - start > forked_ns:
                    yield CauseInterval(
                        kind=kind, time_ns=end - start - forked_ns, culprit=None, evidence=blocked
                    )
                return
        # The device decides when a wait for it is over, whichever thread passes that on.
        is_followed = (
            waker is not None
            and (waker.pid == event.pid or self._timeline.is_watched(waker.pid))
            and reason in rules.FOLLOWED_REASONS
            and kind in (*rules.REPEATED_KINDS, CauseKind.UNEXPLAINED)
        )
        # The process that resumed a stopped thread is the one that stopped it.
        culprit = waker if is_followed or kind == CauseKind.STOPPED else None
        is_repeated = kind in rules.REPEATED_KINDS and not is_for_network(stall.functions)
        lines = NO_LINES
        if kind == CauseKind.GIL and culprit is None:
            # Its holder is not known: one of the threads that worked then.
            lines = self._samples.of_others(
                pid=event.pid, tid=event.tid, start_ktime_ns=start, end_ktime_ns=end
            )
        yield CauseInterval(
            kind=kind,
            time_ns=end - start,
            culprit=culprit,
            evidence=blocked,
            start_ktime_ns=start,
            end_ktime_ns=end,
            is_followed=is_followed,
            is_repeated=is_repeated,
            resource=stall.resource,
            lines=lines,
        )

    def _cut_run_queue(self, stall: StallActivity, start: int, end: int) -> CauseInterval:
        event = stall.event
        culprit = evidence.culprit_of(stall)
        is_preempted = event.switch_type == wire.SWITCH_INVOLUNTARY
        kind = CauseKind.PREEMPTION if is_preempted and culprit is not None else CauseKind.RUN_QUEUE
        if self._quotas.is_throttled(stall):
            kind, culprit = CauseKind.CPU_QUOTA, None
        interval = CauseInterval(
            kind=kind,
            time_ns=end - start,
            culprit=culprit,
            evidence=evidence.of_run_queue(stall),
            start_ktime_ns=start,
            end_ktime_ns=end,
        )
        if culprit is None or not self._timeline.is_watched(culprit.pid):
            return interval
        # Threads of one process that have the CPU in turn are one hog.
        return interval._replace(
            lines=self._samples.of(
                culprit.pid, tid=None, start_ktime_ns=start, end_ktime_ns=end, contexts=EVERYWHERE
            )
        )

    def _fork_during(self, event: Stall, start: int, end: int) -> CauseInterval | None:
        for fork in self._timeline.forks(event.pid, start, end):
            other = fork.event
            if other.tid == event.tid:
                continue
            forked_ns = end - start
            if other.end_ktime_ns > other.start_ktime_ns:
                forked_ns = min(end, other.end_ktime_ns) - max(start, other.start_ktime_ns)
            if forked_ns > 0:
                culprit = Culprit(other.pid, other.tid, other.comm)
                return CauseInterval(
                    kind=CauseKind.FORK,
                    time_ns=forked_ns,
                    culprit=culprit,
                    evidence=evidence.of_fork(fork),
                )
        return None


def _place_of(event: Stall, around: rules.Place) -> rules.Place:
    # The innermost call decides where a stall was, if it waits for the device.
    if around in (
        rules.Place.FIRST_CALL,
        rules.Place.CHURN,
        rules.Place.LAUNCH,
        rules.Place.FULL_QUEUE,
    ):
        return around
    api = API_BY_NUMBER.get(event.call_api) if event.call_start_ktime_ns else None
    if api is not None and (around == rules.Place.GAP or api.family == wire.FAMILY_SYNCHRONIZE):
        return rules.place_of(api.family)
    return around
