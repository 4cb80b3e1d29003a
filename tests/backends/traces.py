"""Traces in OTLP: what a replay sends, copies of it, and how to send them."""

import random
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.backends.conftest import send
from tests.receiver import OtlpReceiver

# Well below what a receiver takes in one request.
SPANS_PER_REQUEST = 1000


class SentSpan(NamedTuple):
    """A span, and whose and which scope's it is."""

    resource: Resource
    scope: InstrumentationScope
    span: Span


Trace = Sequence[SentSpan]


def traces_of(recording: Path) -> dict[bytes, list[SentSpan]]:
    """The traces that a replay of this recording sends, by their ids; the span without parent first."""
    traces: dict[bytes, list[SentSpan]] = {}
    with OtlpReceiver() as receiver:
        send(recording, receiver.grpc_endpoint)
        for request in receiver.requests("traces"):
            for resource_spans in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                for scope_spans in resource_spans.scope_spans:
                    for span in scope_spans.spans:
                        sent = SentSpan(resource_spans.resource, scope_spans.scope, span)
                        traces.setdefault(span.trace_id, []).append(sent)
    for trace in traces.values():
        trace.sort(key=lambda sent: sent.span.parent_span_id != b"")
    return traces


def copies_of(trace: Trace, count: int, seed: int) -> list[list[SentSpan]]:
    """The same trace so many times, each with ids of its own."""
    ids = random.Random(seed)  # noqa: S311 -- the same each time
    copies = []
    for _ in range(count):
        trace_id = ids.randbytes(16)
        span_ids = {sent.span.span_id: ids.randbytes(8) for sent in trace}
        copy = []
        for sent in trace:
            span = Span()
            span.CopyFrom(sent.span)
            span.trace_id, span.span_id = trace_id, span_ids[span.span_id]
            span.parent_span_id = span_ids.get(span.parent_span_id, b"")
            copy.append(sent._replace(span=span))
        copies.append(copy)
    return copies


def post(spans: Iterable[SentSpan], http_endpoint: str) -> None:
    """Send spans over OTLP/HTTP, in their order, and demand that they are taken."""
    waiting = list(spans)
    while waiting:
        request = ExportTraceServiceRequest()
        for sent in waiting[:SPANS_PER_REQUEST]:
            resource_spans = request.resource_spans.add(resource=sent.resource)
            resource_spans.scope_spans.add(scope=sent.scope, spans=[sent.span])
        del waiting[:SPANS_PER_REQUEST]
        message = urllib.request.Request(  # noqa: S310 -- loopback
            f"{http_endpoint}/v1/traces",
            request.SerializeToString(),
            {"Content-Type": "application/x-protobuf"},
        )
        with urllib.request.urlopen(message, timeout=30) as answer:  # noqa: S310 -- as above
            taken = ExportTraceServiceResponse.FromString(answer.read())
            assert taken.partial_success.rejected_spans == 0
