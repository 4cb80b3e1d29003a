"""
The standard OTLP exporters, with our encoder in place of theirs.

They keep all that operators set for them: endpoints, headers, TLS, compression, timeouts,
retries. What is added looks at the answers: the exporters say only that a batch failed, and
whether it is worth another try depends on why. It sits where a request leaves (gRPC's stub,
HTTP's transport), on attributes that are not public; tests with a real receiver stand guard.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from otel_gpu.errors import ConfigError
from otel_gpu.export.environment import otlp_compression, otlp_protocol, standing_in
from otel_gpu.export.sender import Transport


class Signal(NamedTuple):
    """One kind of telemetry; ``name`` is in the names of its variables, ``items`` for operators."""

    name: str
    items: str
    service: str
    request: type[Message]
    response: type[Message]

    def count_rejected(self, response: Any) -> int:  # noqa: ANN401 -- generated code
        """Return how many items of a batch a receiver that took it did not want."""
        counts = response.partial_success
        return int(counts.rejected_spans if self is SPANS else counts.rejected_log_records)


_SPANS = (trace_service_pb2.ExportTraceServiceRequest, trace_service_pb2.ExportTraceServiceResponse)
SPANS = Signal("TRACES", "span", "trace.v1.TraceService", *_SPANS)
_LOGS = (logs_service_pb2.ExportLogsServiceRequest, logs_service_pb2.ExportLogsServiceResponse)
LOGS = Signal("LOGS", "log", "logs.v1.LogsService", *_LOGS)


def otlp_transport(environ: Mapping[str, str], signal: Signal = SPANS) -> Transport:
    """Return what ``OTEL_EXPORTER_OTLP_*`` describes; ConfigError: a value that cannot work."""
    protocol = otlp_protocol(environ, signal.name)
    compression = otlp_compression(environ, signal.name)
    try:
        with standing_in(environ):
            # Each costs tens of milliseconds to import, and one is enough.
            if protocol == "http/protobuf":
                from otel_gpu.export.otlp_http import HttpTransport  # noqa: PLC0415

                return HttpTransport(signal)
            from otel_gpu.export.otlp_grpc import TRANSPORTS  # noqa: PLC0415

            return TRANSPORTS[signal](compressed=compression != "none")
    except (KeyError, RuntimeError, ValueError) as error:
        hint = "look at the OTEL_EXPORTER_OTLP_* variables"
        raise ConfigError(f"the OTLP exporter refuses its settings: {error}", hint=hint) from error
