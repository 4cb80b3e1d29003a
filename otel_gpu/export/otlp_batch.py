"""A batch of spans as the bytes of an OTLP request, whichever kind the spans are of."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan

from otel_gpu.export.encoder import RequestEncoder, encode_spans
from otel_gpu.export.queue import Pending

Spans = Sequence[Pending] | Sequence[ReadableSpan]


def encode_batch(encoder: RequestEncoder, spans: Spans) -> bytes:
    """Return the request of a batch: of encoded spans, or of the SDK's."""
    if spans and isinstance(spans[0], ReadableSpan):
        return encode_spans(spans)  # type: ignore[arg-type]  # all are what the first is
    return encoder.encode((span.origin, span.content) for span in spans)  # type: ignore[union-attr,misc]
