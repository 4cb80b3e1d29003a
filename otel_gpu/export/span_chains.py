"""
Chains from finished spans: what a slow call's own children say about its time.

Spans know less than activities do: only what became a child of the call, and nothing of
what the thread that ended a wait did meanwhile. What they do not say stays unexplained.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Evidence
from otel_gpu.explain.evidence import keep_longest
from otel_gpu.explain.ranking import rank, share_of
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import judge, lost_to_host_ns
from otel_gpu.export import semconv
from otel_gpu.probe_table import APIS

_FAMILY_BY_NAME: Mapping[str, int] = {api.name: api.family for api in APIS}
_INVOLUNTARY = "involuntary"
_SLOW_CHOICES = frozenset({"slow", "stalled"})
# Of one kind of call: enough for a median, and it follows a workload that changes.
_MAX_DURATIONS = 128
_MAX_SERIES = 1024
_NS_PER_SECOND = 1_000_000_000

_SeriesKey = tuple[object, ...]


class _Part(NamedTuple):
    kind: str
    culprit: Culprit | None
    evidence: Evidence
    time_ns: int


class Medians:
    """The usual durations of each kind of call, from the latest of them; bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._series: OrderedDict[_SeriesKey, deque[int]] = OrderedDict()

    def take(self, span: ReadableSpan) -> int | None:
        """
        Return what is usual for a call like this one, and then count it in.

        None: there were too few to say.
        """
        attributes = attributes_of(span)
        key = (
            span.resource.attributes.get(semconv.SERVICE_INSTANCE_ID),
            span.name,
            attributes.get(semconv.GPU_CUDA_API),
            attributes.get(semconv.CUDA_MEMCPY_KIND),
        )
        durations = self._series.get(key)
        if durations is None:
            durations = self._series[key] = deque(maxlen=_MAX_DURATIONS)
            if len(self._series) > _MAX_SERIES:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(key)
        duration_ns = duration_of(span)
        usual_ns = None
        # A median is only asked for where something may be slow.
        if duration_ns > self._settings.slow_floor_ns:
            enough = len(durations) >= self._settings.minimum_calls
            usual_ns = median_low(durations) if enough else None
        durations.append(duration_ns)
        return usual_ns


def chain_of(
    call: ReadableSpan, stalls: Sequence[ReadableSpan], usual_ns: int | None, settings: Settings
) -> Chain | None:
    """
    Return why a call or gap was slow; None: it was not.

    Args:
        call: The span of the call or gap.
        stalls: The ``sched.*`` spans in it.
        usual_ns: The median of calls like this one; None: not known.
        settings: What is slow, and what matters.
    """
    attributes = attributes_of(call)
    kind = _effect_kind(call, attributes, usual_ns, settings)
    if kind is None or call.start_time is None:
        return None
    duration_ns = duration_of(call)
    # A failed call can be faster than is usual.
    baseline_ns = min(duration_ns, usual_ns or 0)
    context = call.get_span_context()
    effect = Effect(
        kind,
        _process_of(call),
        str(attributes.get(semconv.GPU_CUDA_API) or attributes.get(semconv.OTEL_GPU_GAP_NEXT_API)),
        _integer(attributes.get(semconv.OTEL_GPU_THREAD_TID)),
        str(attributes.get(semconv.THREAD_NAME) or ""),
        call.start_time,
        duration_ns,
        duration_ns - baseline_ns,
        context.trace_id.to_bytes(16) if context else b"",
        context.span_id.to_bytes(8) if context else b"",
    )
    place = _place_of(call, attributes)
    parts = list(_cut_stalls(call, stalls, place))
    parts += _cut_rest(call, attributes, parts, place)
    causes = rank(_group(parts, duration_ns, settings.max_evidence), baseline_ns)
    return Chain(
        f"{kind}-{effect.span_id.hex()}",
        effect,
        causes,
        duration_ns - sum(cause.time_ns for cause in causes),
        judge(lost_to_host_ns(effect, causes), effect.excess_ns, 0, settings),
    )


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    """Return a span's attributes; none at all are an empty mapping."""
    return span.attributes or {}


def duration_of(span: ReadableSpan) -> int:
    """Return a span's length in nanoseconds."""
    return max(0, (span.end_time or 0) - (span.start_time or 0))


def _effect_kind(
    call: ReadableSpan, attributes: Mapping[str, Any], usual_ns: int | None, settings: Settings
) -> str | None:
    is_gap = call.name == semconv.SPAN_LAUNCH_GAP
    if call.status.status_code is StatusCode.ERROR and not is_gap:
        return "failed_call"
    duration_ns = duration_of(call)
    if duration_ns <= settings.slow_floor_ns:
        return None
    if usual_ns is None:
        is_slow = not _SLOW_CHOICES.isdisjoint(attributes.get(semconv.OTEL_GPU_CHOICE) or ())
    else:
        is_slow = duration_ns > settings.slow_factor * usual_ns
    if not is_slow:
        return None
    return "slow_gap" if is_gap else "slow_call"


def _place_of(call: ReadableSpan, attributes: Mapping[str, Any]) -> str:
    if call.name == semconv.SPAN_LAUNCH_GAP:
        return rules.GAP
    api = str(attributes.get(semconv.GPU_CUDA_API))
    return rules.place_of(_FAMILY_BY_NAME.get(api, -1))


def _process_of(span: ReadableSpan) -> ProcessImage:
    attributes = span.resource.attributes
    name = str(attributes.get(semconv.SERVICE_NAME, ""))
    return ProcessImage(_integer(attributes.get(semconv.PROCESS_PID)), 0, name, 0, dict(attributes))


def _cut_stalls(call: ReadableSpan, stalls: Iterable[ReadableSpan], place: str) -> Iterable[_Part]:
    """Yield the stalls as parts of the call's time; no moment is in two of them."""
    cursor = call.start_time or 0
    latest = call.end_time or 0
    for stall in sorted(stalls, key=lambda span: (span.start_time or 0, span.end_time or 0)):
        start = max(cursor, stall.start_time or 0)
        end = min(latest, stall.end_time or 0)
        if end <= start:
            continue
        cursor = end
        attributes = attributes_of(stall)
        evidence = _evidence_of(stall, attributes, start, end)
        if stall.name == semconv.SPAN_RUN_QUEUE_WAIT:
            switch = attributes.get(semconv.PROCESS_CONTEXT_SWITCH_TYPE)
            is_preempted = switch == _INVOLUNTARY and evidence.culprit is not None
            kind, culprit = "preemption" if is_preempted else "run_queue", evidence.culprit
        else:
            kind = rules.blocked_kind(evidence.reason, place)
            culprit = evidence.waker if kind in rules.REPEATED_KINDS else None
        if kind != "unexplained":
            yield _Part(kind, culprit, evidence, end - start)


def _evidence_of(
    stall: ReadableSpan, attributes: Mapping[str, Any], start_unix_ns: int, end_unix_ns: int
) -> Evidence:
    context = stall.get_span_context()
    is_waiting = stall.name == semconv.SPAN_RUN_QUEUE_WAIT
    span_id = context.span_id.to_bytes(8) if context else b""
    return Evidence(
        f"{stall.name}-{span_id.hex()}",
        "run_queue" if is_waiting else "blocked",
        start_unix_ns,
        end_unix_ns,
        _thread_of(
            attributes,
            semconv.OTEL_GPU_CULPRIT_PID,
            semconv.OTEL_GPU_CULPRIT_TID,
            semconv.OTEL_GPU_CULPRIT_COMM,
        ),
        _thread_of(
            attributes,
            semconv.OTEL_GPU_WAKER_PID,
            semconv.OTEL_GPU_WAKER_TID,
            semconv.OTEL_GPU_WAKER_COMM,
        ),
        str(attributes.get(semconv.OTEL_GPU_STALL_REASON, "")),
        tuple(map(str, attributes.get(semconv.OTEL_GPU_KERNEL_FUNCTIONS) or ())),
        span_id,
    )


def _cut_rest(
    call: ReadableSpan, attributes: Mapping[str, Any], parts: Iterable[_Part], place: str
) -> Iterable[_Part]:
    """
    Yield the time that no stall covers, where the call's own totals tell its state.

    otel_gpu leaves a total of 0 out; for others, no totals mean that nobody measured.
    """
    is_ours = call.instrumentation_scope is not None and (
        call.instrumentation_scope.name == semconv.SCOPE_CUDA
    )
    if not is_ours and semconv.OTEL_GPU_CALL_BLOCKED_TIME not in attributes:
        return
    is_gap = place == rules.GAP
    blocked = semconv.OTEL_GPU_GAP_BLOCKED_TIME if is_gap else semconv.OTEL_GPU_CALL_BLOCKED_TIME
    queued = semconv.OTEL_GPU_GAP_RUN_QUEUE_TIME if is_gap else semconv.OTEL_GPU_CALL_RUN_QUEUE_TIME
    blocked_ns = _nanoseconds(attributes.get(blocked))
    queued_ns = _nanoseconds(attributes.get(queued))
    known = list(parts)
    known_queued_ns = sum(part.time_ns for part in known if part.evidence.kind == "run_queue")
    left_ns = duration_of(call) - sum(part.time_ns for part in known)
    context = call.get_span_context()
    whole = Evidence(
        "call",
        "gap" if is_gap else "call",
        call.start_time or 0,
        call.end_time or 0,
        None,
        None,
        "",
        (),
        context.span_id.to_bytes(8) if context else b"",
    )
    rest_queued_ns = min(left_ns, max(0, queued_ns - known_queued_ns))
    if rest_queued_ns:
        yield _Part("run_queue", None, whole, rest_queued_ns)
    on_cpu_ns = min(left_ns - rest_queued_ns, max(0, duration_of(call) - blocked_ns - queued_ns))
    kind = rules.on_cpu_kind(place)
    if on_cpu_ns and kind != "unexplained":
        yield _Part(kind, None, whole, on_cpu_ns)


def _group(parts: Iterable[_Part], duration_ns: int, max_evidence: int) -> Iterable[Cause]:
    """Yield one cause for all parts with the same kind and culprit."""
    groups: dict[tuple[str, Culprit | None], list[_Part]] = {}
    for part in parts:
        groups.setdefault((part.kind, part.culprit), []).append(part)
    for (kind, culprit), group in groups.items():
        time_ns = sum(part.time_ns for part in group)
        evidence = keep_longest((part.evidence for part in group), max_evidence)
        yield Cause(kind, time_ns, share_of(time_ns, duration_ns), culprit, evidence)


def _thread_of(attributes: Mapping[str, Any], pid: str, tid: str, comm: str) -> Culprit | None:
    found = _integer(attributes.get(tid))
    if not found:
        return None
    return Culprit(_integer(attributes.get(pid)), found, str(attributes.get(comm, "")))


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _nanoseconds(seconds: object) -> int:
    return round(seconds * _NS_PER_SECOND) if isinstance(seconds, int | float) else 0
