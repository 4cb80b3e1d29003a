"""A batch as the bytes of an OTLP request, and what the answer to it says."""

from collections.abc import Sequence
from typing import Any

from otel_gpu.export.encoder import RequestEncoder
from otel_gpu.export.queue import Pending


def encode_batch(encoder: RequestEncoder, batch: Sequence[Pending]) -> bytes:
    """Return the request of a batch of encoded spans, or of encoded log records."""
    return encoder.encode((item.origin, item.content) for item in batch)  # type: ignore[misc] # bytes


def count_rejected(response: Any) -> int:  # noqa: ANN401 -- generated code, of either service
    """Return how many items of a batch a receiver that took it did not want."""
    told = response.partial_success
    # Each service has a name of its own for its items.
    rejected = getattr(told, "rejected_spans", None)
    return int(told.rejected_log_records if rejected is None else rejected)
