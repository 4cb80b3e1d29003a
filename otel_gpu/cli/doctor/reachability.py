"""Checks that the OTLP endpoints of the agent accept connections."""

import socket
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import urlsplit

from otel_gpu.cli.doctor.checks import CheckResult, CheckStatus

_CONNECT_TIMEOUT_S = 1.0
_ok = partial(CheckResult, "endpoint", CheckStatus.OK)
_warning = partial(CheckResult, "endpoint", CheckStatus.WARNING)


def check_endpoints(environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check that each configured OTLP endpoint accepts a TCP connection."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield _warning("OTEL_SDK_DISABLED is true: nothing is sent", "unset it")
        return
    endpoints: dict[str, list[str]] = {}
    for signal in ("TRACES", "METRICS"):
        names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        if url := next(filter(None, (environ.get(name, "").strip() for name in names)), ""):
            endpoints.setdefault(url, []).append(signal.lower())
    if not endpoints:
        yield _warning(
            "none is configured, so nothing is sent",
            "set OTEL_EXPORTER_OTLP_ENDPOINT, such as http://localhost:4317, or use --otlp-file",
        )
    for url, signals in endpoints.items():
        yield _check_endpoint(url, signals, environ)


def _check_endpoint(url: str, signals: list[str], environ: Mapping[str, str]) -> CheckResult:
    where = f"{url} ({', '.join(signals)})"
    protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or (4317 if protocol == "grpc" else 4318)
    except ValueError:
        host = None
    if not host:
        return _warning(f"{where}: not a URL", "write http://HOST:PORT")
    if protocol != "grpc" and parts.port is None:
        port = {"http": 80, "https": 443}.get(parts.scheme, port)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return _warning(
            f"{where}: {error.strerror or error}",
            "start the receiver, or correct the endpoint; until then spans wait, and are dropped in the end",
        )
    return _ok(f"{where} takes connections")
