"""
The standard OTLP exporters, with our encoder in place of theirs.

They keep all that operators set for them: endpoints, headers, TLS, compression, timeouts,
retries. What is added looks at the answers: the exporters say only that a batch failed, and
whether it is worth another try depends on why. It sits where a request leaves (gRPC's stub,
HTTP's transport), on attributes that are not public; tests with a real receiver stand guard.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from otel_gpu.errors import ConfigError
from otel_gpu.export.encoder import LogEncoder, SpanEncoder, encode_request
from otel_gpu.export.environment import as_of_traces, otlp_compression, otlp_protocol, standing_in
from otel_gpu.export.queue import Pending
from otel_gpu.export.sender import Transport


class Signal(NamedTuple):
    """
    One kind of telemetry.

    Attributes:
        name: In the names of its variables.
        items: What operators call one of its items.
        service: The gRPC service, without what is common to all.
        request: What a batch is sent as.
        response: What a receiver answers.
        rejected: Which field of the answer counts items that the receiver did not want.
        open_encoder: Returns a function that makes bytes of items.
        join: Makes a request of such bytes.
        most_items: Items of one request. Some receivers handle a request as one unit of work.
    """

    name: str
    items: str
    service: str
    request: type[Message]
    response: type[Message]
    rejected: str
    open_encoder: Callable[[], Callable[[Any], bytes]]
    join: Callable[[Iterable[Pending]], bytes] = encode_request
    most_items: int = 8192

    def count_rejected(self, response: Any) -> int:  # noqa: ANN401 -- generated code
        """Return how many items of a batch a receiver that took it did not want."""
        return int(getattr(response.partial_success, self.rejected))


SPANS = Signal(
    "TRACES",
    "span",
    "trace.v1.TraceService",
    trace_service_pb2.ExportTraceServiceRequest,
    trace_service_pb2.ExportTraceServiceResponse,
    "rejected_spans",
    lambda: SpanEncoder().encode,
)
LOGS = Signal(
    "LOGS",
    "log",
    "logs.v1.LogsService",
    logs_service_pb2.ExportLogsServiceRequest,
    logs_service_pb2.ExportLogsServiceResponse,
    "rejected_log_records",
    lambda: LogEncoder().encode,
)


def otlp_transport(environ: Mapping[str, str], signal: Signal = SPANS) -> Transport:
    """Return what ``OTEL_EXPORTER_OTLP_*`` describes; ConfigError: a value that cannot work."""
    protocol = otlp_protocol(environ, signal.name)
    compression = otlp_compression(environ, signal.name)
    if signal not in (SPANS, LOGS):
        # There is no standard exporter of it: that of spans is as good, by other variables.
        version = signal.service.split(".")[1]
        environ = as_of_traces(environ, signal.name, f"{version}/{signal.name.lower()}")
    try:
        with standing_in(environ):
            # Each costs tens of milliseconds to import, and one is enough.
            if protocol == "http/protobuf":
                from otel_gpu.export.otlp_http import HttpTransport  # noqa: PLC0415

                return HttpTransport(signal)
            from otel_gpu.export.otlp_grpc import open_transport  # noqa: PLC0415

            return open_transport(signal, compressed=compression != "none")
    except (KeyError, RuntimeError, ValueError) as error:
        hint = "look at the OTEL_EXPORTER_OTLP_* variables"
        raise ConfigError(f"the OTLP exporter refuses its settings: {error}", hint=hint) from error
