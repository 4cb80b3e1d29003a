"""A tree as /sys/class/infiniband has it, of network adapters that do RDMA."""

from pathlib import Path

from otel_gpu.enrich.activities import FabricActivity
from tests.activities import SECOND, T0

# As of a ConnectX-7 with InfiniBand.
PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "gid_attrs/ndevs/0": "ib0",
    "counters/port_xmit_data": "250000003",
    "counters/port_rcv_data": "7",
    "counters/port_xmit_packets": "1009",
    "counters/port_rcv_packets": "2003",
    "counters/port_xmit_wait": "17",
    "counters/symbol_error": "0",
    "counters/link_downed": "1",
    "hw_counters/out_of_sequence": "3",
    "hw_counters/local_ack_timeout_err": "5",
    "hw_counters/lifespan": "10",
}
ADAPTER = {
    "node_guid": "b83f:d203:0013:4a20",
    "fw_ver": "28.39.1002",
    "hca_type": "MT4129",
    "device/vendor": "0x15b3",
}


def write_port(root: Path, adapter: str = "mlx5_0", port: int = 1, **counters: int) -> Path:
    """Make a port, with counters that differ from ``PORT``'s; return its folder."""
    for name, text in ADAPTER.items():
        _write(root / adapter / name, text)
    folder = root / adapter / "ports" / str(port)
    names = {name.rpartition("/")[2]: name for name in PORT}
    files = PORT | {
        names.get(name, f"hw_counters/{name}"): str(value) for name, value in counters.items()
    }
    for name, text in files.items():
        _write(folder / name, text)
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def port(adapter="mlx5_0", number=1, state="active", **counters):
    """What a port said."""
    return {"adapter": adapter, "port": number, "state": state, "counters": counters}


def fabric(at_s, *ports, **info):
    """What the adapters said; without any, nothing about ports."""
    said = {"ports": list(ports)} if ports else {}
    return FabricActivity(T0 + round(at_s * SECOND), said | info)
