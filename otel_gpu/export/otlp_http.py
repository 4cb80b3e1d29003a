"""Spans over OTLP/HTTP: the standard exporter with our encoder and an ear."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
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

    def __init__(self, transport: Any) -> None:  # noqa: ANN401 -- not public
        self._transport = transport
        self.rejected = 0

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- not public
        result = self._transport.request(*args, **kwargs)
        if result.status_code == HTTPStatus.OK:
            self.rejected = _rejected_spans(result.content())
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the transport has
        return getattr(self._transport, name)


class HttpTransport(OTLPSpanExporter):
    """Sends batches over OTLP/HTTP; also an SDK exporter for ``ReadableSpan``."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = RequestEncoder()
        # The only place that sees the receiver's answers.
        client: Any = self._client
        self._answers = _ListeningTransport(client._transport)  # noqa: SLF001
        client._transport = self._answers  # noqa: SLF001

    @property
    def place(self) -> str:
        """Where spans go, in an operator's words."""
        return f"the span endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        self._answers.rejected = 0
        if self._shutdown:
            return Delivery(Outcome.UNAVAILABLE)
        status, error = self._send(batch)
        if error is None and status is not None and status < HTTPStatus.BAD_REQUEST:
            return Delivery(Outcome.DELIVERED, self._answers.rejected)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return Delivery(Outcome.TOO_LARGE)
        if status in _RETRYABLE or status is None:
            return Delivery(Outcome.UNAVAILABLE)
        return Delivery(Outcome.REJECTED)

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
        with self._metrics.export_operation(len(spans)) as operation:
            result = self._client.export(encode_batch(self._requests, spans))
            if not result.success:
                operation.error = result.error
            return result.status_code, result.error


def _rejected_spans(body: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0  # a proxy's page, or a receiver that answers in JSON
