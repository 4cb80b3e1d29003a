"""
The span as it is kept until it is sent.

The SDK's own span takes about 19 µs to make and 3.7 kB to keep. This one is a tuple, made when the
activity is seen and never changed; third-party exporters get it as the ``ReadableSpan`` that they
know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_gpu.enrich.identity.identities import Program

Scalar = str | bool | int | float | bytes
AttributeValue = Scalar | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]
Attributes = tuple[tuple[str, AttributeValue], ...]


class SharedAttributes(tuple[tuple[str, AttributeValue], ...]):  # noqa: SLOT001 -- it has one
    """Attributes that many spans share; ``wire`` caches their encodings, by tag."""

    wire: dict[bytes, bytes]

    def __new__(cls, pairs: Attributes) -> Self:
        """Copy attributes into an object that keeps encodings."""
        shared = super().__new__(cls, pairs)
        shared.wire = {}
        return shared


_Item = TypeVar("_Item")

STATUS_UNSET = 0
STATUS_ERROR = 2


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """
    Origin of spans that share one header; compared by identity.

    ``process`` is their program; None: the agent, or not known.
    """

    resource: Resource
    scope: InstrumentationScope
    process: Program | None = None


class SpanEvent(NamedTuple):
    """An event inside a span."""

    name: str
    unix_ns: int
    attributes: Attributes = ()
    dropped_attributes: int = 0


class SpanLink(NamedTuple):
    """A reference to another span."""

    trace_id: bytes
    span_id: bytes
    attributes: Attributes = ()
    dropped_attributes: int = 0


class FinishedSpan(NamedTuple):
    """
    A span that does not change any more; its kind is always INTERNAL.

    ``parent_span_id`` is empty for a root, and ``dropped_…`` counts items removed by span limits.
    ``logs`` are exported as log records beside the span. ``tid`` is the thread that it is about; 0:
    none.
    """

    origin: Origin
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    name: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: Attributes
    status_code: int = STATUS_UNSET
    status_message: str = ""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0
    logs: tuple[SpanEvent, ...] = ()
    tid: int = 0


def readable(span: FinishedSpan) -> ReadableSpan:
    """Return the same span as the SDK's type, for third-party exporters."""
    parent = span.parent_span_id
    events = [Event(event.name, _bounded(event), event.unix_ns) for event in span.events]
    links = [Link(_context(link.trace_id, link.span_id), _bounded(link)) for link in span.links]
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, parent) if parent else None,
        resource=span.origin.resource,
        attributes=_bounded(span),
        events=_bounded_list(events, span.dropped_events),
        links=_bounded_list(links, span.dropped_links),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode(span.status_code), span.status_message or None),
        start_time=span.start_unix_ns,
        end_time=span.end_unix_ns,
        instrumentation_scope=span.origin.scope,
    )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    ids = int.from_bytes(trace_id), int.from_bytes(span_id)
    return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _bounded(item: FinishedSpan | SpanEvent | SpanLink) -> BoundedAttributes:
    bounded = BoundedAttributes(attributes=dict(item.attributes))
    bounded.dropped = item.dropped_attributes
    return bounded


def _bounded_list(items: Sequence[_Item], dropped: int) -> Sequence[_Item]:
    bounded: BoundedList[_Item] = BoundedList(len(items))
    bounded.extend(items)
    bounded.dropped = dropped
    return bounded
