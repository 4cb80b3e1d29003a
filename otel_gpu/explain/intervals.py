"""Intervals: time of a thread with one cause, and conclusions from some about others."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Culprit, DeviceTrouble, Evidence
from otel_gpu.explain.kinds import CauseKind, EvidenceKind
from otel_gpu.state.code_lines import NO_LINES, CodeLines

# The least share of the kept time of a state for its cause to be that of the rest, too.
_CLEAR_SHARE = 0.75


class CauseInterval(NamedTuple):
    """
    Time with one cause, and the window in which to follow the culprit, which can be longer.

    ``is_repeated``: a wait that can be one of many with a time limit. ``others`` are causes of it
    just as much as ``culprit``.
    """

    kind: CauseKind
    time_ns: int
    culprit: Culprit | None
    evidence: Evidence
    start_ktime_ns: int = 0
    end_ktime_ns: int = 0
    is_followed: bool = False
    is_repeated: bool = False
    resource: Resource | None = None
    lines: CodeLines = NO_LINES
    trouble: DeviceTrouble | None = None
    others: tuple[Culprit, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether it is known when it was, and not only for how long."""
        return 0 < self.time_ns == self.end_ktime_ns - self.start_ktime_ns


def is_run_queue(interval: CauseInterval) -> bool:
    """Return whether the thread was ready to run."""
    return interval.evidence.kind == EvidenceKind.RUN_QUEUE


def key_of(interval: CauseInterval) -> tuple[CauseKind, int, int]:
    """Return what intervals of one cause have in common."""
    # Threads of one process that have the CPU in turn are one hog; a lock has one holder.
    culprit = interval.culprit
    if culprit is None:
        return interval.kind, 0, 0
    if interval.kind in (CauseKind.PREEMPTION, CauseKind.RUN_QUEUE):
        return interval.kind, culprit.pid, 0
    return interval.kind, culprit.pid, culprit.tid


def clear_cause(intervals: list[CauseInterval]) -> tuple[CauseKind, Culprit | None] | None:
    """Return the cause of most of the kept time, if one clearly leads."""
    kept_ns = sum(interval.time_ns for interval in intervals)
    times: dict[tuple[CauseKind, int, int], int] = {}
    culprits: Mapping[tuple[CauseKind, int, int], Culprit | None] = {
        key_of(interval): interval.culprit for interval in intervals
    }
    for interval in intervals:
        key = key_of(interval)
        times[key] = times.get(key, 0) + interval.time_ns
    for key, time_ns in times.items():
        if time_ns >= _CLEAR_SHARE * kept_ns:
            return key[0], culprits[key]
    return None


def complete_culprits(intervals: list[CauseInterval]) -> Iterable[CauseInterval]:
    """Name the waited-for thread in waits that a timer ended, if it can only be one."""
    for kind in rules.REPEATED_KINDS:
        repeated = [
            interval for interval in intervals if interval.kind == kind and interval.is_repeated
        ]
        known = {interval.culprit for interval in repeated if interval.culprit}
        if len(known) == 1:
            (culprit,) = known
            intervals = [
                interval._replace(
                    culprit=culprit, is_followed=interval.end_ktime_ns > 0, lines=NO_LINES
                )
                if interval.kind == kind and interval.is_repeated and interval.culprit is None
                else interval
                for interval in intervals
            ]
    return intervals
