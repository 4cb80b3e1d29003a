"""Spans and log records over OTLP/gRPC: the standard exporters with our encoder and stub."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import grpc  # type: ignore[import-untyped]  # ships no types
from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.exporter import OTLPExporterMixin
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_gpu.export.encoder import RequestEncoder
from otel_gpu.export.otlp_batch import count_rejected, encode_batch
from otel_gpu.export.queue import Pending
from otel_gpu.export.sender import Delivery, Outcome


class _RequestTooLargeError(Exception):
    """The receiver will not take a request of this size, however often it is sent."""


class _Answer:
    """What the receiver said last."""

    def __init__(self) -> None:
        self.rejected = 0
        self.code: grpc.StatusCode | None = None


class _Stub:
    """
    A gRPC stub that sends bytes as they are, and notes the answers.

    The generated one takes messages: encoded spans would be parsed to be encoded again.
    """

    def __init__(
        self, channel: grpc.Channel, method: str, response: type[Message], answer: _Answer
    ) -> None:
        self._call = channel.unary_unary(method, response_deserializer=response.FromString)
        self._answer = answer

    def Export(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N802 -- as generated code has it
        try:
            response = self._call(*args, **kwargs)
        except grpc.RpcError as error:
            self._answer.code = error.code()
            # Servers say so with codes that mean "try again" otherwise.
            details = str(error.details()).lower()
            if "larger than max" in details or "too large" in details:
                raise _RequestTooLargeError from error
            raise
        self._answer.rejected = count_rejected(response)
        return response


class _Request(NamedTuple):
    """A batch as it is sent, however often that is tried."""

    items: int
    data: bytes


class _Transport(OTLPExporterMixin[Any, Any, Any, Any]):
    """What the standard exporter of either signal gets from us."""

    _items: ClassVar[str]
    _service: ClassVar[str]
    _response: ClassVar[type[Message]]

    def __init__(self, *, compressed: bool = True) -> None:
        self._requests = RequestEncoder()
        self._answer = _Answer()
        # The standard exporter does not know "none" as a value of its variable.
        compression = None if compressed else grpc.Compression.NoCompression
        super().__init__(compression=compression)  # type: ignore[call-arg]  # it gives the others

    @property
    def place(self) -> str:
        """Where the items go, in an operator's words."""
        return f"the {self._items} endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        answer = self._answer
        answer.code = None
        answer.rejected = 0
        try:
            result = self._export(_Request(len(batch), encode_batch(self._requests, batch)))
        except _RequestTooLargeError:
            return Delivery(Outcome.TOO_LARGE)
        if result in (SpanExportResult.SUCCESS, LogRecordExportResult.SUCCESS):
            return Delivery(Outcome.DELIVERED, answer.rejected)
        if answer.code is None or answer.code in self._retryable_error_codes:
            return Delivery(Outcome.UNAVAILABLE)
        return Delivery(Outcome.REJECTED)

    def close(self) -> None:
        """Close the channel, which ends a call that is under way."""
        self.shutdown()

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        method = f"/opentelemetry.proto.collector.{self._service}/Export"
        self._client: Any = _Stub(self._channel, method, self._response, self._answer)

    def _translate_data(self, data: Any) -> Any:  # noqa: ANN401 -- a _Request; bytes
        return data.data

    def _count_data(self, data: Any) -> int:  # noqa: ANN401 -- as above
        return int(data.items)


class GrpcTransport(_Transport, OTLPSpanExporter):
    """
    Sends batches of spans over OTLP/gRPC.

    Args:
        compressed: False: not at all; True: as the environment says.
    """

    _items = "span"
    _service = "trace.v1.TraceService"
    _response = ExportTraceServiceResponse


class GrpcLogTransport(_Transport, OTLPLogExporter):
    """
    Sends batches of log records over OTLP/gRPC.

    Args:
        compressed: False: not at all; True: as the environment says.
    """

    _items = "log"
    _service = "logs.v1.LogsService"
    _response = ExportLogsServiceResponse
