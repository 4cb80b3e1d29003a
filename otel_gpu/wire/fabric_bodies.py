"""The body of RECORD_FABRIC: what the ports of network adapters that do RDMA said."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu.wire.port_counters import COUNTERS

MAX_PORTS: Final = 128
"""Ports that are read."""
MAX_TEXT: Final = 128
"""Characters of a text of an adapter."""
MAX_VALUE: Final = (1 << 63) - 1

_MAX_FAILURES = 64

PORT_SHAPE: Final[Mapping[str, Any]] = {
    "adapter": str,
    "port": int,
    "guid": str,
    "firmware": str,
    "model": str,
    "vendor": str,
    "state": str,
    "physical_state": str,
    "link_layer": str,
    "interface": str,
    "rate_bps": int,
    "counters": (Mapping, int),
}
SHAPE: Final[Mapping[str, Any]] = {
    "late": int,
    "left_out": int,
    "failed": (Mapping, int),
    "ports": [PORT_SHAPE],
}
"""See ``bodies._check``."""
_TEXTS = tuple(name for name, shape in PORT_SHAPE.items() if shape is str)


def check_fabric(body: Mapping[str, Any]) -> None:
    """
    Check what a shape cannot say.

    Raises:
        TypeError: It is not what a host may say of its network adapters.
    """
    failed, ports = body.get("failed", {}), body.get("ports", [])
    counts = [body.get("late", 0), body.get("left_out", 0), *failed.values()]
    good = (
        isinstance(body.get("is_late", False), bool)
        and all(map(_is_count, counts))
        and len(failed) <= _MAX_FAILURES
        and all(len(name) <= MAX_TEXT for name in failed)
        and len(ports) <= MAX_PORTS
        and all(all(_checks(port)) for port in ports)
        and len({(port["adapter"], port["port"]) for port in ports}) == len(ports)
    )
    if not good:
        raise TypeError("body is not what network adapters say")


def _checks(port: Mapping[str, Any]) -> Iterator[bool]:
    yield "adapter" in port and "port" in port
    yield all(len(port.get(name, "")) <= MAX_TEXT for name in _TEXTS)
    yield _is_count(port.get("port", 0)) and _is_count(port.get("rate_bps", 0))
    counters = port.get("counters", {})
    yield counters.keys() <= COUNTERS.keys() and all(map(_is_count, counters.values()))


def _is_count(value: int) -> bool:
    return 0 <= value <= MAX_VALUE
