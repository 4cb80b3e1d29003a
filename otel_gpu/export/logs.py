"""
Log records as OTLP's wire bytes: stacks that leave beside their spans.

A log record travels under the same headers as a span (a ``ResourceLogs`` has the tags of
a ``ResourceSpans``), so ``encode_request`` puts those around it. The tags of its own:

    LogRecord   09 time, 10 severity number, 1a severity text, 2a body, 32 attributes,
                38 dropped, 45 flags, 4a trace id, 52 span id, 59 observed time, 62 event name
"""

from typing import NamedTuple

from otel_gpu.export.attributes import AttributeEncoder, field, text_field
from otel_gpu.export.encoder import count_field, time_field
from otel_gpu.export.finished import FinishedSpan, Origin, SpanEvent

# The body is there and null, as the standard encoder has it: events are attributes.
_SEVERITY_AND_BODY = b"\x10\x09" + text_field(b"\x1a", "INFO") + b"\x2a\x00"
# Sampled, as its span is.
_FLAGS = b"\x45\x01\x00\x00\x00"


class SpanLog(NamedTuple):
    """A log record, and the span that it belongs to."""

    span: FinishedSpan
    log: SpanEvent

    @property
    def origin(self) -> Origin:
        """Where it comes from: from where its span does."""
        return self.span.origin


class LogEncoder:
    """Encodes log records, remembering what repeats; not safe to share between threads."""

    def __init__(self) -> None:
        self._attributes = AttributeEncoder(b"\x32")

    def encode(self, item: SpanLog) -> bytes:
        """Return a log record as one ``log_records`` field of ``ScopeLogs``."""
        span, log = item
        parts = [
            time_field(b"\x09", log.unix_ns),
            _SEVERITY_AND_BODY,
            self._attributes.encode(log.attributes),
            count_field(b"\x38", log.dropped_attributes),
            _FLAGS,
            b"\x4a\x10",
            span.trace_id,
            b"\x52\x08",
            span.span_id,
            # A replay gives the same bytes each time, so no clock is asked.
            time_field(b"\x59", log.unix_ns),
            text_field(b"\x62", log.name),
        ]
        return field(b"\x12", b"".join(parts))
