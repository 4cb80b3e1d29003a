"""Pieces: time of a thread with one cause, and what some of them say of the others."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Culprit, DeviceTrouble, Evidence
from otel_gpu.state.code_lines import NO_LINES, CodeLines

# Of the kept time of a state, for its cause to be that of the rest too.
_CLEAR_SHARE = 0.75


class CauseInterval(NamedTuple):
    """
    Time with one cause; the window is what to follow the culprit through, and may be longer.

    ``is_repeated`` says of a wait that it may be one of many with a time limit. ``others`` are just as
    much what it is due to as ``culprit``.
    """

    kind: str
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


def is_run_queue(piece: CauseInterval) -> bool:
    """Say whether a thread was ready to run."""
    return piece.evidence.kind == "run_queue"


def key_of(piece: CauseInterval) -> tuple[str, int, int]:
    """Return what pieces of one cause have in common."""
    # Threads of one process that have the CPU in turn are one hog; a lock has one holder.
    culprit = piece.culprit
    if culprit is None:
        return piece.kind, 0, 0
    if piece.kind in ("preemption", "run_queue"):
        return piece.kind, culprit.pid, 0
    return piece.kind, culprit.pid, culprit.tid


def clear_cause(pieces: list[CauseInterval]) -> tuple[str, Culprit | None] | None:
    """Return the cause that most of the kept time has, if one clearly has it."""
    kept_ns = sum(piece.time_ns for piece in pieces)
    times: dict[tuple[str, int, int], int] = {}
    culprits: Mapping[tuple[str, int, int], Culprit | None] = {
        key_of(piece): piece.culprit for piece in pieces
    }
    for piece in pieces:
        key = key_of(piece)
        times[key] = times.get(key, 0) + piece.time_ns
    for key, time_ns in times.items():
        if time_ns >= _CLEAR_SHARE * kept_ns:
            return key[0], culprits[key]
    return None


def complete_culprits(pieces: list[CauseInterval]) -> Iterable[CauseInterval]:
    """Say of waits that a timer ended who was waited for, if it can only be one."""
    for kind in rules.REPEATED_KINDS:
        repeated = [piece for piece in pieces if piece.kind == kind and piece.is_repeated]
        known = {piece.culprit for piece in repeated if piece.culprit}
        if len(known) == 1:
            (culprit,) = known
            pieces = [
                piece._replace(culprit=culprit, is_followed=piece.end_ktime_ns > 0, lines=NO_LINES)
                if piece.kind == kind and piece.is_repeated and piece.culprit is None
                else piece
                for piece in pieces
            ]
    return pieces
