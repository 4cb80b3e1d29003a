"""
A real OTLP receiver inside the test process: gRPC and HTTP/protobuf on loopback.

It keeps every request as it came and decodes with the reference protobuf classes,
so a test sees what any backend would see. Ports are ephemeral and survive a restart:
after ``stop()`` and ``start()`` the same endpoint is back, as a receiver's would be.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.otlp_servers import LOOPBACK, GrpcServer, HttpServer, Request

# gRPC's own default, which every collector has unless it was configured otherwise.
DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# How long tests wait for what has to happen. It bounds a hang, and proves nothing about speed.
WAIT_TIMEOUT_S = 120.0


class ReceivedSpan(NamedTuple):
    """A span with what surrounded it."""

    resource: Mapping[str, Any]
    scope: str
    span: Span

    @property
    def attributes(self) -> dict[str, Any]:
        """The span's own attributes as Python values."""
        return attributes_of(self.span.attributes)


class MetricKey(NamedTuple):
    """Identifies a series: who, which metric, which attributes."""

    service: str
    pid: int | None
    name: str
    attributes: frozenset[tuple[str, Any]]

    def attribute(self, name: str) -> Any:
        """Return the value of one attribute; None when it is absent."""
        return dict(self.attributes).get(name)


class MetricPoint(NamedTuple):
    """
    The latest point of a series.

    ``point`` is the protobuf data point: number, histogram or exponential histogram.
    """

    resource: Mapping[str, Any]
    scope: str
    metric: Metric
    point: Any


def value_of(value: AnyValue) -> Any:
    """Return an ``AnyValue`` as the Python value it stands for."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return tuple(value_of(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return OTLP key-value pairs as a dictionary."""
    return {pair.key: value_of(pair.value) for pair in pairs}


class OtlpReceiver:
    """
    Receives OTLP over gRPC and HTTP until the ``with`` block ends.

    ``stop()`` closes both ports, so clients see a refused connection; ``start()``
    opens the same ports again. ``pause()`` accepts requests and leaves them without
    an answer until ``resume()``. ``refuse(True)`` answers "unavailable" (503).

    Attributes:
        reject_spans: How many spans each answer claims to have rejected
            (OTLP's partial success); of an answer to logs or profiles, how many of those.
    """

    def __init__(self, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self.reject_spans = 0
        self._max_message_bytes = max_message_bytes
        self._arrived = threading.Condition()
        self._requests: list[Request] = []
        self._span_cache: list[ReceivedSpan] = []
        self._metric_cache: dict[MetricKey, MetricPoint] = {}
        self._point_cache: list[tuple[MetricKey, MetricPoint]] = []
        self._decoded = 0
        self._decode_lock = threading.Lock()
        self._answering = threading.Event()
        self._answering.set()
        self._refusing = False
        self._grpc_port = 0
        self._http_port = 0
        self._grpc_server: GrpcServer | None = None
        self._http_server: HttpServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Where to send.

    @property
    def grpc_endpoint(self) -> str:
        """The URL for ``OTEL_EXPORTER_OTLP_ENDPOINT`` with protocol ``grpc``."""
        return f"http://{LOOPBACK}:{self._grpc_port}"

    @property
    def http_endpoint(self) -> str:
        """The base URL for protocol ``http/protobuf``; ``/v1/…`` comes after it."""
        return f"http://{LOOPBACK}:{self._http_port}"

    # Availability.

    def start(self) -> None:
        """Open the ports; the same ones again after a ``stop()``."""
        if self._grpc_server is not None:
            return
        self._answering.set()
        self._grpc_server = GrpcServer(
            self._grpc_port, self._answer, max_message_bytes=self._max_message_bytes
        )
        self._grpc_port = self._grpc_server.port
        self._http_server = HttpServer(self._http_port, self._answer)
        self._http_port = self._http_server.port

    def stop(self) -> None:
        """Close both ports; open connections end."""
        self._answering.set()
        if self._grpc_server is not None:
            self._grpc_server.close()
            self._grpc_server = None
        if self._http_server is not None:
            self._http_server.close()
            self._http_server = None

    def pause(self) -> None:
        """Keep requests waiting for their answer until ``resume()``."""
        self._answering.clear()

    def resume(self) -> None:
        """Answer again."""
        self._answering.set()

    def refuse(self, refusing: bool) -> None:
        """Answer every request with "unavailable", which clients may retry."""
        self._refusing = refusing

    # What came.

    def requests(self, signal: str | None = None) -> Sequence[Request]:
        """Return the requests so far, oldest first; of one signal when named."""
        with self._arrived:
            return [r for r in self._requests if signal in (None, r.signal)]

    def spans(self) -> Sequence[ReceivedSpan]:
        """Return all spans so far in order of arrival."""
        with self._decode_lock:
            self._decode()
            return list(self._span_cache)

    def metrics(self) -> Mapping[MetricKey, MetricPoint]:
        """Return the latest point of every series."""
        with self._decode_lock:
            self._decode()
            return dict(self._metric_cache)

    def points(self) -> Sequence[tuple[MetricKey, MetricPoint]]:
        """Return every point of every series so far, in order of arrival."""
        with self._decode_lock:
            self._decode()
            return list(self._point_cache)

    def take(self) -> Sequence[tuple[MetricKey, MetricPoint]]:
        """Return every point since the last time, and forget all that was received, spans too."""
        with self._decode_lock:
            self._decode()
            points = list(self._point_cache)
            with self._arrived:
                del self._requests[: self._decoded]
                self._decoded = 0
            for cache in (self._span_cache, self._metric_cache, self._point_cache):
                cache.clear()
        return points

    def clear(self) -> None:
        """Forget everything received."""
        with self._decode_lock, self._arrived:
            self._requests.clear()
            self._span_cache.clear()
            self._metric_cache.clear()
            self._point_cache.clear()
            self._decoded = 0

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = WAIT_TIMEOUT_S) -> Any:
        """
        Return the condition's first truthy value.

        It is evaluated now and whenever a request has arrived.

        Raises:
            TimeoutError: It stayed falsy; says what had been received by then.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._arrived:
                seen = len(self._requests)
            if result := condition():
                return result
            with self._arrived:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    break
                # Conditions may also look at other things, so wake now and then.
                self._arrived.wait_for(
                    lambda seen=seen: len(self._requests) != seen, min(remaining_s, 0.1)
                )
        message = f"condition not met in {timeout_s} s; received {self.describe()}"
        raise TimeoutError(message)

    def describe(self) -> str:
        """Say in one line what has been received, for failure messages."""
        spans = sorted({s.span.name for s in self.spans()})
        metrics = sorted({key.name for key in self.metrics()})
        return (
            f"{len(self.requests())} requests, {len(self.spans())} spans {spans}, metrics {metrics}"
        )

    def _answer(self, request: Request) -> bytes | None:
        self._answering.wait()
        if self._refusing:
            return None
        with self._arrived:
            self._requests.append(request)
            self._arrived.notify_all()
        if request.signal == "metrics":
            return ExportMetricsServiceResponse().SerializeToString()
        if request.signal == "logs":
            answer = ExportLogsServiceResponse()
            if self.reject_spans:
                answer.partial_success.rejected_log_records = self.reject_spans
            return answer.SerializeToString()
        if request.signal == "profiles":
            profiles = ExportProfilesServiceResponse()
            if self.reject_spans:
                profiles.partial_success.rejected_profiles = self.reject_spans
            return profiles.SerializeToString()
        response = ExportTraceServiceResponse()
        if self.reject_spans:
            response.partial_success.rejected_spans = self.reject_spans
            response.partial_success.error_message = "rejected by the test receiver"
        return response.SerializeToString()

    def _decode(self) -> None:
        with self._arrived:
            fresh = self._requests[self._decoded :]
            self._decoded = len(self._requests)
        for request in fresh:
            if request.signal == "traces":
                self._span_cache.extend(_spans_in(request.body))
            elif request.signal == "metrics":
                points = list(_points_in(request.body))
                self._point_cache += points
                self._metric_cache.update(points)


def _spans_in(body: bytes) -> Iterator[ReceivedSpan]:
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = attributes_of(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield ReceivedSpan(resource, scope_spans.scope.name, span)


def _points_in(body: bytes) -> Iterator[tuple[MetricKey, MetricPoint]]:
    for resource_metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        resource = attributes_of(resource_metrics.resource.attributes)
        service = str(resource.get("service.name", ""))
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                for point in getattr(metric, kind).data_points:
                    attributes = frozenset(attributes_of(point.attributes).items())
                    key = MetricKey(service, resource.get("process.pid"), metric.name, attributes)
                    yield key, MetricPoint(resource, scope_metrics.scope.name, metric, point)
