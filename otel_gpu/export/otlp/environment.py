"""The ``OTEL_*`` variables of the agent's environment."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.sdk import environment_variables as otel

from otel_gpu.errors import ConfigError

_logger = logging.getLogger(__name__)

_LONG_TIMEOUT_S = 300.0
_warned_timeouts: set[str] = set()


def setting(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    """
    Return name and value of the first variable that is set, else the last name and an empty text.
    """
    for name in names:
        # The specification: an empty one counts as not set.
        if value := environ.get(name, "").strip():
            return name, value
    return names[-1], ""


def choose(
    environ: Mapping[str, str], *names: str, choices: Sequence[str], default: str = ""
) -> str:
    """Return the value of the first set variable, in lower case; ConfigError: a bad choice."""
    name, value = setting(environ, *names)
    value = value.lower() or default
    if value not in choices:
        hint = f"use one of {', '.join(choices)}"
        raise ConfigError(f"{name}: {value!r} is not supported", hint=hint)
    return value


def read_number(environ: Mapping[str, str], *names: str, default: float) -> float:
    """Return the number in the first variable that is set; ConfigError: it is not above 0."""
    name, text = setting(environ, *names)
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        hint = "unset it, or give a number such as 10"
        raise ConfigError(f"{name}: {text!r} is not a number above 0", hint=hint)
    return value


def is_true(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is ``true``, in any case; no other value counts."""
    return setting(environ, name)[1].lower() == "true"


@contextmanager
def standing_in(environ: Mapping[str, str]) -> Iterator[None]:
    """
    Make ``environ`` the process's environment inside the context.

    The SDK and its exporters read their variables only from there. Some fail on empty ones, which
    count as not set, so those are omitted; and the gRPC exporters reject a compression of ``none``.
    """
    saved = dict(os.environ)
    wanted = {n: text for n, text in environ.items() if text.strip() or not n.startswith("OTEL_")}
    if wanted.get(otel.OTEL_EXPORTER_OTLP_COMPRESSION, "").strip().lower() == "none":
        del wanted[otel.OTEL_EXPORTER_OTLP_COMPRESSION]
    try:
        if wanted != saved:
            _replace_environment(wanted)
        yield
    finally:
        if wanted != saved:
            _replace_environment(saved)


def _replace_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def exporter_names(
    environ: Mapping[str, str], signal: str, choices: Sequence[str] = ()
) -> tuple[str, ...]:
    """
    Return the exporters that ``OTEL_<SIGNAL>_EXPORTER`` names.

    Default: OTLP when an endpoint is set, else none. None when the SDK is disabled. ConfigError: a
    name is not one of the ``choices``, if there are any.
    """
    if is_true(environ, otel.OTEL_SDK_DISABLED):
        return ()
    variable_name = f"OTEL_{signal}_EXPORTER"
    _, names = setting(environ, variable_name)
    if not names:
        return ("otlp",) if otlp_endpoint(environ, signal)[1] else ()
    chosen = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    for name in chosen if choices else ():
        choose({variable_name: name}, variable_name, choices=choices)
    if "none" in chosen and len(chosen) > 1:
        raise ConfigError(
            f"{variable_name}: none cannot be combined with others", hint=f"given: {names}"
        )
    return tuple(name for name in chosen if name != "none")


def otlp_endpoint(environ: Mapping[str, str], signal: str) -> tuple[str, str]:
    """
    Return name and value of the variable that sets a signal's endpoint; an empty value: none does.
    """
    return setting(environ, *_names(signal, "ENDPOINT"))


def _names(signal: str, what: str) -> tuple[str, str]:
    return f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def as_of_traces(environ: Mapping[str, str], signal: str, path: str) -> dict[str, str]:
    """
    Return an environment in which the trace exporter uses another signal's settings.

    ``path`` is the signal's path below an HTTP endpoint of all signals.
    """
    ours, traces = (f"OTEL_EXPORTER_OTLP_{name}_" for name in (signal, "TRACES"))
    found = {name: text for name, text in environ.items() if not name.startswith(traces)}
    found |= {
        traces + name.removeprefix(ours): text
        for name, text in environ.items()
        if name.startswith(ours) and text.strip()
    }
    if otlp_protocol(environ, signal) == "http/protobuf" and traces + "ENDPOINT" not in found:
        base = otlp_endpoint(environ, signal)[1] or "http://localhost:4318"
        found[traces + "ENDPOINT"] = f"{base.rstrip('/')}/{path}"
    return found


def otlp_protocol(environ: Mapping[str, str], signal: str) -> str:
    """
    Return the protocol, after the checks that the exporters lack; ConfigError: it cannot work.
    """
    known = ("grpc", "http/protobuf")
    protocol = choose(environ, *_names(signal, "PROTOCOL"), choices=known, default="grpc")
    name, endpoint = otlp_endpoint(environ, signal)
    if endpoint and protocol == "http/protobuf":
        address = urlsplit(endpoint)
        if address.scheme not in {"http", "https"} or not address.netloc:
            hint = "write it as http://host:4318"
            raise ConfigError(f"{name}: {endpoint!r} is not an HTTP URL", hint=hint)
    otlp_timeout_s(environ, signal)
    return protocol


def otlp_compression(environ: Mapping[str, str], signal: str) -> str:
    """Return ``none``, ``gzip`` or ``deflate``; ConfigError: the protocol lacks it."""
    more = () if otlp_protocol(environ, signal) == "grpc" else ("deflate",)
    known = ("none", "gzip", *more)
    return choose(environ, *_names(signal, "COMPRESSION"), choices=known, default="none")


def otlp_timeout_s(environ: Mapping[str, str], signal: str) -> float:
    """Return the timeout of one request in seconds; the specification's default is 10 s."""
    names = _names(signal, "TIMEOUT")
    timeout_s = read_number(environ, *names, default=10.0)
    name, text = setting(environ, *names)
    if timeout_s > _LONG_TIMEOUT_S and text not in _warned_timeouts:
        _warned_timeouts.add(text)
        # The specification counts milliseconds, the Python exporters seconds.
        _logger.warning("%s is %s seconds; if milliseconds were meant, divide by 1000", name, text)
    return timeout_s
