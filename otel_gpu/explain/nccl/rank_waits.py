"""Rank waits: which of a thread's waits for the device were for another rank."""

from collections.abc import Iterable, Iterator, Sequence

from otel_gpu.explain import rules
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.nccl.collectives import Delay

FOR_THE_DEVICE = frozenset({CauseKind.GPU_WAIT, CauseKind.GPU_BACKPRESSURE})
WHILE_IT_HANGS = FOR_THE_DEVICE | {
    CauseKind.UNEXPLAINED,
    CauseKind.SLEEP,
    CauseKind.HOST_WORK,
}
"""
Kinds that such waits of a hanging rank can have: its call has not ended, or it queries repeatedly.
"""


def kinds_at(place: rules.Place, *, is_polling: bool) -> frozenset[CauseKind]:
    """Return the kinds of waits for the device in a place, which can be for another rank."""
    if is_polling:
        # It sleeps between two queries whether the device is done.
        return FOR_THE_DEVICE | {CauseKind.SLEEP}
    # A copy's waits on the host have a reason; without one it is the device.
    return FOR_THE_DEVICE | {CauseKind.UNEXPLAINED} if place == rules.Place.COPY else FOR_THE_DEVICE


def cut_delays(
    intervals: Sequence[CauseInterval],
    delays: Iterable[Delay],
    kinds: frozenset[CauseKind] = FOR_THE_DEVICE,
) -> list[CauseInterval]:
    """
    Return intervals in which waits for another rank are intervals of their own.

    Args:
        intervals: What a thread did.
        delays: When others kept its rank waiting, in order.
        kinds: Kinds that can be such waits.
    """
    left = list(delays)
    if not left:
        return list(intervals)
    cut: list[CauseInterval] = []
    for interval in intervals:
        if not interval.is_timed:
            continue
        inside = [_clip(delay, interval.start_ktime_ns, interval.end_ktime_ns) for delay in left]
        # A wait for a CPU, for example, is not also one for a rank.
        left = [part for delay in left for part in _outside(delay, interval)]
        found = [_interval_of(one) for one in inside if one is not None and interval.kind in kinds]
        rest_ns = interval.time_ns - sum(one.time_ns for one in found)
        cut += [*found, interval._replace(time_ns=rest_ns)]
    for interval in intervals:
        if interval.is_timed:
            continue
        # Only its duration is known, and not when it was: around the intervals that belong to it.
        rest_ns = interval.time_ns
        while rest_ns and left and interval.kind in kinds:
            delay = left.pop(0)
            end = min(delay.end_ktime_ns, delay.start_ktime_ns + rest_ns)
            cut.append(_interval_of(delay._replace(end_ktime_ns=end)))
            rest_ns -= end - delay.start_ktime_ns
            if end < delay.end_ktime_ns:
                left.insert(0, delay._replace(start_ktime_ns=end))
        cut.append(interval._replace(time_ns=rest_ns))
    return [interval for interval in cut if interval.time_ns > 0]


def _clip(delay: Delay, start: int, end: int) -> Delay | None:
    start, end = max(start, delay.start_ktime_ns), min(end, delay.end_ktime_ns)
    return delay._replace(start_ktime_ns=start, end_ktime_ns=end) if end > start else None


def _outside(delay: Delay, interval: CauseInterval) -> Iterator[Delay]:
    before = _clip(delay, delay.start_ktime_ns, min(interval.start_ktime_ns, delay.end_ktime_ns))
    after = _clip(delay, max(interval.end_ktime_ns, delay.start_ktime_ns), delay.end_ktime_ns)
    yield from (part for part in (before, after) if part is not None)


def _interval_of(delay: Delay) -> CauseInterval:
    culprit = delay.culprits[0] if delay.culprits else None
    return CauseInterval(
        kind=delay.kind,
        time_ns=delay.end_ktime_ns - delay.start_ktime_ns,
        culprit=culprit,
        evidence=delay.evidence,
        start_ktime_ns=delay.start_ktime_ns,
        end_ktime_ns=delay.end_ktime_ns,
        is_followed=delay.kind == CauseKind.COLLECTIVE_WAIT and culprit is not None,
        resource=delay.resource,
        others=delay.culprits[1:],
    )
