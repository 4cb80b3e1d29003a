"""Counters of RDMA network adapters' ports, as metrics; see ``state.fabric``."""

from collections.abc import Iterator

from otel_gpu.enrich.activities import FabricActivity
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.state.fabric import FabricState, Port, PortKey
from otel_gpu.wire.port_counters import COUNTERS, Meaning

_NETWORK = ((semconv.HW_TYPE, "network"),)
_BITS_PER_BYTE = 8
# By the PCI vendor id.
_VENDORS = {
    "0x14e4": "Broadcom",
    "0x15b3": "NVIDIA Mellanox",
    "0x1d0f": "Amazon",
    "0x1dd8": "AMD Pensando",
    "0x19e5": "Huawei",
    "0x8086": "Intel",
}
_SENT = ((semconv.NETWORK_IO_DIRECTION, "transmit"),)
_RECEIVED = ((semconv.NETWORK_IO_DIRECTION, "receive"),)
_TRAFFIC = {
    Meaning.TRANSMITTED_BYTES: (semconv.METRIC_HW_NETWORK_IO, _SENT),
    Meaning.RECEIVED_BYTES: (semconv.METRIC_HW_NETWORK_IO, _RECEIVED),
    Meaning.TRANSMITTED_PACKETS: (semconv.METRIC_HW_NETWORK_PACKETS, _SENT),
    Meaning.RECEIVED_PACKETS: (semconv.METRIC_HW_NETWORK_PACKETS, _RECEIVED),
    Meaning.WAITED_TICKS: (semconv.METRIC_RDMA_TRANSMIT_WAIT, ()),
}
_ERRORS = frozenset({Meaning.ERROR, Meaning.LINK_DOWN})


class HostFabric:
    """The latest reading of each port; a removed port only has the state "not up"."""

    def __init__(self) -> None:
        self._fabric = FabricState()

    def observe(self, activity: FabricActivity) -> None:
        """Add a newer reading."""
        self._fabric.observe(activity)

    def measurements(self) -> Iterator[Measurement]:
        """Yield the measurements of each port, and of the readings themselves."""
        fabric = self._fabric
        ports = list(fabric.ports())
        for key, port in ports:
            yield from _measure(key, port, is_late=fabric.is_late)
        if ports or fabric.late or fabric.failed:
            late = semconv.METRIC_OTEL_GPU_FABRIC_LATE
            yield Measurement(instrument=late, attributes=(), source="late", value=fabric.late)
        for name, count in fabric.failed.items():
            attributes = ((semconv.ERROR_TYPE, name),)
            yield Measurement(
                semconv.METRIC_OTEL_GPU_FABRIC_FAILED, attributes, source=name, value=count
            )


def _measure(key: PortKey, port: Port, *, is_late: bool) -> Iterator[Measurement]:
    device = _identify(key, port)
    has_failed = is_late or not port.is_present
    for state, value in (("ok", not has_failed), ("failed", has_failed)):
        attributes = (*device, *_NETWORK, (semconv.HW_STATE, state))
        yield Measurement(
            semconv.METRIC_HW_STATUS, attributes, source=(*key, state), value=int(value)
        )
    up = semconv.METRIC_HW_NETWORK_UP
    yield Measurement(
        instrument=up,
        attributes=(*device, *_NETWORK),
        source=key,
        value=int(port.is_up and not is_late),
    )
    if not port.is_present:
        return
    if rate_bps := port.facts.get("rate_bps"):
        limit = semconv.METRIC_HW_NETWORK_BANDWIDTH_LIMIT
        yield Measurement(
            instrument=limit,
            attributes=(*device, *_NETWORK),
            source=key,
            value=rate_bps // _BITS_PER_BYTE,
        )
    for name, count in port.sums.items():
        instrument, attributes = _instrument(name)
        yield Measurement(
            instrument, attributes=(*device, *attributes), source=(*key, name), value=count
        )


def _instrument(name: str) -> tuple[semconv.Instrument, Attributes]:
    meaning = COUNTERS[name].meaning
    if meaning in _TRAFFIC:
        instrument, attributes = _TRAFFIC[meaning]
        of_type = () if instrument is semconv.METRIC_RDMA_TRANSMIT_WAIT else _NETWORK
        return instrument, (*of_type, *attributes)
    if meaning in _ERRORS:
        return semconv.METRIC_HW_ERRORS, (*_NETWORK, (semconv.ERROR_TYPE, name))
    event = (semconv.RDMA_EVENT, meaning.value)
    return semconv.METRIC_RDMA_EVENTS, (event, (semconv.RDMA_COUNTER, name))


def _identify(key: PortKey, port: Port) -> Attributes:
    adapter, number = key
    facts = port.facts
    vendor = facts.get("vendor", "")
    pairs = (
        (semconv.HW_VENDOR, _VENDORS.get(vendor, vendor)),
        (semconv.HW_MODEL, facts.get("model", "")),
        (semconv.HW_FIRMWARE_VERSION, facts.get("firmware", "")),
        (semconv.HW_NETWORK_PHYSICAL_ADDRESS, facts.get("guid", "")),
        (semconv.NETWORK_INTERFACE_NAME, facts.get("interface", "")),
        (semconv.RDMA_LINK_LAYER, facts.get("link_layer", "")),
    )
    name = ((semconv.HW_ID, f"{adapter}/{number}"), (semconv.HW_NAME, adapter))
    return (*name, *(pair for pair in pairs if pair[1]))
