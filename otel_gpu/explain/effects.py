"""
Effects: which calls and gaps are slow, hung or failed, and by how much.

A slow one is compared to the median of its own series: the same API, program and kind of copy. If a
series has too few calls for a median, the kernel side's choice counts. In a short program nearly
all calls are like that, and many are first calls, so there the threshold is higher. Warm-up and the
baseline sample are not effects by themselves.
"""

from typing import NamedTuple, Protocol

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    CallActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
)
from otel_gpu.enrich.cuda_errors import error_name, killed_by
from otel_gpu.explain import evidence, rules
from otel_gpu.explain.baselines import Baseline, of_calls, of_gaps
from otel_gpu.explain.causes import Subject
from otel_gpu.explain.chains import Effect
from otel_gpu.explain.kinds import EffectKind, Severity
from otel_gpu.explain.settings import Settings
from otel_gpu.wire.events import CudaCall, Gap, OpenCall
from otel_gpu.wire.probe_table import ASYNC_EVENT_API

# Effects because they took longer than usual.
_COMPARED = frozenset({EffectKind.SLOW_CALL, EffectKind.SLOW_GAP})


class Candidate(NamedTuple):
    """A call or gap that can be an effect once it is known what is usual."""

    activity: CallActivity | GapActivity | OpenCallActivity
    end_unix_ns: int
    is_first: bool
    stalls: tuple[StallActivity, ...]


class Usual(Protocol):
    """What is usual for a series of calls or gaps; see ``Baselines``."""

    def median_ns(self, baseline: Baseline, /) -> int | None:
        """Return the median in nanoseconds; None while it is not known."""

    def is_rising(self, baseline: Baseline, /) -> bool:
        """Return whether the calls of an allocator get slower and slower."""


class Effects:
    """Separates effects from what is usual."""

    def __init__(self, baselines: Usual, settings: Settings) -> None:
        self._baselines = baselines
        self._settings = settings

    def may_be(self, event: CudaCall | Gap) -> bool:
        """
        Return whether to keep a call or gap until it is known what is usual.

        A call inside another is a part of that one's chain.
        """
        if isinstance(event, CudaCall):
            if event.parent_start_ktime_ns:
                return False
            if event.status:
                return True
        if event.choices == wire.CHOICE_SAMPLED:
            return False
        return event.end_ktime_ns - event.start_ktime_ns > self._settings.slow_floor_ns

    def judge(self, candidate: Candidate) -> tuple[Effect, Subject] | None:
        """Return the effect of a candidate, and what to explain; None: not an effect."""
        activity = candidate.activity
        event = activity.event
        start = event.start_ktime_ns
        end = event.ktime_ns if isinstance(event, OpenCall) else event.end_ktime_ns
        duration_ns = max(0, end - start)
        baseline = None if isinstance(event, OpenCall) else baseline_of(event)
        median_ns = None if baseline is None else self._baselines.median_ns(baseline)
        kind = self._kind_of(event, duration_ns, median_ns)
        if kind is None:
            return None
        usual_ns = min(duration_ns, median_ns or 0)
        return self._describe(
            candidate=candidate,
            kind=kind,
            duration_ns=duration_ns,
            usual_ns=usual_ns,
            excess_ns=duration_ns - usual_ns,
        )

    def lost_ns(
        self, baseline: Baseline, duration_ns: int, *, failed: bool, is_slow: bool
    ) -> int | None:
        """
        Return how much longer than usual a call or gap took; None: not an effect.

        Args:
            baseline: Its series.
            duration_ns: How long it took.
            failed: Whether it is an effect however short it was.
            is_slow: The kernel side's choice, which counts while no median is known.
        """
        median_ns = self._baselines.median_ns(baseline)
        if not failed and not self._is_slow(duration_ns, median_ns, is_slow=is_slow):
            return None
        return max(0, duration_ns - (median_ns or 0))

    def as_example(self, candidate: Candidate) -> tuple[Effect, Subject]:
        """Return a call or gap that took no longer than others, and what to explain."""
        event = candidate.activity.event
        assert not isinstance(event, OpenCall)  # noqa: S101 -- it hangs, so it is an effect
        is_gap = isinstance(event, Gap)
        duration_ns = max(0, event.end_ktime_ns - event.start_ktime_ns)
        kind = EffectKind.USUAL_GAP if is_gap else EffectKind.USUAL_CALL
        return self._describe(
            candidate=candidate, kind=kind, duration_ns=duration_ns, usual_ns=0, excess_ns=0
        )

    def _describe(
        self,
        candidate: Candidate,
        kind: EffectKind,
        duration_ns: int,
        usual_ns: int,
        excess_ns: int,
    ) -> tuple[Effect, Subject]:
        activity = candidate.activity
        event = activity.event
        start = event.start_ktime_ns
        effect = Effect(
            kind=kind,
            process=activity.process,
            api=_api_of(activity),
            tid=event.tid,
            comm=event.comm,
            start_unix_ns=activity.start_unix_ns,
            duration_ns=duration_ns,
            excess_ns=excess_ns,
            trace_id=activity.trace_id,
            span_id=activity.span_id,
            stack=evidence.stack_of(activity),
            began_before_capture=isinstance(event, OpenCall) and event.began_before_capture,
        )
        subject = Subject(
            pid=event.pid,
            tid=event.tid,
            start_ktime_ns=start,
            end_ktime_ns=start + duration_ns,
            blocked_ns=event.blocked_ns,
            run_queue_ns=event.run_queue_ns,
            place=self._place_of(candidate),
            usual_ns=usual_ns,
            span=evidence.of_whole(activity, candidate.end_unix_ns),
            program_ktime_ns=event.program_ktime_ns,
            is_open=isinstance(event, OpenCall),
            is_polling=isinstance(activity, GapActivity) and _is_polling(activity),
            process=activity.process,
            device=activity.device,
        )
        return effect, subject

    def matters(self, effect: Effect, subject: Subject, severity: Severity, life_ns: int) -> bool:
        """Return whether an effect still is one after its process ended with this lifetime."""
        if severity != Severity.LOW or effect.kind not in _COMPARED:
            return True
        if not subject.usual_ns:
            return life_ns > self._settings.settle_ns
        return (
            life_ns > self._settings.short_life_ns
            or effect.excess_ns >= self._settings.medium_lost_ns
        )

    def _kind_of(
        self, event: CudaCall | Gap | OpenCall, duration_ns: int, median_ns: int | None
    ) -> EffectKind | None:
        if isinstance(event, OpenCall):
            return EffectKind.HUNG_CALL
        if isinstance(event, CudaCall) and killed_by(event.status):
            return EffectKind.KILLED_CALL
        if isinstance(event, CudaCall) and event.status:
            is_event = event.api == ASYNC_EVENT_API
            return EffectKind.NETWORK_EVENT if is_event else EffectKind.FAILED_CALL
        is_slow = bool(event.choices & wire.CHOICE_SLOW)
        if not self._is_slow(duration_ns, median_ns, is_slow=is_slow):
            return None
        return EffectKind.SLOW_GAP if isinstance(event, Gap) else EffectKind.SLOW_CALL

    def _is_slow(self, duration_ns: int, median_ns: int | None, *, is_slow: bool) -> bool:
        if duration_ns <= self._settings.slow_floor_ns:
            return False
        return (
            is_slow if median_ns is None else duration_ns > self._settings.slow_factor * median_ns
        )

    def _place_of(self, candidate: Candidate) -> rules.Place:
        activity = candidate.activity
        if isinstance(activity, GapActivity):
            return rules.Place.GAP
        if candidate.is_first:
            return rules.Place.FIRST_CALL
        if isinstance(activity, CallActivity) and activity.event.choices & wire.CHOICE_FIRST_USE:
            return rules.Place.FIRST_CALL
        event = activity.event
        if not isinstance(event, OpenCall) and self._baselines.is_rising(baseline_of(event)):
            return rules.Place.CHURN
        return rules.place_of(activity.api.family)


def baseline_of(event: CudaCall | Gap) -> Baseline:
    """Return the series that a call or gap is compared with."""
    if isinstance(event, Gap):
        return of_gaps(event.pid, event.program_ktime_ns)
    return of_calls(
        pid=event.pid,
        program_ktime_ns=event.program_ktime_ns,
        api=event.api,
        copy_kind=event.copy_kind,
    )


def _is_polling(gap: GapActivity) -> bool:
    return wire.FAMILY_QUERY in (gap.previous_api.family, gap.next_api.family)


def _api_of(activity: CallActivity | GapActivity | OpenCallActivity) -> str:
    # A gap has the name of the call that it delayed.
    if isinstance(activity, GapActivity):
        return activity.next_api.name
    # This call exists for its status only.
    if isinstance(activity, CallActivity) and activity.event.api == ASYNC_EVENT_API:
        return error_name(activity.api.layer, activity.event.status)
    if isinstance(activity, CallActivity) and killed_by(activity.event.status):
        return f"{activity.api.name} ({error_name(activity.api.layer, activity.event.status)})"
    return activity.api.name
