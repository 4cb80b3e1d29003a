"""Steps of an inference engine, as spans and as a histogram."""

import functools
import sys
import time
from typing import Final, NamedTuple

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, Span, Status, StatusCode

from otel_gpu import __version__, wire
from otel_gpu.instrumentation.context import Identity
from otel_gpu.instrumentation.engines.batch import EngineBatch
from otel_gpu.instrumentation.marks import mark_step, prepare_marks
from otel_gpu.instrumentation.published import identity_of, publish_context

SCOPE: Final = "otel_gpu.engines"
STEP: Final = "gpu.inference.step"
STEP_DURATION: Final = "gpu.inference.step.duration"
STEP_NUMBER: Final = "gpu.inference.step.number"
ENGINE: Final = "gpu.inference.engine"
PHASE: Final = "gpu.inference.batch.phase"
REQUESTS: Final = "gpu.inference.batch.requests"
SIZE: Final = "gpu.inference.batch.size"
PREFILL: Final = "gpu.inference.batch.prefill_tokens"
DECODE: Final = "gpu.inference.batch.decode_tokens"
LINKS_LEFT_OUT: Final = "gpu.inference.batch.links.left_out"
TOKEN_SHARE: Final = "otel_gpu.batch.token_share"  # noqa: S105 - tokens of text
SHARES_ESTIMATED: Final = "otel_gpu.batch.shares.estimated"

# A mixed batch has no kind.
_KINDS: Final = {"prefill": wire.STEP_PREFILL, "decode": wire.STEP_DECODE}
_ERROR_TYPE: Final = "error.type"
_NS_PER_S: Final = 1_000_000_000


class InferenceStep(NamedTuple):
    """
    A running step.

    Threads in it publish ``identity``. ``labels`` are the attributes of its histogram. ``began_ns``
    is Unix time.
    """

    span: Span
    identity: Identity
    began_ns: int
    labels: dict[str, str]
    number: int


class InferenceSteps:
    """
    Makes spans of the steps of one kind of engine in this process, if the process has an SDK.

    Args:
        engine: Its name in spans.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        # These proxies work before a provider is set.
        self._tracer = trace.get_tracer(SCOPE, __version__)
        self._durations = metrics.get_meter(SCOPE, __version__).create_histogram(
            STEP_DURATION, "s", "From when a batch was begun to when its results were there"
        )

    def begin(self, number: int, began_ns: int) -> InferenceStep | None:
        """Begin a step, numbered from 1, at a Unix time. None: this process has no SDK."""
        if not is_wanted():
            return None
        labels = {ENGINE: self._engine}
        span = self._tracer.start_span(
            STEP,
            context=Context(),  # requests have parents, a batch has none
            start_time=began_ns,
            attributes={**labels, STEP_NUMBER: number},
        )
        identity = identity_of(span)
        if identity is None:
            return None
        publish_context()
        prepare_marks()
        return InferenceStep(span, identity, began_ns=began_ns, labels=labels, number=number)

    def describe(self, step: InferenceStep, batch: EngineBatch) -> None:
        """
        Add the batch of a step to its span.

        A hundred links take half a millisecond: call it while the device is busy.
        """
        step.labels[PHASE] = batch.phase
        span = step.span
        if not span.is_recording():
            return
        requests = batch.linked(_link_limit())
        for context, share in requests:
            span.add_link(context, {TOKEN_SHARE: share})
        # The provider can have a lower limit.
        left_out = batch.known - len(getattr(span, "links", requests))
        span.set_attributes(
            {
                PHASE: batch.phase,
                REQUESTS: len(batch.requests),
                SIZE: batch.prefill_tokens + batch.decode_tokens,
                PREFILL: batch.prefill_tokens,
                DECODE: batch.decode_tokens,
                **({SHARES_ESTIMATED: True} if requests else {}),
                **({LINKS_LEFT_OUT: left_out} if left_out else {}),
            }
        )

    def end(
        self, step: InferenceStep, error: BaseException | None = None, now_ns: int | None = None
    ) -> None:
        """End a step, now or at a Unix time. ``error`` is what the engine raised in it."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        labels = step.labels
        if error is not None:
            kind = type(error).__qualname__
            labels[_ERROR_TYPE] = kind
            step.span.set_attribute(_ERROR_TYPE, kind)
            step.span.set_status(Status(StatusCode.ERROR))
        self._durations.record((now_ns - step.began_ns) / _NS_PER_S, labels)
        step.span.end(now_ns)
        # The engine's times are Unix time.
        end_ktime_ns = time.monotonic_ns() - max(time.time_ns() - now_ns, 0)
        mark_step(
            step.number,
            end_ktime_ns - (now_ns - step.began_ns),
            end_ktime_ns,
            identity=step.identity,
            kind=_KINDS.get(labels.get(PHASE, ""), wire.STEP_UNKNOWN),
            name=self._engine,
        )


def is_wanted() -> bool:
    """Return whether this process has an SDK."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@functools.cache
def _link_limit() -> int:
    from opentelemetry.sdk.trace import SpanLimits  # noqa: PLC0415 - only processes with an SDK need it

    limit = SpanLimits().max_links
    return sys.maxsize if limit is None else limit
