"""Signals: how each kind of telemetry becomes requests."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.span_encoder import LogEncoder, SpanEncoder, encode_request


class Signal(NamedTuple):
    """
    One kind of telemetry.

    Attributes:
        name: Its part of the names of environment variables.
        items: The operators' word for one item.
        service: The gRPC service, without the common prefix.
        request: The message of a batch.
        response: The message of a receiver's answer.
        rejected: The field of the answer that counts rejected items.
        open_encoder: Returns a function that encodes an item.
        join: Joins encoded items into a request.
        most_items: Items of one request. Some receivers handle a request as one unit of work.
    """

    name: str
    items: str
    service: str
    request: type[Message]
    response: type[Message]
    rejected: str
    open_encoder: Callable[[], Callable[[Any], bytes]]
    join: Callable[[Iterable[QueuedItem]], bytes] = encode_request
    most_items: int = 8192

    def count_rejected(self, response: Any) -> int:  # noqa: ANN401 -- generated code
        """Return how many items of an accepted batch the receiver rejected; never below 0."""
        return max(0, int(getattr(response.partial_success, self.rejected)))


SPANS = Signal(
    name="TRACES",
    items="span",
    service="trace.v1.TraceService",
    request=trace_service_pb2.ExportTraceServiceRequest,
    response=trace_service_pb2.ExportTraceServiceResponse,
    rejected="rejected_spans",
    open_encoder=lambda: SpanEncoder().encode,
)
LOGS = Signal(
    name="LOGS",
    items="log",
    service="logs.v1.LogsService",
    request=logs_service_pb2.ExportLogsServiceRequest,
    response=logs_service_pb2.ExportLogsServiceResponse,
    rejected="rejected_log_records",
    open_encoder=lambda: LogEncoder().encode,
)
