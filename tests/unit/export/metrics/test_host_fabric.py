"""What network adapters counted, as metrics."""

import dataclasses
import json

from otel_gpu.config import Config
from otel_gpu.export.exports import open_exports
from otel_gpu.options import ExportConfig
from tests.activities import capture, counters
from tests.adapters import fabric, port

FACTS = {
    "guid": "b83f:d203:0013:4a20",
    "firmware": "28.39.1002",
    "model": "MT4129",
    "vendor": "0x15b3",
    "link_layer": "Ethernet",
    "interface": "enp59s0f0",
    "rate_bps": 400_000_000_000,
}
PORT = {
    "hw.id": "mlx5_0/1",
    "hw.name": "mlx5_0",
    "hw.vendor": "NVIDIA Mellanox",
    "hw.model": "MT4129",
    "hw.firmware_version": "28.39.1002",
    "hw.network.physical_address": "b83f:d203:0013:4a20",
    "network.interface.name": "enp59s0f0",
    "rdma.link_layer": "Ethernet",
}
NETWORK = ("hw.type", "network")
SENT, RECEIVED = (("network.io.direction", way) for way in ("transmit", "receive"))


def metrics_of(tmp_path, *activities):
    """The latest point of each metric and each set of attributes beside those of the port."""
    path = tmp_path / "sent.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)))
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), *activities, counters(9)):
            exports.observe(activity)
    found = {}
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if scope["scope"]["name"] == "otel_gpu.hardware" or "fabric" in metric["name"]:
                        for point in metric["sum"]["dataPoints"]:
                            own = attributes_of(point).items() - PORT.items()
                            found[metric["name"], *sorted(own)] = int(point["asInt"])
    return found


def attributes_of(one):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in one.get("attributes", ())}


def test_each_counter_is_a_metric_by_what_it_means(tmp_path):
    """With the driver's name of it, where that says more than the metric."""
    said = port(
        port_xmit_data=4_000_000_007,
        port_rcv_data=28,
        port_xmit_packets=1009,
        port_rcv_packets=2003,
        port_xmit_wait=17,
        link_downed=1,
        symbol_error=0,
        out_of_sequence=3,
        local_ack_timeout_err=5,
        np_cnp_sent=700_001,
        rnr_nak_retry_err=2,
    )

    assert metrics_of(tmp_path, fabric(1, said | FACTS, failed={"EIO": 2}, late=1)) == {
        ("hw.status", ("hw.state", "ok"), NETWORK): 1,
        ("hw.status", ("hw.state", "failed"), NETWORK): 0,
        ("hw.network.up", NETWORK): 1,
        ("hw.network.bandwidth.limit", NETWORK): 50_000_000_000,
        ("hw.network.io", NETWORK, SENT): 4_000_000_007,
        ("hw.network.io", NETWORK, RECEIVED): 28,
        ("hw.network.packets", NETWORK, SENT): 1009,
        ("hw.network.packets", NETWORK, RECEIVED): 2003,
        ("rdma.transmit.wait",): 17,
        ("hw.errors", ("error.type", "link_downed"), NETWORK): 1,
        ("hw.errors", ("error.type", "symbol_error"), NETWORK): 0,
        ("rdma.events", *event("out_of_sequence", "out_of_sequence")): 3,
        ("rdma.events", *event("local_ack_timeout_err", "retransmit")): 5,
        ("rdma.events", *event("np_cnp_sent", "congestion")): 700_001,
        ("rdma.events", *event("rnr_nak_retry_err", "receiver_not_ready")): 2,
        ("otel_gpu.fabric.late",): 1,
        ("otel_gpu.fabric.failed", ("error.type", "EIO")): 2,
    }


def event(counter, meaning):
    return ("rdma.counter", counter), ("rdma.event", meaning)


def test_a_counter_never_falls(tmp_path):
    """An adapter that was reset counts on: 1009, then 7 more."""
    first, reset = (fabric(n, port(symbol_error=v) | FACTS) for n, v in ((1, 1009), (2, 7)))

    found = metrics_of(tmp_path, first, reset)

    assert found["hw.errors", ("error.type", "symbol_error"), NETWORK] == 1016


def test_a_port_that_is_gone_has_failed_and_counts_no_more(tmp_path):
    """The other one goes on."""
    other = port("mlx5_1", symbol_error=3)
    first = fabric(1, port(symbol_error=1) | FACTS, other)

    found = metrics_of(tmp_path, first, fabric(2, other))

    assert found["hw.network.up", NETWORK] == 0
    assert found["hw.status", ("hw.state", "failed"), NETWORK] == 1


def test_a_port_that_is_down_answers(tmp_path):
    """It is well, and not up."""
    found = metrics_of(tmp_path, fabric(1, port(state="down") | FACTS))

    assert found["hw.network.up", NETWORK] == 0
    assert found["hw.status", ("hw.state", "ok"), NETWORK] == 1


def test_a_reading_that_does_not_come_back_is_a_failure(tmp_path):
    """Figures stay the last that there were."""
    first = fabric(1, port(symbol_error=1009) | FACTS)

    found = metrics_of(tmp_path, first, fabric(7, late=1, is_late=True))

    assert found["hw.status", ("hw.state", "failed"), NETWORK] == 1
    assert found["hw.errors", ("error.type", "symbol_error"), NETWORK] == 1009
    assert found["otel_gpu.fabric.late",] == 1


def test_a_host_without_adapters_has_no_such_metrics(tmp_path):
    """Most hosts."""
    assert metrics_of(tmp_path) == {}
