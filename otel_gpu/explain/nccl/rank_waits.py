"""Delays: which of a thread's waits for the device were for another rank."""

from collections.abc import Iterable, Iterator, Sequence

from otel_gpu.explain import rules
from otel_gpu.explain.chains import CauseKind
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.nccl.collectives import Delay

FOR_THE_DEVICE = frozenset({CauseKind.GPU_WAIT, CauseKind.GPU_BACKPRESSURE})
WHILE_IT_HANGS = FOR_THE_DEVICE | {
    CauseKind.UNEXPLAINED,
    CauseKind.SLEEP,
    CauseKind.HOST_WORK,
}
"""What may be such a wait of a rank that hangs: its call has not ended, or it asks again and again."""


def kinds_at(place: str, *, is_polling: bool) -> frozenset[CauseKind]:
    """Return what may be a wait for the device where a thread is, and so one for another rank."""
    if is_polling:
        # It sleeps between two looks whether the device is done.
        return FOR_THE_DEVICE | {CauseKind.SLEEP}
    # What a copy waits for on the host has a reason; else it is the device.
    return FOR_THE_DEVICE | {CauseKind.UNEXPLAINED} if place == rules.COPY else FOR_THE_DEVICE


def cut_delays(
    pieces: Sequence[CauseInterval],
    delays: Iterable[Delay],
    kinds: frozenset[CauseKind] = FOR_THE_DEVICE,
) -> list[CauseInterval]:
    """
    Return pieces of which what was a wait for another rank is one of its own.

    Args:
        pieces: What a thread did.
        delays: When others kept its rank waiting, in order.
        kinds: What may be such a wait.
    """
    left = list(delays)
    if not left:
        return list(pieces)
    cut: list[CauseInterval] = []
    for piece in pieces:
        if not piece.is_timed:
            continue
        inside = [_clip(delay, piece.start_ktime_ns, piece.end_ktime_ns) for delay in left]
        # While it waited for a CPU, say, that is what it waited for.
        left = [part for delay in left for part in _outside(delay, piece)]
        found = [_piece(one) for one in inside if one is not None and piece.kind in kinds]
        rest_ns = piece.time_ns - sum(one.time_ns for one in found)
        cut += [*found, piece._replace(time_ns=rest_ns)]
    for piece in pieces:
        if piece.is_timed:
            continue
        # When that was is not known, only for how long: it lay around the pieces of which it is.
        rest_ns = piece.time_ns
        while rest_ns and left and piece.kind in kinds:
            delay = left.pop(0)
            end = min(delay.end_ktime_ns, delay.start_ktime_ns + rest_ns)
            cut.append(_piece(delay._replace(end_ktime_ns=end)))
            rest_ns -= end - delay.start_ktime_ns
            if end < delay.end_ktime_ns:
                left.insert(0, delay._replace(start_ktime_ns=end))
        cut.append(piece._replace(time_ns=rest_ns))
    return [piece for piece in cut if piece.time_ns > 0]


def _clip(delay: Delay, start: int, end: int) -> Delay | None:
    start, end = max(start, delay.start_ktime_ns), min(end, delay.end_ktime_ns)
    return delay._replace(start_ktime_ns=start, end_ktime_ns=end) if end > start else None


def _outside(delay: Delay, piece: CauseInterval) -> Iterator[Delay]:
    before = _clip(delay, delay.start_ktime_ns, min(piece.start_ktime_ns, delay.end_ktime_ns))
    after = _clip(delay, max(piece.end_ktime_ns, delay.start_ktime_ns), delay.end_ktime_ns)
    yield from (part for part in (before, after) if part is not None)


def _piece(delay: Delay) -> CauseInterval:
    culprit = delay.culprits[0] if delay.culprits else None
    return CauseInterval(
        delay.kind,
        delay.end_ktime_ns - delay.start_ktime_ns,
        culprit,
        delay.evidence,
        delay.start_ktime_ns,
        delay.end_ktime_ns,
        is_followed=delay.kind == CauseKind.COLLECTIVE_WAIT and culprit is not None,
        resource=delay.resource,
        others=delay.culprits[1:],
    )
