"""One signal over OTLP/gRPC: the standard exporters with our encoder and stub."""

from collections.abc import Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.exporter import OTLPExporterMixin
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.sender import Delivery, SendOutcome, Transport
from otel_gpu.export.otlp.signals import LOGS, Signal


class _RequestTooLargeError(Exception):
    # The receiver refuses a request of this size on every retry.
    pass


class _Transport(OTLPExporterMixin[Any, Any, Any, Any]):
    # The standard exporter of a signal and its own stub: the standard stub would parse our bytes.

    def __init__(self, signal: Signal, *, compressed: bool = True) -> None:
        self._of = signal
        self._rejected = 0
        self._code: grpc.StatusCode | None = None
        # The standard exporter does not accept "none" in its variable.
        compression = None if compressed else grpc.Compression.NoCompression
        super().__init__(compression=compression)  # type: ignore[call-arg]  # it gives the others
        self.place = f"the {self._of.items} endpoint {self._endpoint}"

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        self._rejected, self._code = 0, None
        try:
            result = self._export((len(batch), self._of.join(batch)))
        except _RequestTooLargeError:
            return Delivery(SendOutcome.TOO_LARGE)
        if result in (SpanExportResult.SUCCESS, LogRecordExportResult.SUCCESS):
            return Delivery(SendOutcome.DELIVERED, self._rejected)
        if self._code is None or self._code in self._retryable_error_codes:
            return Delivery(SendOutcome.UNAVAILABLE)
        return Delivery(SendOutcome.REJECTED)

    def close(self) -> None:
        # Ends a call that is under way.
        self.shutdown()

    def Export(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N802 -- as generated code has it
        # The standard exporter calls this.
        try:
            response = self._call(*args, **kwargs)
        except grpc.RpcError as error:
            self._code = error.code()
            # Servers report this with codes that otherwise mean "try again".
            details = str(error.details()).lower()
            if "larger than max" in details or "too large" in details:
                raise _RequestTooLargeError from error
            raise
        self._rejected = self._of.count_rejected(response)
        return response

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        channel: Any = self._channel
        self._call = channel.unary_unary(
            f"/opentelemetry.proto.collector.{self._of.service}/Export",
            response_deserializer=self._of.response.FromString,
        )
        self._client: Any = self

    def _translate_data(self, data: Any) -> Any:  # noqa: ANN401 -- its items, and bytes
        return data[1]

    def _count_data(self, data: Any) -> int:  # noqa: ANN401 -- as above
        return int(data[0])


class _SpanTransport(_Transport, OTLPSpanExporter):
    pass


class _LogTransport(_Transport, OTLPLogExporter):
    pass


def open_transport(signal: Signal, *, compressed: bool) -> Transport:
    """Return a signal's transport; not ``compressed``: plain, whatever the environment asks for."""
    return (_LogTransport if signal is LOGS else _SpanTransport)(signal, compressed=compressed)
