"""Time of waits that were too short, or too many, to be sent one by one; from time accounting."""

from collections import Counter
from collections.abc import Iterable, Iterator

from otel_gpu.explain import evidence, rules
from otel_gpu.explain.accounting.waits import AccountWaits, Waited
from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind, EvidenceKind
from otel_gpu.explain.ranking import fit
from otel_gpu.state.code_lines import NO_LINES
from otel_gpu.state.cpu_samples import Samples

_ANY_CULPRIT = 0
# The culprit of these is the thread that was waited for, which is unknown for waits of others.
_WAITS = frozenset({CauseKind.RUN_QUEUE, *rules.REPEATED_KINDS})


class Unseen:
    """Divides time by what accounting knows of it, less what is known one by one."""

    def __init__(self, waits: AccountWaits, timeline: EventTimeline, samples: Samples) -> None:
        self._waits = waits
        self._timeline = timeline
        self._samples = samples

    def waits(
        self,
        pid: int,
        place: rules.Place | None,
        span: Evidence,
        kept: Iterable[CauseInterval],
        blocked_ns: int,
    ) -> Iterator[CauseInterval]:
        """
        Yield what a thread waited for in an effect, besides the waits that were kept.

        Args:
            pid: Its process.
            place: Where it was; None: anywhere.
            span: The effect.
            kept: The waits that were kept.
            blocked_ns: How long it waited besides them.
        """
        edges = span.start_unix_ns, span.end_unix_ns
        for part, time_ns in _shares(self._waits.waits(pid, place, *edges), kept, blocked_ns):
            is_repeated = part.kind in rules.REPEATED_KINDS
            yield CauseInterval(
                kind=part.kind,
                time_ns=time_ns,
                culprit=part.who,
                evidence=span,
                is_repeated=is_repeated,
                resource=part.resource,
            )

    def during_waits(
        self,
        pid: int,
        place: rules.Place | None,
        other: Culprit,
        group: Iterable[CauseInterval],
        seen: list[CauseInterval],
    ) -> list[CauseInterval]:
        """
        Return what a thread did while a process waited for it.

        Args:
            pid: The process.
            place: Where it waited; None: anywhere.
            other: The thread. If it waited in turn, the result is what the last thread of the chain
                did.
            group: The waits.
            seen: What it was observed to do in them.
        """
        group = list(group)
        known = [interval for interval in seen if interval.kind != CauseKind.UNEXPLAINED]
        whole_ns = sum(interval.time_ns for interval in group)
        left_ns = whole_ns - sum(interval.time_ns for interval in known)
        start_unix_ns = min(interval.evidence.start_unix_ns for interval in group)
        end_unix_ns = max(interval.evidence.end_unix_ns for interval in group)
        parts = self._waits.during_waits(
            pid, place, who=other, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns
        )
        if left_ns <= 0 or not parts:
            return seen
        start, end = (edge - self._timeline.unix_offset_ns for edge in (start_unix_ns, end_unix_ns))
        found: list[CauseInterval] = []
        for part, time_ns in _shares(parts=parts, known=known, wanted_ns=left_ns, other=other):
            who = part.who or other
            span = evidence.of_unseen(
                other=who,
                start_ktime_ns=start,
                start_unix_ns=start_unix_ns,
                time_ns=end - start,
                kind=EvidenceKind.ACCOUNT,
            )
            lines = self._samples.of(who.pid, who.tid, start_ktime_ns=start, end_ktime_ns=end)
            found.append(
                CauseInterval(
                    kind=part.kind,
                    time_ns=time_ns,
                    culprit=None if part.kind in _WAITS else who,
                    evidence=span,
                    lines=lines if part.kind == CauseKind.HOST_WORK else NO_LINES,
                )
            )
            left_ns -= time_ns
        # The rest was not observed. Samples are reported once.
        is_work = any(interval.kind == CauseKind.HOST_WORK for interval in found)
        for interval in seen:
            if interval.kind == CauseKind.UNEXPLAINED:
                lines = NO_LINES if is_work else interval.lines
                found.append(interval._replace(time_ns=min(interval.time_ns, left_ns), lines=lines))
                left_ns -= found[-1].time_ns
        return known + found


def _shares(
    parts: Iterable[Waited],
    known: Iterable[CauseInterval],
    wanted_ns: int,
    other: Culprit | None = None,
) -> Iterator[tuple[Waited, int]]:
    # The share of each part in the wanted time.
    # The parts cover that time, the known intervals, and possibly time around both, in the same
    # proportions. Where ``other`` waited in turn, a part is what the thread at the end of the chain
    # did.
    parts, known = list(parts), list(known)
    known_ns: Counter[tuple[CauseKind, int]] = Counter()
    for interval in known:
        known_ns[_key(interval.kind, interval.culprit, other)] += interval.time_ns
    whole_ns = wanted_ns + sum(interval.time_ns for interval in known)
    left_ns = fit({n: part.time_ns for n, part in enumerate(parts)}, whole_ns)

    def take(number: int, key: tuple[CauseKind, int]) -> None:
        taken_ns = min(left_ns[number], known_ns[key])
        known_ns[key] -= taken_ns
        left_ns[number] -= taken_ns

    for number, part in enumerate(parts):
        take(number, _key(part.kind, part.who, other))
        take(number, (part.kind, _ANY_CULPRIT))
    for number, part in enumerate(parts):
        # Its own observed waits were for the thread behind it.
        if other and part.who and part.who.tid != other.tid:
            for kind in rules.REPEATED_KINDS:
                take(number, (kind, _ANY_CULPRIT))
    for number, share_ns in fit(left_ns, wanted_ns).items():
        if share_ns and parts[number].kind != CauseKind.UNEXPLAINED:
            yield parts[number], share_ns


def _key(kind: CauseKind, who: Culprit | None, other: Culprit | None) -> tuple[CauseKind, int]:
    # Only another thread's own intervals know what it waited for.
    return kind, _ANY_CULPRIT if who is None or (other and kind in _WAITS) else who.tid
