"""The body of RECORD_FABRIC: ports of network adapters that do RDMA."""

from typing import Annotated, Final, Required, TypedDict

from msgspec import Meta, ValidationError

from otel_gpu.wire.json_body import INT64_MAX, BodyType, Count, Counts
from otel_gpu.wire.port_counters import COUNTERS

MAX_PORTS: Final = 128
"""Ports that are read."""
MAX_TEXT: Final = 128
"""Characters of a text of an adapter."""
MAX_VALUE: Final = INT64_MAX

_MAX_FAILURES = 64
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class PortReading(TypedDict, total=False):
    """One port of an adapter; ``counters`` are cumulative, by the names of their files."""

    adapter: Required[_Text]
    port: Required[Count]
    guid: _Text
    firmware: _Text
    model: _Text
    vendor: _Text
    state: _Text
    physical_state: _Text
    link_layer: _Text
    interface: _Text
    rate_bps: Count
    counters: Counts


class FabricReading(TypedDict, total=False):
    """
    One reading of all ports; without ``ports`` it only reports that a reading is late.

    ``failed`` counts reads that failed, by the kernel's name of the error.
    """

    late: Count
    is_late: bool
    left_out: Count
    failed: Annotated[dict[_Text, Count], Meta(max_length=_MAX_FAILURES)]
    ports: Annotated[list[PortReading], Meta(max_length=MAX_PORTS)]
    truncated: bool


def _check_fabric(body: FabricReading) -> None:
    ports = body.get("ports", ())
    if len({(port["adapter"], port["port"]) for port in ports}) < len(ports):
        raise ValidationError("ports: expected each port once; number the ports of an adapter")
    for port in ports:
        if unknown := port.get("counters", {}).keys() - COUNTERS.keys():
            raise ValidationError(f"counters: expected names of port_counters, got {unknown}")


FABRIC: Final = BodyType(FabricReading, _check_fabric)
