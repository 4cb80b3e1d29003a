"""
The standard OTLP exporters, with our encoder in place of theirs.

Subclassing keeps all that operators set for them: endpoints, headers, TLS,
compression, timeouts, retries. What is replaced is the step from spans to bytes, and
what is added looks at the answers: the exporters say only that a batch failed, and
whether it is worth another try depends on why. It sits where a request leaves
(gRPC's stub, HTTP's transport), on attributes that are not public; tests with a real
receiver stand guard over them.
"""

from collections.abc import Mapping

from otel_gpu.errors import ConfigError
from otel_gpu.export.environment import otlp_compression, otlp_protocol, standing_in
from otel_gpu.export.sender import Transport


def otlp_transport(environ: Mapping[str, str], signal: str = "TRACES") -> Transport:
    """
    Return the transport that ``OTEL_EXPORTER_OTLP_*`` describes.

    Args:
        environ: Environment variables.
        signal: ``TRACES`` or ``LOGS``.

    Raises:
        ConfigError: One of them has a value that cannot work.
    """
    protocol = otlp_protocol(environ, signal)
    compression = otlp_compression(environ, signal)
    is_logs = signal == "LOGS"
    try:
        with standing_in(environ):
            # Each costs tens of milliseconds to import, and one is enough.
            if protocol == "http/protobuf":
                from otel_gpu.export import otlp_http  # noqa: PLC0415

                return otlp_http.HttpLogTransport() if is_logs else otlp_http.HttpTransport()
            from otel_gpu.export import otlp_grpc  # noqa: PLC0415

            kind = otlp_grpc.GrpcLogTransport if is_logs else otlp_grpc.GrpcTransport
            return kind(compressed=compression != "none")
    except (KeyError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the OTLP exporter refuses its settings: {error}",
            hint="look at the OTEL_EXPORTER_OTLP_* variables",
        ) from error
