"""
Chains from finished spans: a slow call, explained by its child spans.

Spans contain less than activities: only the call's children, and nothing about what the thread that
ended a wait did before. The rest stays unexplained.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low
from typing import NamedTuple

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_gpu.explain.baselines import Baseline
from otel_gpu.explain.causes import Causes
from otel_gpu.explain.chains import Chain
from otel_gpu.explain.effects import Candidate, Effects
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import judge, lost_to_host_ns
from otel_gpu.export import semconv
from otel_gpu.export.spans.span_activities import (
    attributes_of,
    call_of,
    gap_of,
    knows_states,
    stall_of,
)
from otel_gpu.limits.recent import Recent

# Of one kind of call: enough for a median that follows a changing workload.
_MAX_DURATIONS = 128
_MAX_SERIES = 1024

_SeriesKey = tuple[object, ...]


class Medians:
    """The usual durations of each kind of call, from the latest of them; bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._series: Recent[_SeriesKey, deque[int]] = Recent(_MAX_SERIES)

    def take(self, span: ReadableSpan) -> int | None:
        """Return the usual duration of calls like this one, and add it; None: too few calls."""
        attributes = attributes_of(span)
        key = (
            span.resource.attributes.get(SERVICE_INSTANCE_ID),
            span.name,
            attributes.get(semconv.GPU_CUDA_API),
            attributes.get(semconv.CUDA_MEMCPY_KIND),
        )
        durations = self._series.use(key)
        if durations is None:
            durations = self._series[key] = deque(maxlen=_MAX_DURATIONS)
        duration_ns = _duration_of(span)
        # A median is only needed where the call can be slow.
        may_be_slow = duration_ns > self._settings.slow_floor_ns
        enough = len(durations) >= self._settings.minimum_calls
        usual_ns = median_low(durations) if may_be_slow and enough else None
        durations.append(duration_ns)
        return usual_ns


class _Usual(NamedTuple):
    # The usual duration of one call, as ``explain`` reads it.

    usual_ns: int | None

    def median_ns(self, _: Baseline) -> int | None:
        return self.usual_ns

    def is_rising(self, _: Baseline) -> bool:
        return False


def chain_of(
    call: ReadableSpan, stalls: Sequence[ReadableSpan], usual_ns: int | None, settings: Settings
) -> Chain | None:
    """Return why a call or gap was slow, from the stalls in it; None: it was not slow."""
    has_failed = call.status.status_code is StatusCode.ERROR
    if not has_failed and _duration_of(call) <= settings.slow_floor_ns:
        return None
    activity = gap_of(call) if call.name == semconv.SPAN_LAUNCH_GAP else call_of(call)
    candidate = Candidate(activity, activity.end_unix_ns, is_first=False, stalls=())
    judged = Effects(_Usual(usual_ns), settings).judge(candidate)
    if judged is None:
        return None
    effect, subject = judged
    # Other threads are unknown, so no waker can be followed.
    timeline = EventTimeline(settings)
    finder = Causes(timeline, Quotas(timeline), replace(settings, max_depth=0))
    finder.knows_states = knows_states(call)
    in_order = sorted(
        map(stall_of, stalls), key=lambda stall: (stall.start_unix_ns, stall.end_unix_ns)
    )
    causes, unexplained_ns = finder.find(subject, in_order)
    return Chain(
        id=f"{effect.kind}-{effect.span_id.hex()}",
        effect=effect,
        causes=causes,
        unexplained_ns=unexplained_ns,
        severity=judge(
            lost_to_host_ns(effect, causes), effect.excess_ns, window_ns=0, settings=settings
        ).severity,
    )


def _duration_of(span: ReadableSpan) -> int:
    return max(0, (span.end_time or 0) - (span.start_time or 0))
