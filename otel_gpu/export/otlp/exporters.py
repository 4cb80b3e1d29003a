"""
The standard OTLP exporters with our encoder.

They keep all that operators set: endpoints, headers, TLS, compression, timeouts, retries. We also
read the answers: the exporters report only that a batch failed, and whether to retry depends on
why. That happens where a request leaves (gRPC's stub, HTTP's transport), on private attributes;
tests with a real receiver notice when those change.
"""

from collections.abc import Mapping

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.environment import (
    as_of_traces,
    otlp_compression,
    otlp_protocol,
    standing_in,
)
from otel_gpu.export.otlp.sender import Transport
from otel_gpu.export.otlp.signals import LOGS, SPANS, Signal
from otel_gpu.lean_imports import import_grpc


def otlp_transport(environ: Mapping[str, str], signal: Signal = SPANS) -> Transport:
    """Return the transport that ``OTEL_EXPORTER_OTLP_*`` describes; ConfigError: a bad value."""
    protocol = otlp_protocol(environ, signal.name)
    compression = otlp_compression(environ, signal.name)
    if signal not in (SPANS, LOGS):
        # This signal has no standard exporter: that of spans does the same, by other variables.
        version = signal.service.split(".")[1]
        environ = as_of_traces(environ, signal.name, f"{version}/{signal.name.lower()}")
    try:
        with standing_in(environ):
            # Each takes tens of milliseconds to import, and one is enough.
            if protocol == "http/protobuf":
                from otel_gpu.export.otlp.http import HttpTransport  # noqa: PLC0415

                return HttpTransport(signal)
            import_grpc()
            from otel_gpu.export.otlp.grpc import open_transport  # noqa: PLC0415

            return open_transport(signal, compressed=compression != "none")
    except (KeyError, RuntimeError, ValueError) as error:
        hint = "check the OTEL_EXPORTER_OTLP_* variables"
        raise ConfigError(f"the OTLP exporter refuses its settings: {error}", hint=hint) from error
