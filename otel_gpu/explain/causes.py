"""
Finds the causes of an effect from the intervals inside it, and ranks them.

The parts are measured and none is counted twice: each moment of an effect goes to one cause, and
what is left is unexplained.
"""

# Some facts about what is known
# ------------------------------
#
# For each call and gap the kernel side keeps exact totals (on CPU, run queue, blocked) and the few
# longest intervals with their culprits. So the state of the rest is known, and its culprit is not.
# A hog takes the CPU slice by slice, and a Python thread waits for the GIL five milliseconds at a
# time: there the rest is long. It goes to the cause with most of the kept time, if one clearly
# leads, as the kept intervals are a sample of the others. Otherwise a run-queue wait has no
# culprit, and blocked time stays unexplained.
#
# The thread that ended a wait is worth following if it is another watched thread: what it did
# during the wait is what was waited for. Its own stalls in that window are the causes of the cause.
# Yet another thread can have ended each of those.
#
# How long a thread worked is measured. Samples show on what: those in that time, outside CUDA
# calls. For the process that had a CPU that was waited for, all of its samples count.

from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity, StallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity, Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain import evidence, rules
from otel_gpu.explain.accounting.recent_times import RecentTimes
from otel_gpu.explain.accounting.unseen_time import Unseen
from otel_gpu.explain.accounting.waited_for import account_intervals
from otel_gpu.explain.accounting.waits import AccountWaits
from otel_gpu.explain.chains import Cause, Culprit, Evidence
from otel_gpu.explain.devices.device_causes import DeviceCauses
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.intervals import (
    CauseInterval,
    clear_cause,
    complete_culprits,
    is_run_queue,
    key_of,
)
from otel_gpu.explain.kinds import CauseKind, EvidenceKind
from otel_gpu.explain.nccl.collectives import Collectives
from otel_gpu.explain.nccl.rank_waits import FOR_THE_DEVICE, WHILE_IT_HANGS, cut_delays, kinds_at
from otel_gpu.explain.off_cpu_split import OffCpuSplit, ThreadWindow
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.ranking import clear_resource, rank, share_of
from otel_gpu.explain.settings import Settings
from otel_gpu.state.code_lines import NO_LINES, merge
from otel_gpu.state.cpu_samples import Samples
from otel_gpu.state.device_states import DeviceStates
from otel_gpu.state.thread_names import ThreadNames
from otel_gpu.wire.probe_table import API_BY_NUMBER

# For collectives that many ranks did not call.
_MAX_FOLLOWED = 64


class Subject(NamedTuple):
    """
    A call or a gap to explain, with its totals.

    ``span`` is the evidence for the whole of it.
    ``usual_ns`` is the median of its series, 0 if not known. ``device`` is its device, as
    ``process`` numbers it. ``is_open``: it has not ended. ``is_polling``: it is a gap between two
    queries whether the device is done.
    """

    pid: int
    tid: int
    start_ktime_ns: int
    end_ktime_ns: int
    blocked_ns: int
    run_queue_ns: int
    place: rules.Place
    usual_ns: int
    span: Evidence
    program_ktime_ns: int = 0
    is_open: bool = False
    is_polling: bool = False
    process: Program | None = None
    device: DeviceIdentity | None = None


class _Waiter(NamedTuple):
    # The pid of the process that waited, and where; None: anywhere.

    pid: int
    place: rules.Place | None = None


class Causes:
    """
    Finds causes, with what the timeline keeps of other threads.

    Attributes:
        knows_states: Whether time without a stall was on a CPU, by what the capture recorded.
        names: Names of unwatched threads.
    """

    def __init__(
        self,
        timeline: EventTimeline,
        quotas: Quotas,
        settings: Settings,
        samples: Samples | None = None,
        devices: DeviceCauses | None = None,
        collectives: Collectives | None = None,
        recent: RecentTimes | None = None,
    ) -> None:
        self.names = ThreadNames()
        self._devices = devices or DeviceCauses(DeviceStates())
        self._timeline = timeline
        self._samples = Samples() if samples is None else samples
        self._recent = recent or RecentTimes()
        self._unseen = Unseen(AccountWaits(self._recent), timeline, self._samples)
        self._collectives = collectives or Collectives(timeline, settings)
        self._off_cpu = OffCpuSplit(timeline, quotas, self._samples)
        self._settings = settings
        self.knows_states = True

    def find(
        self, subject: Subject, stalls: Iterable[StallActivity]
    ) -> tuple[tuple[Cause, ...], int]:
        """
        Return the causes of an effect, ranked, and the unexplained time in nanoseconds.

        Args:
            subject: The call or gap.
            stalls: Those of its own thread.
        """
        duration_ns = max(0, subject.end_ktime_ns - subject.start_ktime_ns)
        window = ThreadWindow(
            pid=subject.pid,
            tid=subject.tid,
            start_ktime_ns=subject.start_ktime_ns,
            end_ktime_ns=subject.end_ktime_ns,
            place=subject.place,
        )
        off_cpu = self._off_cpu.cut(window, stalls)
        delays = self._collectives.delays(
            (subject.pid, subject.program_ktime_ns), *window[2:4], is_open=subject.is_open
        )
        kinds = kinds_at(subject.place, is_polling=subject.is_polling)
        rest = self._find_rest(subject, off_cpu, duration_ns)
        intervals = self._devices.split(subject, cut_delays([*off_cpu, *rest], delays, kinds))
        causes = self._group(
            intervals=intervals,
            duration_ns=duration_ns,
            waiter=_Waiter(subject.pid, subject.place),
            depth=0,
            path=frozenset({subject.tid}),
        )
        unexplained_ns = duration_ns - sum(cause.time_ns for cause in causes)
        return rank(causes, subject.usual_ns), unexplained_ns

    def _find_rest(
        self, subject: Subject, off_cpu: list[CauseInterval], duration_ns: int
    ) -> Iterable[CauseInterval]:
        # What the kept intervals do not cover: the totals know its state.
        kept_run_queue = [interval for interval in off_cpu if is_run_queue(interval)]
        kept_blocked = [interval for interval in off_cpu if not is_run_queue(interval)]
        kept_run_queue_ns = sum(interval.time_ns for interval in kept_run_queue)
        kept_blocked_ns = sum(interval.time_ns for interval in kept_blocked)
        left_ns = duration_ns - kept_run_queue_ns - kept_blocked_ns
        run_queue_ns = min(left_ns, max(0, subject.run_queue_ns - kept_run_queue_ns))
        left_ns -= run_queue_ns
        blocked_ns = min(left_ns, max(0, subject.blocked_ns - kept_blocked_ns))
        left_ns -= blocked_ns
        if run_queue_ns:
            kind, culprit = clear_cause(kept_run_queue) or (CauseKind.RUN_QUEUE, None)
            yield CauseInterval(
                kind=kind, time_ns=run_queue_ns, culprit=culprit, evidence=subject.span
            )
        known = clear_cause(kept_blocked)
        if blocked_ns and known is None:
            where = subject.pid, subject.place, subject.span
            for interval in self._unseen.waits(*where, kept_blocked, blocked_ns):
                blocked_ns -= interval.time_ns
                yield interval
        if blocked_ns:
            kind, culprit = known or (rules.blocked_kind(WaitReason.NONE, subject.place), None)
            alike = [interval for interval in kept_blocked if interval.kind == kind]
            yield CauseInterval(
                kind=kind,
                time_ns=blocked_ns,
                culprit=culprit,
                evidence=subject.span,
                is_repeated=all(interval.is_repeated for interval in alike),
                resource=clear_resource(
                    (interval.resource, interval.time_ns) for interval in alike
                ),
            )
        if left_ns:
            yield from self._cut_on_cpu(subject, left_ns)

    def _cut_on_cpu(self, subject: Subject, on_cpu_ns: int) -> Iterable[CauseInterval]:
        place = subject.place
        if not self.knows_states and place in rules.KNOWN_BY_CPU_TIME:
            # A launch that used a CPU found its queue full. Here that is not known.
            yield CauseInterval(
                kind=CauseKind.UNEXPLAINED, time_ns=on_cpu_ns, culprit=None, evidence=subject.span
            )
            return
        if place == rules.Place.LAUNCH and on_cpu_ns > max(
            self._settings.slow_factor * subject.usual_ns, self._settings.slow_floor_ns
        ):
            place = rules.Place.FULL_QUEUE
        if place == rules.Place.GAP:
            start, end = subject.start_ktime_ns, subject.end_ktime_ns
            for fork in self._timeline.forks(subject.pid, start, end):
                event = fork.event
                forked_ns = min(end, event.end_ktime_ns) - max(start, event.start_ktime_ns)
                forked_ns = min(on_cpu_ns, forked_ns)
                if event.tid == subject.tid and forked_ns > 0:
                    culprit = Culprit(event.pid, event.tid, event.comm)
                    yield CauseInterval(
                        kind=CauseKind.FORK,
                        time_ns=forked_ns,
                        culprit=culprit,
                        evidence=evidence.of_fork(fork),
                    )
                    on_cpu_ns -= forked_ns
        kind = rules.on_cpu_kind(place)
        lines = NO_LINES
        if kind == CauseKind.HOST_WORK:
            thread = (subject.pid, subject.tid)
            lines = self._samples.of(*thread, subject.start_ktime_ns, subject.end_ktime_ns)
        yield CauseInterval(
            kind=kind, time_ns=on_cpu_ns, culprit=None, evidence=subject.span, lines=lines
        )

    def _group(
        self,
        intervals: list[CauseInterval],
        duration_ns: int,
        waiter: _Waiter,
        depth: int,
        path: frozenset[int],
    ) -> list[Cause]:
        # One cause of all intervals of a process with the same kind and culprit.
        groups: dict[tuple[CauseKind, int, int], list[CauseInterval]] = {}
        for interval in complete_culprits(intervals):
            if interval.time_ns > 0:
                groups.setdefault(key_of(interval), []).append(interval)
        causes = []
        for (kind, _, _), group in groups.items():
            via = self._find_via(
                group=group, duration_ns=duration_ns, waiter=waiter, depth=depth, path=path
            )
            if kind == CauseKind.UNEXPLAINED and not via and not depth:
                # Only the whole effect reports what is unexplained.
                continue
            time_ns = sum(interval.time_ns for interval in group)
            longest = max(group, key=lambda interval: interval.time_ns)
            causes.append(
                Cause(
                    kind=kind,
                    time_ns=time_ns,
                    share=share_of(time_ns, duration_ns),
                    culprit=longest.culprit,
                    evidence=evidence.keep_longest(
                        (interval.evidence for interval in group), self._settings.max_evidence
                    ),
                    via=via,
                    resource=clear_resource(
                        (interval.resource, interval.time_ns) for interval in group
                    ),
                    lines=merge(interval.lines for interval in group),
                    trouble=longest.trouble,
                    others=longest.others,
                )
            )
        return causes

    def _find_via(
        self,
        group: list[CauseInterval],
        duration_ns: int,
        waiter: _Waiter,
        depth: int,
        path: frozenset[int],
    ) -> tuple[Cause, ...]:
        # Follows the threads that ended these waits through the time of each.
        if depth >= self._settings.max_depth:
            return ()
        intervals: list[CauseInterval] = []
        tids = set(path)
        for interval in group:
            culprits = [
                one for one in (interval.culprit, *interval.others) if one and one.tid not in path
            ]
            if not interval.is_followed or not culprits:
                continue
            window = interval.start_ktime_ns, interval.end_ktime_ns
            # Each of several culprits is the cause of the whole time; what they did are parts of
            # it.
            part = interval.time_ns / (window[1] - window[0]) / len(culprits)
            for other in culprits[:_MAX_FOLLOWED]:
                tids.add(other.tid)
                seen = self._see_device(other, *window)
                intervals += (one._replace(time_ns=round(one.time_ns * part)) for one in seen)
        first = group[0].culprit
        if first is not None and first.tid not in path:
            if group[0].kind in rules.REPEATED_KINDS:
                tids.add(first.tid)
                intervals = self._unseen.during_waits(*waiter, first, group, intervals)
            waiter = _Waiter(first.pid)
        return rank(
            self._group(
                intervals=intervals,
                duration_ns=duration_ns,
                waiter=waiter,
                depth=depth + 1,
                path=frozenset(tids),
            ),
            0,
        )

    def _see_device(self, other: Culprit, start: int, end: int) -> Iterable[CauseInterval]:
        # What a thread did in a window, and what its device caused.
        window = ((other.pid, other.tid), start, end)
        start_unix_ns = start + self._timeline.unix_offset_ns
        span = evidence.of_unseen(
            other=other,
            start_ktime_ns=start,
            start_unix_ns=start_unix_ns,
            time_ns=end - start,
            kind=EvidenceKind.DEVICE,
        )
        did: list[CallActivity | StallActivity] = [*self._timeline.calls(*window)]
        did += self._timeline.stalls(*window)
        return self._devices.split_of(
            other=other, span=span, did=did, intervals=list(self._see_rank(other, start, end))
        )

    def _see_rank(self, other: Culprit, start: int, end: int) -> Iterable[CauseInterval]:
        # What a thread did in a window in which its rank can have waited for another one.
        intervals = list(self._see(other, start, end))
        program = self._collectives.communicators.program_of(other.pid)
        if program is None:
            return intervals
        hangs = self._collectives.hangs_at(program, end + self._timeline.unix_offset_ns)
        delays = self._collectives.delays(program, start, end, is_open=True)
        return cut_delays(intervals, delays, WHILE_IT_HANGS if hangs else FOR_THE_DEVICE)

    def _see(self, other: Culprit, start: int, end: int) -> Iterable[CauseInterval]:
        seen = list(self._seen(other, start, end))
        yield from seen
        left_ns = end - start - sum(interval.time_ns for interval in seen)
        if left_ns <= 0:
            return
        # Samples of work that is known already belong to that.
        is_known = any(interval.kind == CauseKind.HOST_WORK for interval in seen)
        lines = (
            NO_LINES
            if is_known
            else self._samples.of(other.pid, other.tid, start_ktime_ns=start, end_ktime_ns=end)
        )
        start_unix_ns = start + self._timeline.unix_offset_ns
        times = self._times_of(other, start_unix_ns, end - start)
        for interval in account_intervals(
            other=other, window=(start, end, start_unix_ns), times=times, seen=seen, left_ns=left_ns
        ):
            left_ns -= interval.time_ns
            if interval.culprit is not None:
                interval = interval._replace(culprit=self.names.named(interval.culprit))  # noqa: PLW2901
            yield (
                interval._replace(lines=lines) if interval.kind == CauseKind.HOST_WORK else interval
            )
            lines = NO_LINES if interval.kind == CauseKind.HOST_WORK else lines
        if left_ns > 0:
            # Off the CPU for too short a time to be sent; or on it, without time accounting.
            span = evidence.of_unseen(
                other=other, start_ktime_ns=start, start_unix_ns=start_unix_ns, time_ns=end - start
            )
            yield CauseInterval(
                kind=CauseKind.UNEXPLAINED,
                time_ns=left_ns,
                culprit=None,
                evidence=span,
                lines=lines,
            )

    def _times_of(self, other: Culprit, start_unix_ns: int, window_ns: int) -> list[ThreadTime]:
        # Times of a thread, or of all launching threads of its rank, in a window.
        is_rank = self._collectives.communicators.program_of(other.pid) is not None
        is_launching = is_rank or self._timeline.makes_calls((other.pid, other.tid))
        window = start_unix_ns, start_unix_ns + window_ns
        found = self._recent.of(other.pid, *window, is_launching=is_launching, is_whole=is_rank)
        # A thread that only asks whether something is done is not the one that would have called.
        others = [time for time in found if not _asks(time)]
        is_enough = 2 * sum(time.time_ns for time in others) >= window_ns
        return others if is_rank and is_enough else found

    def _seen(self, other: Culprit, start: int, end: int) -> Iterable[CauseInterval]:
        # What was observed of a thread in a window, interval by interval, or is counted of this
        # thread.
        thread = (other.pid, other.tid)
        stalls = self._timeline.stalls(thread, start, end)
        calls = self._timeline.calls(thread, start, end)
        intervals = self._off_cpu.cut(ThreadWindow(*thread, start, end, rules.Place.GAP), stalls)
        for interval in intervals:
            # A thread that nothing kept waiting kept the other one waiting itself.
            if (
                interval.culprit is None
                and not is_run_queue(interval)
                and interval.kind != CauseKind.UNEXPLAINED
            ):
                interval = interval._replace(culprit=other)  # noqa: PLW2901
            yield interval
        left_ns = end - start - sum(interval.time_ns for interval in intervals)
        for call in calls:
            event = call.event
            called_ns = min(end, event.end_ktime_ns) - max(start, event.start_ktime_ns)
            off_cpu_ns = sum(
                min(end, event.end_ktime_ns, stall.event.end_ktime_ns)
                - max(start, event.start_ktime_ns, stall.event.start_ktime_ns)
                for stall in stalls
                if stall.event.start_ktime_ns < event.end_ktime_ns
                and stall.event.end_ktime_ns > event.start_ktime_ns
            )
            time_ns = min(left_ns, called_ns - off_cpu_ns)
            if time_ns > 0:
                left_ns -= time_ns
                kind = rules.on_cpu_kind(rules.place_of(call.api.family))
                span = evidence.of_whole(call, call.end_unix_ns)
                culprit = None if kind == CauseKind.UNEXPLAINED else other
                yield CauseInterval(
                    kind=kind,
                    time_ns=time_ns,
                    culprit=culprit,
                    evidence=span._replace(culprit=other),
                )
        start_unix_ns = start + self._timeline.unix_offset_ns
        unseen_ns = self._timeline.unseen_run_queue_ns(thread, start_unix_ns, end - start)
        if unseen_ns and left_ns > 0:
            queued_ns = min(left_ns, unseen_ns)
            left_ns -= queued_ns
            span = evidence.of_unseen(
                other=other,
                start_ktime_ns=start,
                start_unix_ns=start_unix_ns,
                time_ns=end - start,
                kind=EvidenceKind.ACCOUNT,
            )
            yield CauseInterval(
                kind=CauseKind.RUN_QUEUE, time_ns=queued_ns, culprit=None, evidence=span
            )


def _asks(time: ThreadTime) -> bool:
    api = API_BY_NUMBER.get(time.wait.api)
    return api is not None and api.family == wire.FAMILY_QUERY
