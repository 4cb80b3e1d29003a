"""Phases: one word or two for what takes the time of a slot."""

from enum import StrEnum
from typing import NamedTuple

from otel_gpu.report.document import TimeBucket
from otel_gpu.report.wording.formats import format_share

# A phase is named after what takes this part of it.
_STALLED = 0.1
_MOSTLY = 0.5
_ALLOCATING = 0.2
# From here on it is more than one thread, and not the edge of a slot.
_SEVERAL = 1.05

NO_CAPTURE = "no capture"
"""In the place of a phase, where no capture was: what happened is not known."""


class PhaseKind(StrEnum):
    """What a slot's time went to, in words."""

    STALLED = "stalled"
    NO_CALLS = "no calls"
    ALLOCATING = "allocating"
    WAITING = "waiting for the GPU"
    STEADY = "steady"


class BucketPhase(NamedTuple):
    """
    What takes the time of a slot, and how many threads do at a time, on average.

    The share is of the slot's length: above 1 where several threads do it at once.
    """

    kind: PhaseKind
    share: float | None = None

    def __str__(self) -> str:
        if self.share is None:
            return self.kind
        if self.share >= _SEVERAL:
            return f"{self.kind}, {self.share:.1f} threads at a time"
        return f"{self.kind} {format_share(self.share)}"


def phase_of(slot: TimeBucket) -> BucketPhase:
    """Return the phase of a slot."""
    length_ns = slot.length_ns
    if slot.lost_ns >= _STALLED * length_ns:
        return BucketPhase(PhaseKind.STALLED, slot.lost_ns / length_ns)
    if slot.calls == 0:
        return BucketPhase(PhaseKind.NO_CALLS)
    if slot.allocate_ns >= _ALLOCATING * length_ns:
        return BucketPhase(PhaseKind.ALLOCATING, slot.allocate_ns / length_ns)
    if slot.synchronize_ns >= _MOSTLY * length_ns:
        return BucketPhase(PhaseKind.WAITING, slot.synchronize_ns / length_ns)
    return BucketPhase(PhaseKind.STEADY)
