"""Phases: a word or two for the use of a time bucket."""

from enum import StrEnum
from typing import NamedTuple

from otel_gpu.report.document import TimeBucket
from otel_gpu.report.wording.formats import format_share

# A phase is named after what takes this part of it.
_STALLED = 0.1
_MOSTLY = 0.5
_ALLOCATING = 0.2
# From here on several threads do it at once; less can be rounding at the edges.
_SEVERAL = 1.05

NO_CAPTURE = "no capture"
"""Replaces a phase where no capture ran: what happened is not known."""


class PhaseKind(StrEnum):
    """The main use of a time bucket."""

    STALLED = "stalled"
    NO_CALLS = "no calls"
    ALLOCATING = "allocating"
    WAITING = "waiting for the GPU"
    STEADY = "steady"


class BucketPhase(NamedTuple):
    """
    The main use of a time bucket, and its share.

    The share is of the bucket's length: above 1 if several threads do it at once.
    """

    kind: PhaseKind
    share: float | None = None

    def __str__(self) -> str:
        if self.share is None:
            return self.kind
        if self.share >= _SEVERAL:
            return f"{self.kind}, {self.share:.1f} threads at a time"
        return f"{self.kind} {format_share(self.share)}"


def phase_of(bucket: TimeBucket) -> BucketPhase:
    """Return the phase of a time bucket."""
    length_ns = bucket.length_ns
    if bucket.lost_ns >= _STALLED * length_ns:
        return BucketPhase(PhaseKind.STALLED, bucket.lost_ns / length_ns)
    if bucket.calls == 0:
        return BucketPhase(PhaseKind.NO_CALLS)
    if bucket.allocate_ns >= _ALLOCATING * length_ns:
        return BucketPhase(PhaseKind.ALLOCATING, bucket.allocate_ns / length_ns)
    if bucket.synchronize_ns >= _MOSTLY * length_ns:
        return BucketPhase(PhaseKind.WAITING, bucket.synchronize_ns / length_ns)
    return BucketPhase(PhaseKind.STEADY)
