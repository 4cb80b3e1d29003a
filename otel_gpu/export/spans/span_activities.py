"""Activities from finished spans: their clock is Unix time, and missing values are 0."""

from collections.abc import Mapping
from typing import Any, TypeVar

from opentelemetry.sdk.resources import PROCESS_PID, SERVICE_NAME
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity, GapActivity, StallActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.waits.reasons import read_reason
from otel_gpu.export import semconv
from otel_gpu.wire.events import CudaCall, Gap, Stall
from otel_gpu.wire.probe_table import APIS, Api

_API_BY_NAME: Mapping[str, Api] = {api.name: api for api in APIS}
_SWITCHES = {name: number for number, name in semconv.PROCESS_CONTEXT_SWITCH_TYPE_VALUES.items()}
_SLOW_CHOICES = frozenset({"slow", "stalled"})
_NS_PER_SECOND = 1_000_000_000
# By the field of an event: its attribute.
_INTEGERS = {
    "tid": semconv.OTEL_GPU_THREAD_TID,
    "culprit_pid": semconv.OTEL_GPU_CULPRIT_PID,
    "culprit_tid": semconv.OTEL_GPU_CULPRIT_TID,
    "waker_pid": semconv.OTEL_GPU_WAKER_PID,
    "waker_tid": semconv.OTEL_GPU_WAKER_TID,
}
_TEXTS = {
    "comm": semconv.THREAD_NAME,
    "culprit_comm": semconv.OTEL_GPU_CULPRIT_COMM,
    "waker_comm": semconv.OTEL_GPU_WAKER_COMM,
}

_Event = TypeVar("_Event", CudaCall, Gap, Stall)


def call_of(span: ReadableSpan) -> CallActivity:
    """Return the call of a span."""
    api = _api_of(span, semconv.GPU_CUDA_API)
    event = _event(
        CudaCall,
        span,
        status=int(span.status.status_code is StatusCode.ERROR),
        blocked_ns=_nanoseconds(span, semconv.OTEL_GPU_CALL_BLOCKED_TIME),
        run_queue_ns=_nanoseconds(span, semconv.OTEL_GPU_CALL_RUN_QUEUE_TIME),
        api=api.number,
    )
    times = (event.start_ktime_ns, event.end_ktime_ns)
    return CallActivity(_process_of(span), event, api, *times, None, None, "", *ids_of(span))


def gap_of(span: ReadableSpan) -> GapActivity:
    """Return the gap of a span."""
    blocked_ns = _nanoseconds(span, semconv.OTEL_GPU_GAP_BLOCKED_TIME)
    run_queue_ns = _nanoseconds(span, semconv.OTEL_GPU_GAP_RUN_QUEUE_TIME)
    event = _event(Gap, span, blocked_ns=blocked_ns, run_queue_ns=run_queue_ns)
    previous = _api_of(span, semconv.OTEL_GPU_GAP_PREVIOUS_API)
    following = _api_of(span, semconv.OTEL_GPU_GAP_NEXT_API)
    times = (event.start_ktime_ns, event.end_ktime_ns)
    ids = ids_of(span)
    return GapActivity(_process_of(span), event, previous, following, *times, None, *ids)


def stall_of(span: ReadableSpan) -> StallActivity:
    """
    Return the stall of a ``sched.blocked`` or ``sched.run_queue_wait`` span, which is half of it.
    """
    attributes = attributes_of(span)
    is_waiting = span.name == semconv.SPAN_RUN_QUEUE_WAIT
    switch = str(attributes.get(semconv.PROCESS_CONTEXT_SWITCH_TYPE))
    event = _event(
        Stall,
        span,
        switch_type=_SWITCHES.get(switch, wire.SWITCH_VOLUNTARY),
        flags=wire.STALL_IDLE_CPU if attributes.get(semconv.OTEL_GPU_CPU_IDLE) else 0,
    )
    runnable_ns = event.start_ktime_ns if is_waiting else event.end_ktime_ns
    trace_id, span_id, parent_span_id = ids_of(span)
    return StallActivity(
        process=_process_of(span),
        event=event._replace(runnable_ktime_ns=runnable_ns),
        start_unix_ns=event.start_ktime_ns,
        runnable_unix_ns=runnable_ns,
        end_unix_ns=event.end_ktime_ns,
        reason=read_reason(str(attributes.get(semconv.OTEL_GPU_STALL_REASON, ""))),
        functions=tuple(map(str, attributes.get(semconv.OTEL_GPU_KERNEL_FUNCTIONS) or ())),
        stack=None,
        trace_id=trace_id,
        span_id=b"" if is_waiting else span_id,
        run_queue_span_id=span_id if is_waiting else b"",
        parent_span_id=parent_span_id,
    )


def knows_states(span: ReadableSpan) -> bool:
    """Return whether time without a stall was time on a CPU."""
    # otel_gpu omits a total of 0; in other tools' spans no totals mean that none were measured.
    is_ours = scope_name(span) == semconv.SCOPE_CUDA
    return is_ours or semconv.OTEL_GPU_CALL_BLOCKED_TIME in attributes_of(span)


def scope_name(span: ReadableSpan) -> str:
    """Return the name of a span's instrumentation scope; empty without one."""
    scope = span.instrumentation_scope
    return scope.name if scope is not None else ""


def _process_of(span: ReadableSpan) -> Program:
    attributes = span.resource.attributes
    name = str(attributes.get(SERVICE_NAME, ""))
    return Program(
        pid=_integer(attributes.get(PROCESS_PID)),
        program_ktime_ns=0,
        comm=name,
        start_unix_ns=0,
        attributes=dict(attributes),
    )


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    """Return a span's attributes; without any, an empty mapping."""
    return span.attributes or {}


def _event(kind: type[_Event], span: ReadableSpan, **known: object) -> _Event:
    attributes = attributes_of(span)
    start = span.start_time or 0
    is_slow = not _SLOW_CHOICES.isdisjoint(attributes.get(semconv.OTEL_GPU_CHOICE) or ())
    fields: dict[str, Any] = dict.fromkeys(kind._fields, 0) | known
    fields |= {
        "start_ktime_ns": start,
        "end_ktime_ns": max(start, span.end_time or 0),
        "pid": _integer(span.resource.attributes.get(PROCESS_PID)),
        "choices": wire.CHOICE_SLOW if is_slow else 0,
    }
    fields |= {field: _integer(attributes.get(name)) for field, name in _INTEGERS.items()}
    fields |= {field: str(attributes.get(name) or "") for field, name in _TEXTS.items()}
    return kind(*(fields[name] for name in kind._fields))


def ids_of(span: ReadableSpan) -> tuple[bytes, bytes, bytes]:
    """Return the ids of a span's trace, of itself and of its parent, as bytes."""
    context = span.get_span_context()
    if context is None:
        return b"", b"", b""
    parent = span.parent.span_id.to_bytes(8) if span.parent is not None else b""
    return context.trace_id.to_bytes(16), context.span_id.to_bytes(8), parent


def _api_of(span: ReadableSpan, attribute: str) -> Api:
    name = str(attributes_of(span).get(attribute))
    return _API_BY_NAME.get(name) or Api(
        number=0, name=name, layer=wire.LAYER_RUNTIME, family=wire.FAMILY_OTHER
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _nanoseconds(span: ReadableSpan, attribute: str) -> int:
    seconds = attributes_of(span).get(attribute)
    return round(seconds * _NS_PER_SECOND) if isinstance(seconds, int | float) else 0
