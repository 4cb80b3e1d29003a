"""Spans and log records over OTLP/HTTP: the standard exporters with our encoder and an ear."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_gpu.export.encoder import RequestEncoder
from otel_gpu.export.otlp_batch import Spans, encode_batch
from otel_gpu.export.queue import Pending
from otel_gpu.export.sender import Delivery, Outcome

_RETRYABLE = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class _ListeningTransport:
    """An HTTP transport that notes the bodies of answers to what goes through it."""

    def __init__(self, transport: Any, count_rejected: Callable[[bytes], int]) -> None:  # noqa: ANN401 -- not public
        self._transport = transport
        self._count_rejected = count_rejected
        self.rejected = 0

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- not public
        result = self._transport.request(*args, **kwargs)
        if result.status_code == HTTPStatus.OK:
            self.rejected = self._count_rejected(result.content())
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the transport has
        return getattr(self._transport, name)


class HttpTransport(OTLPSpanExporter):
    """Sends batches over OTLP/HTTP; also an SDK exporter for ``ReadableSpan``."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = RequestEncoder()
        self._answers = _listen(self._client, _rejected_spans)

    @property
    def place(self) -> str:
        """Where spans go, in an operator's words."""
        return f"the span endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        self._answers.rejected = 0
        if self._shutdown:
            return Delivery(Outcome.UNAVAILABLE)
        return _judge(*self._send(batch), self._answers.rejected)

    def close(self) -> None:
        """Close the connections."""
        self.shutdown()  # type: ignore[no-untyped-call]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send SDK spans."""
        if self._shutdown:
            return SpanExportResult.FAILURE
        status, error = self._send(spans)
        good = error is None and status is not None and status < HTTPStatus.BAD_REQUEST
        return SpanExportResult.SUCCESS if good else SpanExportResult.FAILURE

    def _send(self, spans: Spans) -> tuple[int | None, Exception | None]:
        return _send(self, spans, encode_batch(self._requests, spans))


class HttpLogTransport(OTLPLogExporter):
    """Sends batches of log records over OTLP/HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = RequestEncoder()
        self._answers = _listen(self._client, _rejected_log_records)

    @property
    def place(self) -> str:
        """Where log records go, in an operator's words."""
        return f"the log endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        self._answers.rejected = 0
        if self._shutdown:
            return Delivery(Outcome.UNAVAILABLE)
        data = encode_batch(self._requests, batch)
        return _judge(*_send(self, batch, data), self._answers.rejected)

    def close(self) -> None:
        """Close the connections."""
        self.shutdown()  # type: ignore[no-untyped-call]


def _listen(client: Any, count_rejected: Callable[[bytes], int]) -> _ListeningTransport:  # noqa: ANN401 -- not public
    # The only place that sees the receiver's answers.
    client._transport = _ListeningTransport(client._transport, count_rejected)  # noqa: SLF001
    answers: _ListeningTransport = client._transport  # noqa: SLF001
    return answers


def _send(exporter: Any, items: Sequence[Any], data: bytes) -> tuple[int | None, Exception | None]:  # noqa: ANN401 -- either of the two
    with exporter._metrics.export_operation(len(items)) as operation:  # noqa: SLF001
        result = exporter._client.export(data)  # noqa: SLF001
        if not result.success:
            operation.error = result.error
        return result.status_code, result.error


def _judge(status: int | None, error: Exception | None, rejected: int) -> Delivery:
    if error is None and status is not None and status < HTTPStatus.BAD_REQUEST:
        return Delivery(Outcome.DELIVERED, rejected)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Delivery(Outcome.TOO_LARGE)
    if status in _RETRYABLE or status is None:
        return Delivery(Outcome.UNAVAILABLE)
    return Delivery(Outcome.REJECTED)


def _rejected_spans(body: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0  # a proxy's page, or a receiver that answers in JSON


def _rejected_log_records(body: bytes) -> int:
    try:
        return int(ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records)
    except DecodeError:
        return 0
