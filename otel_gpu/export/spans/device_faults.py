"""Device errors: spans of the processes that had work there, log records of all."""

from otel_gpu.enrich.activities import DeviceFaultActivity
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.explain.kinds import Severity
from otel_gpu.export import semconv
from otel_gpu.export.otlp.span_encoder import ERROR, INFO, WARN
from otel_gpu.export.spans.descriptions import Pairs
from otel_gpu.export.spans.finished import STATUS_ERROR, Attributes, FinishedSpan, Origin, SpanEvent
from otel_gpu.formatting.printable import printable

SEVERITIES = {Severity.HIGH: ERROR, Severity.MEDIUM: WARN, Severity.LOW: INFO}
"""Severities of log records, by the error's severity."""


def fault_span(activity: DeviceFaultActivity, origin: Origin) -> FinishedSpan:
    """Return the span of an error, at the time when the log line was read."""
    xid = activity.event.xid
    return FinishedSpan(
        origin=origin,
        trace_id=activity.trace_id,
        span_id=activity.span_id,
        parent_span_id=activity.parent_span_id,
        name=semconv.SPAN_DEVICE_FAULT,
        start_unix_ns=activity.unix_ns,
        end_unix_ns=activity.unix_ns,
        attributes=describe_device_fault(activity),
        status_code=STATUS_ERROR,
        status_message=f"XID {xid}: {meaning_of(xid).meaning}",
    )


def fault_log(activity: DeviceFaultActivity, uuid: str) -> SpanEvent:
    """
    Return the log record of an error.

    Args:
        activity: The error.
        uuid: Of the device, without ``GPU-``; empty: not known.
    """
    pairs = describe_device_fault(activity)
    if uuid:
        pairs += ((semconv.HW_ID, f"GPU-{uuid}"), (semconv.CUDA_DEVICE_UUID, uuid))
    return SpanEvent(semconv.LOG_DEVICE_FAULT, activity.unix_ns, pairs)


def describe_device_fault(activity: DeviceFaultActivity) -> Attributes:
    """Return the attributes of an error; for an unwatched process they include pid and name."""
    event = activity.event
    meaning = meaning_of(event.xid)
    pairs: Pairs = [
        (semconv.GPU_XID, event.xid),
        (semconv.GPU_XID_MEANING, meaning.meaning),
        (semconv.OTEL_GPU_SEVERITY, str(meaning.severity)),
        (semconv.OTEL_GPU_ADVICE, (meaning.advice,)),
        (semconv.GPU_BUS_ID, event.bus_id),
        (semconv.GPU_FAULT_COUNT, event.times),
        (semconv.GPU_FAULT_SOURCE, event.reported_by),
    ]
    if event.message:
        pairs.append((semconv.GPU_FAULT_MESSAGE, printable(event.message)))
    if activity.process is None and event.reported_pid:
        pairs.append((semconv.GPU_FAULT_PID, event.reported_pid))
        pairs.append((semconv.GPU_FAULT_PROCESS_NAME, printable(event.reported_name)))
    return tuple(pairs)
