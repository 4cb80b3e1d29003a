"""
A span processor that explains slow CUDA calls, for any Python ``TracerProvider``.

The agent explains what it captures (``explain/``). This processor is for programs that have spans
of CUDA calls with the scheduler's intervals as children: an application that makes them itself, or
a program that forwards the agent's. It reads finished spans, and adds ``gpu.causal_chain`` spans
below the slow calls::

    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporting = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(exporting)
    provider.add_span_processor(CausalChainProcessor(exporting))

It changes and delays no span: chains go to the given processor or exporter, all other spans go
where they went before.
"""

# Some facts about the input
# ---------------------------
# A call is a span of the scope ``otel_gpu.cuda``, or any span with ``gpu.cuda.api``; a gap is a
# ``gpu.launch_gap``. Events inside are ``sched.*`` child spans. Children end before their parent,
# so they are complete when a call ends.
# A CUDA runtime call makes driver calls. Where the outer one is known to be open, the inner one's
# stalls move to it, and only the outer one is explained. It is known when a tracer makes the spans,
# which reports their starts; spans that are only handed over when finished are explained by
# themselves.

import threading

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from otel_gpu import __version__
from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.explain.settings import Settings
from otel_gpu.export import semconv
from otel_gpu.export.otlp.span_limits import SpanSizeLimits
from otel_gpu.export.resources import scope
from otel_gpu.export.spans.causal import chain_spans
from otel_gpu.export.spans.exported import SpanReference
from otel_gpu.export.spans.finished import Origin, readable
from otel_gpu.export.spans.span_activities import attributes_of, ids_of, scope_name
from otel_gpu.export.spans.span_chains import Medians, chain_of
from otel_gpu.limits.recent import Fifo, Recent

_STALLS = frozenset({semconv.SPAN_BLOCKED, semconv.SPAN_RUN_QUEUE_WAIT})
# Calls with stalls that have not ended.
_MAX_OPEN = 4096
_MAX_STALLS_OF_CALL = 64

_Key = tuple[int, int]


class CausalChainProcessor(SpanProcessor):
    """
    Adds causal chains to the spans of CUDA calls. Thread-safe.

    ``destination`` gets the chains; an exporter gets each at once. By default a call is slow if it
    takes three times the median of the latest calls of its kind, and more than 1 ms; a span is
    bounded by the ``OTEL_*_LIMIT`` variables. ``given_up`` counts stalls that were dropped before
    their call ended.
    """

    def __init__(
        self,
        destination: SpanProcessor | SpanExporter,
        settings: Settings | None = None,
        limits: SpanLimits | None = None,
    ) -> None:
        if isinstance(destination, SpanExporter):
            destination = SimpleSpanProcessor(destination)
        self._destination = destination
        self._settings = settings or Settings()
        self._limits = SpanSizeLimits(limits or SpanLimits())
        self._scope = scope(semconv.SCOPE_CAUSAL, __version__)
        self._lock = threading.Lock()
        self._medians = Medians(self._settings)
        # Stalls by the call around them, and calls that have started.
        self._stalls: Recent[_Key, list[ReadableSpan]] = Recent(
            _MAX_OPEN, evict=self._count_given_up
        )
        self._open: Fifo[_Key, None] = Fifo(_MAX_OPEN)
        self.given_up = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - as in the SDK
        """Remember that a call began, so that calls inside it become a part of it."""
        if not _is_call(span):
            return
        context = span.get_span_context()
        with self._lock:
            self._open[context.trace_id, context.span_id] = None

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a stall for its call; explain a call that ended."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        if scope_name(span) == semconv.SCOPE_CAUSAL:
            return
        if span.name in _STALLS:
            if span.parent is not None:
                with self._lock:
                    self._keep((span.parent.trace_id, span.parent.span_id), [span])
        elif _is_call(span) or span.name == semconv.SPAN_LAUNCH_GAP:
            for chain_span in self._explain(span, (context.trace_id, context.span_id)):
                self._destination.on_end(chain_span)

    def shutdown(self) -> None:
        """Shut the destination down."""
        self._destination.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the destination: nothing waits here."""
        return self._destination.force_flush(timeout_millis)

    def _keep(self, key: _Key, stalls: list[ReadableSpan]) -> None:
        kept = self._stalls.use(key)
        if kept is None:
            kept = self._stalls[key] = []
        kept.extend(stalls)
        if len(kept) > _MAX_STALLS_OF_CALL:
            # The short ones explain least.
            kept.sort(key=lambda span: (span.start_time or 0) - (span.end_time or 0))
            self.given_up += len(kept) - _MAX_STALLS_OF_CALL
            del kept[_MAX_STALLS_OF_CALL:]

    def _count_given_up(self, _: _Key, stalls: list[ReadableSpan]) -> None:
        self.given_up += len(stalls)

    def _explain(self, call: ReadableSpan, key: _Key) -> list[ReadableSpan]:
        with self._lock:
            self._open.pop(key, None)
            stalls = self._stalls.pop(key, [])
            usual_ns = self._medians.take(call)
            outer = (call.parent.trace_id, call.parent.span_id) if call.parent else None
            if outer is not None and outer in self._open:
                if stalls:
                    self._keep(outer, stalls)
                return []
        chain = chain_of(call, stalls, usual_ns=usual_ns, settings=self._settings)
        if chain is None:
            return []
        found = {
            span_id: [SpanReference(trace_id, span_id)]
            for trace_id, span_id, _ in map(ids_of, stalls)
        }

        def find_spans(evidence: Evidence, _culprit: Culprit | None) -> list[SpanReference]:
            return found.get(evidence.span_id, [])

        origin = Origin(call.resource, self._scope)
        spans = chain_spans(chain, origin, find_spans=find_spans, describe_place=lambda _: ())
        return [readable(self._limits.apply(span)) for span in spans]


def _is_call(span: ReadableSpan) -> bool:
    if scope_name(span) == semconv.SCOPE_CUDA:
        return span.name not in (semconv.SPAN_OPEN_CALL, semconv.SPAN_LAUNCH_GAP)
    return semconv.GPU_CUDA_API in attributes_of(span)
