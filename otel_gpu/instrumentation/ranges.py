"""
Spans of ranges that a program marks for profilers.

Names and nesting are the program's. A pushed range is never made current, because its pop need not
match the nesting of OpenTelemetry's contexts. Readers of the thread context still see it.
"""

import threading
import time
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer

from otel_gpu.export.semconv import METRIC_OTEL_GPU_SPANS_DROPPED, REASON
from otel_gpu.instrumentation.published import publish_span, published_context
from otel_gpu.instrumentation.rate import Rate

DOMAIN: Final = "gpu.nvtx.domain"
RATE_LIMITED: Final = "rate"

_MAX_NAME_CHARACTERS: Final = 256
# Deeper ranges have no spans; unpopped ranges count too.
_MAX_DEPTH: Final = 64


class Ranges:
    """
    The ranges of all threads.

    Args:
        tracer: Makes a span of each range within its thread's rate.
        meter: Counts ranges without a span.
    """

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._left_out = meter.create_counter(
            METRIC_OTEL_GPU_SPANS_DROPPED.name,
            METRIC_OTEL_GPU_SPANS_DROPPED.unit,
            "Ranges that have no span, as there were too many",
        )
        self._threads = _Threads()

    def push(self, name: object, domain: str | None) -> None:
        """Begin a range inside this thread's open ranges."""
        pushed = self._threads.pushed.setdefault(domain, [])
        if len(pushed) >= _MAX_DEPTH:
            self._threads.deeper[domain] = self._threads.deeper.get(domain, 0) + 1
            self._left_out.add(1, {REASON: "depth"})
            return
        span = self.start(name, domain)
        pushed.append(span)
        if span is not None:
            publish_span(span, (domain, len(pushed)))

    def pop(self, domain: str | None) -> None:
        """End the last pushed range of a domain, if there is one."""
        deeper = self._threads.deeper.get(domain, 0)
        if deeper:
            self._threads.deeper[domain] = deeper - 1
            return
        pushed = self._threads.pushed.get(domain)
        if not pushed:
            return
        span = pushed.pop()
        if span is not None:
            publish_span(None, (domain, len(pushed) + 1))
            span.end()

    def start(self, name: object, domain: str | None) -> Span | None:
        """Begin a range that any thread can end. None: it has no span, because of the rate."""
        if not self._threads.rate.allows(time.time_ns()):
            self._left_out.add(1, {REASON: RATE_LIMITED})
            return None
        return self._tracer.start_span(
            name[:_MAX_NAME_CHARACTERS] if isinstance(name, str) and name else "range",
            context=_parent(),
            attributes=None if domain is None else {DOMAIN: domain},
        )


class _Threads(threading.local):
    def __init__(self) -> None:
        self.pushed: dict[str | None, list[Span | None]] = {}
        self.deeper: dict[str | None, int] = {}
        self.rate = Rate()


def _parent() -> Context | None:
    # The published span is the innermost one; without it, OpenTelemetry uses its current span.
    context = published_context()
    identity = None if context is None else context.innermost()
    if identity is None:
        return None
    trace_id, span_id, flags = identity
    found = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags))
    return trace.set_span_in_context(NonRecordingSpan(found))
