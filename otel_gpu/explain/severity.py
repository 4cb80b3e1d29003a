"""
How bad it is: by time lost to the host, never by ratios of percentiles.

A wait for the GPU alone is low however long it is, and so is the program's own work:
neither is a fault of the host. Warm-up is never high.
"""

from collections.abc import Iterable

from otel_gpu.explain.chains import Cause, Effect
from otel_gpu.explain.rules import FAULT_OF_CULPRIT, NO_FAULT, RULE_BY_KIND, can_excuse
from otel_gpu.explain.settings import Settings

HIGH = "high"
MEDIUM = "medium"
LOW = "low"


def fault_ns(cause: Cause) -> int:
    """
    Return how much of a cause's time is a fault of the host.

    Waiting for a thread that itself waits for the device, or for input from outside,
    is no fault for as long as that lasts.
    """
    fault = RULE_BY_KIND[cause.kind].fault
    if fault == NO_FAULT or (fault == FAULT_OF_CULPRIT and cause.culprit is None):
        return 0
    return max(0, cause.time_ns - _excused_ns(cause))


def _excused_ns(cause: Cause) -> int:
    excused = 0
    for other in cause.via:
        # The one waited for stands for itself where no thread kept it waiting in turn.
        has_culprit = other.culprit not in (None, cause.culprit)
        if can_excuse(cause.kind, other.kind, has_culprit=has_culprit):
            excused += other.time_ns
        elif other.via:
            excused += _excused_ns(other)
    return excused


def lost_to_host_ns(effect: Effect, causes: Iterable[Cause]) -> int:
    """Return how much of an effect's excess is a fault of the host; 0 in warm-up."""
    causes = tuple(causes)
    if any(cause.kind == "first_call" for cause in causes):
        return 0
    return min(effect.excess_ns, sum(map(fault_ns, causes)))


def explained_ns(effect: Effect, causes: Iterable[Cause]) -> int:
    """Return how much of an effect's excess has a cause at all."""
    known = sum(cause.time_ns for cause in causes if cause.kind != "unexplained")
    return min(effect.excess_ns, known)


def judge(lost_to_host_ns: int, excess_ns: int, window_ns: int, settings: Settings) -> str:
    """
    Return the severity of one effect, or of many.

    Args:
        lost_to_host_ns: How much of the excess is a fault of the host.
        excess_ns: The excess.
        window_ns: The stretch of time that it is lost of; 0 for a single effect.
        settings: What matters.
    """
    if lost_to_host_ns <= 0:
        return LOW
    if (
        lost_to_host_ns >= settings.high_lost_ns
        and lost_to_host_ns >= settings.high_share * excess_ns
        and lost_to_host_ns >= settings.high_window_share * window_ns
    ):
        return HIGH
    if (
        lost_to_host_ns >= settings.medium_lost_ns
        and lost_to_host_ns >= settings.medium_share * excess_ns
    ):
        return MEDIUM
    return LOW


def judge_chronic(lost_ns: int, feeders_ns: int, settings: Settings) -> str:
    """
    Return the severity of a chronic cause: by what it takes of the feeder threads' time.

    Args:
        lost_ns: How much time is lost.
        feeders_ns: Of how much.
        settings: What matters.
    """
    if lost_ns >= max(settings.high_lost_ns, settings.chronic_high_share * feeders_ns):
        return HIGH
    return MEDIUM if lost_ns >= settings.medium_lost_ns else LOW
