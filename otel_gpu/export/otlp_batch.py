"""A batch as the bytes of an OTLP request, and what the answer to it says."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_gpu.export.encoder import RequestEncoder, encode_spans
from otel_gpu.export.queue import Pending

Spans = Sequence[Pending] | Sequence[ReadableSpan]


def encode_batch(encoder: RequestEncoder, spans: Spans) -> bytes:
    """Return the request of a batch: of encoded spans, or of the SDK's."""
    if spans and isinstance(spans[0], ReadableSpan):
        return encode_spans(spans)  # type: ignore[arg-type]  # all are what the first is
    return encoder.encode((span.origin, span.content) for span in spans)  # type: ignore[union-attr,misc]


def count_rejected(response: Any) -> int:  # noqa: ANN401 -- generated code, of either service
    """Return how many items of a batch a receiver that took it did not want."""
    told = response.partial_success
    # Each service has a name of its own for its items.
    rejected = getattr(told, "rejected_spans", None)
    return int(told.rejected_log_records if rejected is None else rejected)
