"""What the ``OTEL_*`` variables of the agent's environment say."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_COMPRESSION,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_SDK_DISABLED,
)

from otel_gpu.errors import ConfigError

_logger = logging.getLogger(__name__)

_PROTOCOLS = ("grpc", "http/protobuf")
_LONG_TIMEOUT_S = 300.0
_warned_timeouts: set[str] = set()


def variable(environ: Mapping[str, str], *names: str) -> str | None:
    """Return the first variable that is set; an empty one counts as not set."""
    for name in names:
        if value := environ.get(name, "").strip():
            return value
    return None


def is_true(environ: Mapping[str, str], name: str) -> bool:
    """Say whether a variable is ``true``, in any case; nothing else is."""
    return (variable(environ, name) or "").lower() == "true"


@contextmanager
def standing_in(environ: Mapping[str, str]) -> Iterator[None]:
    """
    Let ``environ`` be the process's environment for a moment.

    The SDK and its exporters read their variables from there and nowhere else. Some
    stumble over empty ones, which count as not set, so those are left out; and the
    gRPC exporters do not know that no compression can be asked for.
    """
    saved = dict(os.environ)
    wanted = {
        name: value
        for name, value in environ.items()
        if value.strip() or not name.startswith("OTEL_")
    }
    if wanted.get(OTEL_EXPORTER_OTLP_COMPRESSION, "").strip().lower() == "none":
        del wanted[OTEL_EXPORTER_OTLP_COMPRESSION]
    if wanted == saved:
        yield
        return
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def exporter_names(environ: Mapping[str, str], signal: str) -> tuple[str, ...]:
    """
    Return the exporters that ``OTEL_<SIGNAL>_EXPORTER`` names.

    Without it: OTLP when an endpoint is set, else none. None at all when the SDK is
    disabled. The names are not checked.

    Args:
        environ: Environment variables.
        signal: ``TRACES`` or ``METRICS``.
    """
    if is_true(environ, OTEL_SDK_DISABLED):
        return ()
    names = variable(environ, f"OTEL_{signal}_EXPORTER")
    if names is None:
        endpoint = variable(
            environ, f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", OTEL_EXPORTER_OTLP_ENDPOINT
        )
        return ("otlp",) if endpoint else ()
    chosen = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if "none" in chosen and len(chosen) > 1:
        raise ConfigError(
            f"OTEL_{signal}_EXPORTER: none cannot be combined with others", hint=f"given: {names}"
        )
    return tuple(name for name in chosen if name != "none")


def otlp_protocol(environ: Mapping[str, str], signal: str) -> str:
    """
    Return ``grpc`` or ``http/protobuf``, and check what the exporters do not check.

    Raises:
        ConfigError: A protocol, endpoint or timeout that cannot work.
    """
    name = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = variable(environ, name, OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{OTEL_EXPORTER_OTLP_PROTOCOL}: {protocol!r} is not supported",
            hint=f"use one of {', '.join(_PROTOCOLS)}",
        )
    endpoint_name = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    endpoint = variable(environ, endpoint_name, OTEL_EXPORTER_OTLP_ENDPOINT)
    if endpoint and protocol == "http/protobuf":
        address = urlsplit(endpoint)
        if address.scheme not in {"http", "https"} or not address.netloc:
            raise ConfigError(
                f"{OTEL_EXPORTER_OTLP_ENDPOINT}: {endpoint!r} is not an HTTP URL",
                hint="write it as http://host:4318",
            )
    _check_timeout(environ, f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT")
    return protocol


def otlp_compression(environ: Mapping[str, str], signal: str) -> str:
    """
    Return ``none``, ``gzip`` or ``deflate``.

    Raises:
        ConfigError: It is something else, or gRPC does not know it.
    """
    name = f"OTEL_EXPORTER_OTLP_{signal}_COMPRESSION"
    compression = (variable(environ, name, OTEL_EXPORTER_OTLP_COMPRESSION) or "none").lower()
    known = ["none", "gzip"]
    if otlp_protocol(environ, signal) != "grpc":
        known.append("deflate")
    if compression not in known:
        raise ConfigError(
            f"{OTEL_EXPORTER_OTLP_COMPRESSION}: {compression!r} is not supported here",
            hint=f"use one of {', '.join(known)}",
        )
    return compression


def _check_timeout(environ: Mapping[str, str], name: str) -> None:
    text = variable(environ, name, OTEL_EXPORTER_OTLP_TIMEOUT)
    if text is None:
        return
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = -1.0
    if not timeout_s > 0:
        raise ConfigError(
            f"{OTEL_EXPORTER_OTLP_TIMEOUT}: {text!r} is not a number of seconds",
            hint="give a number above 0, such as 10",
        )
    if timeout_s > _LONG_TIMEOUT_S and text not in _warned_timeouts:
        _warned_timeouts.add(text)
        # The specification counts milliseconds, the Python exporters seconds.
        _logger.warning(
            "%s is %s seconds; if milliseconds were meant, divide by 1000",
            OTEL_EXPORTER_OTLP_TIMEOUT,
            text,
        )
