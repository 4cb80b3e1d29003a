"""
Severity: how bad it is, and why. By time lost to the host, never by ratios of percentiles.

A wait for the GPU alone is low however long it is, and so is the program's own work: neither is a
fault of the host. Warm-up is never high: loading libraries and making contexts, with the reading
and paging that belongs to it. A lack of a CPU, or a wait for a lock, does not belong to it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.explain.chains import Cause, Effect
from otel_gpu.explain.kinds import CauseKind, EffectKind, Severity
from otel_gpu.explain.rules import (
    RULE_BY_KIND,
    WARM_UP_KINDS,
    FaultSide,
    can_excuse,
)
from otel_gpu.explain.settings import Settings
from otel_gpu.formatting.units import count_of, format_duration, format_share

_NO_FAULT_TEXTS: Mapping[CauseKind | EffectKind, str] = {
    CauseKind.GPU_WAIT: "it waited for the device",
    CauseKind.GPU_BACKPRESSURE: "the device was behind",
    CauseKind.FIRST_CALL: "it is warm-up",
    CauseKind.HOST_WORK: "it is the program's own work",
    CauseKind.SLEEP: "the program chose to sleep",
    CauseKind.CAPTURE: "the capture stopped it",
    CauseKind.UNEXPLAINED: "what the time went to was not seen",
}
_LITTLE_SHARE = 0.1
_OF_OUTSIDE = "no watched thread kept it waiting"


class Judged(NamedTuple):
    """A severity, and its reason in words."""

    severity: Severity
    reason: str


def fault_ns(cause: Cause) -> int:
    """
    Return how much of a cause's time is a fault of the host.

    A wait for a thread that itself waits for the device, or for input from outside, is not a fault for
    as long as that lasts.
    """
    fault = RULE_BY_KIND[cause.kind].fault
    if fault == FaultSide.NONE or (fault == FaultSide.CULPRIT and cause.culprit is None):
        return 0
    return max(0, cause.time_ns - _excused_ns(cause))


def _excused_ns(cause: Cause) -> int:
    excused = 0
    for other in cause.via:
        # A waited-for thread that no thread kept waiting in turn is its own culprit.
        has_culprit = other.culprit not in (None, cause.culprit)
        if can_excuse(cause.kind, other.kind, has_culprit=has_culprit):
            excused += other.time_ns
        elif other.via:
            excused += _excused_ns(other)
    return excused


def lost_to_host_ns(effect: Effect, causes: Iterable[Cause]) -> int:
    """Return how much of an effect's excess is a fault of the host, without warm-up."""
    causes = tuple(causes)
    is_first = any(cause.kind == CauseKind.FIRST_CALL for cause in causes)
    return min(effect.excess_ns, sum(map(_fault_in_first_ns if is_first else fault_ns, causes)))


def _fault_in_first_ns(cause: Cause) -> int:
    if cause.kind in WARM_UP_KINDS:
        return 0
    if cause.kind != CauseKind.LOCK:
        return fault_ns(cause)
    # The lock is the driver's: its holder warms up as well, unless it is known to do something
    # else.
    is_warm_up = {*WARM_UP_KINDS, CauseKind.FIRST_CALL, CauseKind.UNEXPLAINED}
    return min(fault_ns(cause), sum(via.time_ns for via in cause.via if via.kind not in is_warm_up))


def explained_ns(effect: Effect, causes: Iterable[Cause]) -> int:
    """Return how much of an effect's excess has a cause at all."""
    known = sum(cause.time_ns for cause in causes if cause.kind != CauseKind.UNEXPLAINED)
    return min(effect.excess_ns, known)


def judge(
    lost_to_host_ns: int,
    excess_ns: int,
    window_ns: int,
    settings: Settings,
    leading: CauseKind | EffectKind = CauseKind.UNEXPLAINED,
    effects: int = 1,
) -> Judged:
    """
    Return the severity of one effect, or of many.

    Args:
        lost_to_host_ns: How much of the excess is a fault of the host.
        excess_ns: The excess.
        window_ns: The window of the effects; 0 for a single effect.
        settings: The limits.
        leading: The kind of the leading cause.
        effects: How many effects there are.
    """
    no_fault = _NO_FAULT_TEXTS.get(leading)
    if lost_to_host_ns <= 0:
        return Judged(Severity.LOW, f"no fault of the host: {no_fault or _OF_OUTSIDE}")
    if no_fault and lost_to_host_ns < min(settings.medium_lost_ns, _LITTLE_SHARE * excess_ns):
        little = format_duration(lost_to_host_ns)
        return Judged(Severity.LOW, f"no fault of the host, but for {little} of it: {no_fault}")
    lost = f"{format_duration(lost_to_host_ns)} lost to the host in {count_of(effects, 'effect')}"
    of_all = f" of {format_duration(excess_ns)} lost, less than "
    bounds = (
        (
            settings.medium_lost_ns,
            Severity.LOW,
            f", less than {format_duration(settings.medium_lost_ns)}",
        ),
        (
            settings.medium_share * excess_ns,
            Severity.LOW,
            of_all + format_share(settings.medium_share),
        ),
        (
            settings.high_lost_ns,
            Severity.MEDIUM,
            f", less than {format_duration(settings.high_lost_ns)}",
        ),
        (
            settings.high_share * excess_ns,
            Severity.MEDIUM,
            of_all + format_share(settings.high_share),
        ),
        (
            settings.high_window_share * window_ns,
            Severity.MEDIUM,
            f", less than {format_share(settings.high_window_share)} of {format_duration(window_ns)}",
        ),
    )
    for bound_ns, severity, words in bounds:
        if lost_to_host_ns < bound_ns:
            return Judged(severity, lost + words)
    return Judged(Severity.HIGH, lost)


def judge_chronic(lost_ns: int, launching_ns: int, settings: Settings) -> Judged:
    """
    Return the severity of a chronic cause, by its share of the launching threads' time.

    Args:
        lost_ns: The lost time.
        launching_ns: The time of the launching threads.
        settings: The limits.
    """
    share = format_share(lost_ns / launching_ns if launching_ns else 0.0)
    lost = f"{share} of the time of the launching threads"
    if lost_ns < settings.medium_lost_ns:
        return Judged(Severity.LOW, f"{lost}, less than {format_duration(settings.medium_lost_ns)}")
    if lost_ns < settings.high_lost_ns:
        return Judged(
            Severity.MEDIUM, f"{lost}, less than {format_duration(settings.high_lost_ns)}"
        )
    if lost_ns < settings.chronic_high_share * launching_ns:
        return Judged(
            Severity.MEDIUM, f"{lost}, less than {format_share(settings.chronic_high_share)}"
        )
    return Judged(Severity.HIGH, lost)


def at_most(judged: Judged, most: Severity, kind: CauseKind | EffectKind) -> Judged:
    """Return a severity limited to the worst that its kind of cause can be."""
    if most == Severity.HIGH or judged.severity in (Severity.LOW, most):
        return judged
    own = _NO_FAULT_TEXTS.get(kind, _OF_OUTSIDE)
    return Judged(most, f"no fault of the host: {own}, {judged.reason}")
