"""Unseen time: what the time account says of waits that were too short, or too many, to be kept one by one."""

from collections import Counter
from collections.abc import Iterable, Iterator

from otel_gpu.explain import evidence, rules
from otel_gpu.explain.account_waits import AccountWaits, Waited
from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.explain.pieces import Piece
from otel_gpu.explain.timeline import Timeline
from otel_gpu.ledger.lines import NO_LINES
from otel_gpu.ledger.samples import Samples

_UNEXPLAINED = "unexplained"
_WORK = "host_work"
# Of these a culprit is whom a thread waited for, which is not known of those that others waited for.
_WAITS = frozenset({"run_queue", *rules.REPEATED_KINDS})


class Unseen:
    """Divides time among what an account knows of it, less what is known one by one."""

    def __init__(self, waits: AccountWaits, timeline: Timeline, samples: Samples) -> None:
        self._waits = waits
        self._timeline = timeline
        self._samples = samples

    def waits(
        self, pid: int, place: str, span: Evidence, kept: Iterable[Piece], blocked_ns: int
    ) -> Iterator[Piece]:
        """
        Yield for what a thread waited in an effect, beside its waits that were kept.

        Args:
            pid: Of its process.
            place: Where it was: one of ``rules``' places.
            span: The effect.
            kept: These waits.
            blocked_ns: How long it waited beside them.
        """
        edges = span.start_unix_ns, span.end_unix_ns
        for part, time_ns in _shares(self._waits.waits(pid, place, *edges), kept, blocked_ns):
            is_repeated = part.kind in rules.REPEATED_KINDS
            yield Piece(
                *(part.kind, time_ns, part.who, span),
                is_repeated=is_repeated,
                resource=part.resource,
            )

    def meanwhile(
        self, pid: int, place: str, other: Culprit, group: Iterable[Piece], seen: list[Piece]
    ) -> list[Piece]:
        """
        Return what a thread did while a process waited for it.

        Args:
            pid: Of the process.
            place: Where it waited; empty: anywhere.
            other: The thread; where it waited in turn, it is what the last one did.
            group: The waits.
            seen: What it was seen to do in them.
        """
        group = list(group)
        known = [piece for piece in seen if piece.kind != _UNEXPLAINED]
        whole_ns = sum(piece.time_ns for piece in group)
        left_ns = whole_ns - sum(piece.time_ns for piece in known)
        start_unix_ns = min(piece.evidence.start_unix_ns for piece in group)
        end_unix_ns = max(piece.evidence.end_unix_ns for piece in group)
        parts = self._waits.meanwhile(pid, place, other, start_unix_ns, end_unix_ns)
        if left_ns <= 0 or not parts:
            return seen
        start, end = (edge - self._timeline.unix_offset_ns for edge in (start_unix_ns, end_unix_ns))
        found: list[Piece] = []
        for part, time_ns in _shares(parts, known, left_ns, other):
            who = part.who or other
            span = evidence.of_unseen(who, start, start_unix_ns, end - start, "account")
            lines = self._samples.of(who.pid, who.tid, start, end)
            found.append(
                Piece(
                    *(part.kind, time_ns, None if part.kind in _WAITS else who, span),
                    lines=lines if part.kind == _WORK else NO_LINES,
                )
            )
            left_ns -= time_ns
        # What nobody saw. Samples are told of once.
        is_work = any(piece.kind == _WORK for piece in found)
        for piece in seen:
            if piece.kind == _UNEXPLAINED:
                lines = NO_LINES if is_work else piece.lines
                found.append(piece._replace(time_ns=min(piece.time_ns, left_ns), lines=lines))
                left_ns -= found[-1].time_ns
        return known + found


def _shares(
    parts: Iterable[Waited], known: Iterable[Piece], wanted_ns: int, other: Culprit | None = None
) -> Iterator[tuple[Waited, int]]:
    """
    Yield what each part has of the time that is wanted.

    The parts are of that and of what is known, and maybe of time around it, of which they have the same
    shares. Where ``other`` waited in turn, a part is what the one did that it waited for.
    """
    parts, known = list(parts), list(known)
    known_ns: Counter[tuple[str, int]] = Counter()
    for piece in known:
        known_ns[piece.kind, piece.culprit.tid if piece.culprit else 0] += piece.time_ns
    whole_ns = wanted_ns + sum(piece.time_ns for piece in known)
    sum_ns = max(1, whole_ns, sum(part.time_ns for part in parts))
    waited_ns = sum(
        piece.time_ns for piece in known if piece.culprit and piece.kind in rules.REPEATED_KINDS
    )
    left: list[tuple[Waited, int]] = []
    for part in parts:
        time_ns = part.time_ns * whole_ns // sum_ns
        for key in ((part.kind, part.who.tid if part.who else 0), (part.kind, 0)):
            taken_ns = min(time_ns, known_ns[key])
            known_ns[key] -= taken_ns
            time_ns -= taken_ns
        if other and part.who and part.who.tid != other.tid:
            taken_ns = min(time_ns, waited_ns)
            waited_ns -= taken_ns
            time_ns -= taken_ns
        left.append((part, time_ns))
    left_ns = max(1, wanted_ns, sum(time_ns for _, time_ns in left))
    for part, time_ns in left:
        share_ns = time_ns * wanted_ns // left_ns
        if share_ns and part.kind != _UNEXPLAINED:
            yield part, share_ns
