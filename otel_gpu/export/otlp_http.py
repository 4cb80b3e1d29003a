"""Spans and log records over OTLP/HTTP: the standard exporters with our encoder and an ear."""

import contextlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_gpu.export.encoder import RequestEncoder
from otel_gpu.export.otlp_batch import count_rejected, encode_batch
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

    def __init__(self, transport: Any, response: type[Message]) -> None:  # noqa: ANN401 -- not public
        self._transport = transport
        self._response = response
        self.rejected = 0

    def request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- not public
        result = self._transport.request(*args, **kwargs)
        if result.status_code == HTTPStatus.OK:
            # A body that is none may be a proxy's page, or a receiver that answers in JSON.
            with contextlib.suppress(DecodeError):
                self.rejected = count_rejected(self._response.FromString(result.content()))
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the transport has
        return getattr(self._transport, name)


class _Transport:
    """What the standard exporter of either signal gets from us."""

    _items: ClassVar[str]
    _response: ClassVar[type[Message]]
    # The standard exporter's.
    _endpoint: str
    _client: Any
    _metrics: Any
    _shutdown: bool
    shutdown: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._requests = RequestEncoder()
        # The only place that sees the receiver's answers.
        self._answers = _ListeningTransport(self._client._transport, self._response)  # noqa: SLF001
        self._client._transport = self._answers  # noqa: SLF001

    @property
    def place(self) -> str:
        """Where the items go, in an operator's words."""
        return f"the {self._items} endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        self._answers.rejected = 0
        if self._shutdown:
            return Delivery(Outcome.UNAVAILABLE)
        return _judge(*self._send(batch), self._answers.rejected)

    def close(self) -> None:
        """Close the connections."""
        self.shutdown()

    def _send(self, items: Sequence[Pending]) -> tuple[int | None, Exception | None]:
        data = encode_batch(self._requests, items)
        with self._metrics.export_operation(len(items)) as operation:
            result = self._client.export(data)
            if not result.success:
                operation.error = result.error
            return result.status_code, result.error


class HttpTransport(_Transport, OTLPSpanExporter):
    """Sends batches of spans over OTLP/HTTP."""

    _items = "span"
    _response = ExportTraceServiceResponse


class HttpLogTransport(_Transport, OTLPLogExporter):
    """Sends batches of log records over OTLP/HTTP."""

    _items = "log"
    _response = ExportLogsServiceResponse


def _judge(status: int | None, error: Exception | None, rejected: int) -> Delivery:
    if error is None and status is not None and status < HTTPStatus.BAD_REQUEST:
        return Delivery(Outcome.DELIVERED, rejected)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Delivery(Outcome.TOO_LARGE)
    if status in _RETRYABLE or status is None:
        return Delivery(Outcome.UNAVAILABLE)
    return Delivery(Outcome.REJECTED)
