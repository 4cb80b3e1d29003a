"""
Spans and log records in OTLP's wire format, without protobuf objects in between.

The standard encoder makes a Python object of every attribute and takes 30 to 45 µs a span. This one
joins byte strings that are mostly cached. A property test checks that its output is the same, byte
for byte. ``attribute_encoder`` describes protobuf's wire format; the tags here:

    request        0a ResourceSpans
    ResourceSpans  0a Resource, 12 ScopeSpans, 1a schema URL
    ScopeSpans     0a scope, 12 Span, 1a schema URL
    Span           0a trace id, 12 span id, 1a trace state, 22 parent, 2a name,
                   30 kind, 39 start, 41 end, 4a attributes, 50 dropped, 5a events,
                   60 dropped, 6a links, 70 dropped, 7a status, 85 01 flags
    Event          09 time, 12 name, 1a attributes, 20 dropped
    Link           0a trace id, 12 span id, 22 attributes, 28 dropped, 35 flags
    Status         12 message, 18 code
    LogRecord      09 time, 10 severity number, 1a severity text, 2a body, 32 attributes,
                   38 dropped, 45 flags, 4a trace id, 52 span id, 59 observed time, 62 event name

A log record travels under the same headers as a span: ``ResourceLogs`` has the same tags.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.otlp.attribute_encoder import AttributeEncoder, field, text_field, varint
from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.spans.finished import STATUS_UNSET, FinishedSpan, Origin, SpanEvent, SpanLink
from otel_gpu.limits.caches import remembered

# Severities, by their numbers in OTLP.
INFO, WARN, ERROR = 9, 13, 17

# Of Resources and scopes. A process's Resource is several kilobytes, needed while it lives.
_MAX_HEADERS = 256
# Bit 8: whether the parent is remote is known, and it is not.
_LOCAL_FLAGS = b"\x00\x01\x00\x00"
_SPAN_FLAGS = b"\x85\x01"
_LINK_FLAGS = b"\x35"
# Most spans end after their attributes: the fields that can follow, and their usual bytes.
_PLAIN, _LOGS = map(FinishedSpan._fields.index, ("status_code", "logs"))
_NOTHING_ELSE = (STATUS_UNSET, "", (), (), 0, 0, 0)
_PLAIN_END = b"\x7a\x00" + _SPAN_FLAGS + _LOCAL_FLAGS
# Of log records. The body is null, as in the standard encoder: events are attributes. The flags:
# sampled, as its span is.
_SEVERITIES_AND_BODY = {
    number: b"\x10" + varint(number) + text_field(b"\x1a", name) + b"\x2a\x00"
    for number, name in ((INFO, "INFO"), (WARN, "WARN"), (ERROR, "ERROR"))
}
_LOG_FLAGS = b"\x45\x01\x00\x00\x00"

_pack_times = Struct("<BQBQ").pack
_pack_time = Struct("<Q").pack


class SpanEncoder:
    """Encodes spans with caches; not safe between threads."""

    def __init__(self) -> None:
        self._span_attributes = AttributeEncoder(b"\x4a")
        self._event_attributes = AttributeEncoder(b"\x1a")
        self._link_attributes = AttributeEncoder(b"\x22")
        self._heads: dict[str, bytes] = {}

    def encode(self, span: FinishedSpan) -> bytes:
        """Return a finished span as one ``spans`` field of ``ScopeSpans``."""
        _, trace_id, span_id, parent_id, name, start_unix_ns, end_unix_ns, attributes = span[:8]
        parts = [
            b"\x0a\x10",
            trace_id,
            b"\x12\x08",
            span_id,
            b"\x22\x08" if parent_id else b"",
            parent_id,
            self._heads.get(name) or self._head(name),
            _pack_times(0x39, start_unix_ns, 0x41, end_unix_ns)
            if start_unix_ns and end_unix_ns
            else _time(b"\x39", start_unix_ns) + _time(b"\x41", end_unix_ns),
            self._span_attributes.encode(attributes),
        ]
        if span[_PLAIN:_LOGS] == _NOTHING_ELSE:
            parts.append(_PLAIN_END)
        else:
            parts += self._rest(span)
        body = b"".join(parts)
        return b"\x12" + varint(len(body)) + body

    def _head(self, name: str) -> bytes:
        if len(self._heads) >= _MAX_HEADERS:
            self._heads.clear()
        head = self._heads[name] = text_field(b"\x2a", name) + b"\x30\x01"
        return head

    def _rest(self, span: FinishedSpan) -> list[bytes]:
        return [
            _count(b"\x50", span.dropped_attributes),
            *map(self._event, span.events),
            _count(b"\x60", span.dropped_events),
            *map(self._link, span.links),
            _count(b"\x70", span.dropped_links),
            _status(span.status_code, span.status_message),
            _SPAN_FLAGS + _LOCAL_FLAGS,
        ]

    def _event(self, event: SpanEvent) -> bytes:
        parts = [
            _time(b"\x09", event.unix_ns),
            text_field(b"\x12", event.name),
            self._event_attributes.encode(event.attributes),
            _count(b"\x20", event.dropped_attributes),
        ]
        return field(b"\x5a", b"".join(parts))

    def _link(self, link: SpanLink) -> bytes:
        parts = [
            field(b"\x0a", link.trace_id),
            field(b"\x12", link.span_id),
            self._link_attributes.encode(link.attributes),
            _count(b"\x28", link.dropped_attributes),
            _LINK_FLAGS + _LOCAL_FLAGS,
        ]
        return field(b"\x6a", b"".join(parts))


@remembered("span_headers", _MAX_HEADERS, 200)
def _status(code: int, message: str) -> bytes:
    return field(b"\x7a", text_field(b"\x12", message) + _count(b"\x18", code))


class SpanLog(NamedTuple):
    """A log record, its origin, and the ids of its span, empty without one."""

    origin: Origin
    trace_id: bytes
    span_id: bytes
    log: SpanEvent
    severity: int = INFO


class LogEncoder:
    """Encodes log records with caches; not safe between threads."""

    def __init__(self) -> None:
        self._attributes = AttributeEncoder(b"\x32")

    def encode(self, item: SpanLog) -> bytes:
        """Return a log record as one ``log_records`` field of ``ScopeLogs``."""
        _, trace_id, span_id, log, severity = item
        span = _LOG_FLAGS + field(b"\x4a", trace_id) + field(b"\x52", span_id) if trace_id else b""
        parts = [
            _time(b"\x09", log.unix_ns),
            _SEVERITIES_AND_BODY[severity],
            self._attributes.encode(log.attributes),
            _count(b"\x38", log.dropped_attributes),
            span,
            # A replay gives the same bytes each time, so no clock is read.
            _time(b"\x59", log.unix_ns),
            text_field(b"\x62", log.name),
        ]
        return field(b"\x12", b"".join(parts))


def encode_request(batch: Iterable[QueuedItem]) -> bytes:
    """Return a request of encoded spans or log records, grouped by Resource and scope."""
    by_origin: dict[Origin, list[bytes]] = {}
    for origin, _, data in batch:
        group = by_origin.get(origin)
        if group is None:
            group = by_origin[origin] = []
        group.append(data)
    by_resource: dict[Resource, dict[InstrumentationScope, list[bytes]]] = {}
    for origin, group in by_origin.items():
        by_scope = by_resource.setdefault(origin.resource, {})
        by_scope.setdefault(origin.scope, []).extend(group)
    # Joined once, at the end: a request is megabytes.
    request: list[bytes] = []
    for resource, by_scope in by_resource.items():
        head, tail = _resource(resource)
        parts = [head]
        for scope, group in by_scope.items():
            scope_head, scope_tail = _scope(scope)
            _add_message(parts, b"\x12", [scope_head, *group, scope_tail])
        parts.append(tail)
        _add_message(request, b"\x0a", parts)
    return b"".join(request)


def header_size(origin: Origin) -> int:
    """Return the bytes that the first span of an origin adds to a request."""
    lengths_and_tags = 16
    headers = (*_resource(origin.resource), *_scope(origin.scope))
    return sum(map(len, headers)) + lengths_and_tags


@remembered("span_headers", _MAX_HEADERS, 1500)
def _resource(resource: Resource) -> tuple[bytes, bytes]:
    attributes = AttributeEncoder(b"\x0a").encode((resource.attributes or {}).items())
    return field(b"\x0a", attributes), text_field(b"\x1a", resource.schema_url)


@remembered("span_headers", _MAX_HEADERS, 200)
def _scope(scope: InstrumentationScope) -> tuple[bytes, bytes]:
    body = (
        text_field(b"\x0a", scope.name)
        + text_field(b"\x12", scope.version or "")
        + AttributeEncoder(b"\x1a").encode((scope.attributes or {}).items())
    )
    return field(b"\x0a", body), text_field(b"\x1a", scope.schema_url or "")


def _add_message(parts: list[bytes], tag: bytes, body: list[bytes]) -> None:
    parts.append(tag + varint(sum(map(len, body))))
    parts += body


def _time(tag: bytes, unix_ns: int) -> bytes:
    return tag + _pack_time(unix_ns) if unix_ns else b""


def _count(tag: bytes, count: int) -> bytes:
    return tag + varint(count) if count else b""
