"""Counters of network adapters, from trees that look like sysfs and some that do not."""

import json
import os
import shutil
import threading
import time

import pytest
from msgspec import ValidationError

from otel_gpu.capture.host import polling_thread
from otel_gpu.capture.host.fabric import FabricReader, Ports
from otel_gpu.wire.fabric_bodies import FABRIC, MAX_PORTS
from tests.adapters import write_port

SAID = {
    "adapter": "mlx5_0",
    "port": 1,
    "guid": "b83f:d203:0013:4a20",
    "firmware": "28.39.1002",
    "model": "MT4129",
    "vendor": "0x15b3",
    "state": "active",
    "physical_state": "linkup",
    "link_layer": "InfiniBand",
    "interface": "ib0",
    "rate_bps": 400_000_000_000,
    "counters": {
        "port_xmit_data": 1_000_000_012,
        "port_rcv_data": 28,
        "port_xmit_packets": 1009,
        "port_rcv_packets": 2003,
        "port_xmit_wait": 17,
        "symbol_error": 0,
        "link_downed": 1,
        "out_of_sequence": 3,
        "local_ack_timeout_err": 5,
    },
}


def read(root):
    """Return a reading, which a recording would accept."""
    info = Ports(str(root)).read()
    assert FABRIC.parse(json.dumps(info).encode()) == info
    return info


@pytest.fixture
def reading(tmp_path):
    """Return a running reader of a tree, which is stopped at the end; and the tree."""
    started = []

    def start(interval_s=0.001):
        one = FabricReader(interval_s, str(tmp_path))
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.close()
        one._thread.join(timeout=10)


def wait_for(reader, is_enough):
    """Take readings until they are enough."""
    found = []
    until = time.monotonic() + 20
    while not is_enough(found) and time.monotonic() < until:
        found += reader.take()
        time.sleep(0.001)
    assert is_enough(found), found
    return found


def test_what_a_port_says_is_read(tmp_path):
    """Words of four bytes are bytes, and what is no counter is left."""
    write_port(tmp_path)

    assert read(tmp_path) == {"ports": [SAID], "left_out": 0, "failed": {}}


def test_drivers_have_counters_of_their_own(tmp_path):
    """EFA counts bytes, and has no folder of InfiniBand's counters."""
    folder = write_port(tmp_path, "rdmap0s6", tx_bytes=70_001, rx_bytes=11, retrans_pkts=13)
    shutil.rmtree(folder / "counters")
    for name in ("out_of_sequence", "local_ack_timeout_err", "lifespan"):
        (folder / "hw_counters" / name).unlink()

    (port,) = read(tmp_path)["ports"]

    assert port["counters"] == {"tx_bytes": 70_001, "rx_bytes": 11, "retrans_pkts": 13}


def test_bytes_are_counted_once(tmp_path):
    """Of two counters of the same bytes, InfiniBand's own is taken."""
    write_port(tmp_path, tx_bytes=99)

    (port,) = read(tmp_path)["ports"]

    assert port["counters"]["port_xmit_data"] == 1_000_000_012
    assert "tx_bytes" not in port["counters"]


def test_adapters_are_looked_for_rarely_and_read_often(tmp_path):
    """A host without any wakes the agent up six times a minute for that."""
    reader = FabricReader(1.5, str(tmp_path))
    without = reader._turn()
    write_port(tmp_path)

    assert (without, reader._turn(), reader._turn()) == (10.0, 1.5, 1.5)


def test_a_host_without_adapters_has_none(tmp_path):
    """Whether the folder is there or not."""
    assert read(tmp_path)["ports"] == []
    assert read(tmp_path / "missing") == {"ports": [], "left_out": 0, "failed": {}}


def test_ports_beyond_the_limit_are_counted(tmp_path):
    """A tree of very many does not make a record of any size."""
    for number in range(MAX_PORTS + 7):
        (tmp_path / f"mlx5_{number}" / "ports" / "1").mkdir(parents=True)

    info = read(tmp_path)

    assert (len(info["ports"]), info["left_out"]) == (MAX_PORTS, 7)


@pytest.mark.parametrize(
    "text",
    ["-1", "1e9", "0x10", "\N{ARABIC-INDIC DIGIT SEVEN}", "9" * 20, "9" * 4000, "1 2", "\0"],
)
def test_what_is_no_count_is_left_out_and_counted(tmp_path, text):
    """Of one counter; the others are read."""
    folder = write_port(tmp_path)
    (folder / "counters" / "symbol_error").write_text(text)

    info = read(tmp_path)

    assert info["failed"] == {"not_a_count": 1}
    assert "symbol_error" not in info["ports"][0]["counters"]
    assert info["ports"][0]["counters"]["link_downed"] == 1


def test_a_count_that_fits_no_more_when_it_is_bytes_is_left_out(tmp_path):
    """Words of four bytes, of which there are too many."""
    write_port(tmp_path, port_xmit_data=1 << 62)

    info = read(tmp_path)

    assert info["failed"] == {"not_a_count": 1}
    assert "port_xmit_data" not in info["ports"][0]["counters"]


def test_nothing_in_the_tree_is_waited_for(tmp_path):
    """Pipes, folders, links to themselves and to devices are no counters."""
    folder = write_port(tmp_path)
    os.mkfifo(folder / "counters" / "port_rcv_errors")
    (folder / "counters" / "port_xmit_discards").mkdir()
    (folder / "counters" / "link_error_recovery").symlink_to("link_error_recovery")
    (folder / "hw_counters" / "out_of_buffer").symlink_to("/dev/zero")
    (tmp_path / "mlx5_9").symlink_to(tmp_path / "mlx5_9")

    info = read(tmp_path)

    assert info["ports"] == [SAID]
    assert info["failed"] == {"not_a_file": 3, "ELOOP": 6}


def test_names_and_texts_of_strangers_are_cut_or_refused(tmp_path):
    """A name that is none is counted; a text of any size, with control characters, is not."""
    folder = write_port(tmp_path)
    (tmp_path / "a\nb").mkdir()
    (tmp_path / ("x" * 65)).mkdir()
    (folder.parent / "1x").mkdir()
    (tmp_path / "mlx5_0" / "fw_ver").write_bytes(b"\x1b[2J\xff" + b"y" * 9000)
    (folder / "state").write_text("\x1b]0;" + "z" * 9000)

    info = read(tmp_path)

    assert info["failed"] == {"not_a_name": 3}
    (port,) = info["ports"]
    assert port["firmware"] == ("[2J\N{REPLACEMENT CHARACTER}" + "y" * 200)[:128]
    assert len(port["state"]) == 128


def test_a_quiet_network_is_passed_on_rarely(tmp_path, reading):
    """Traffic is no news; it is there with the next reading that is."""
    folder = write_port(tmp_path)
    reader = reading()
    wait_for(reader, len)
    for packets in range(50):
        (folder / "counters" / "port_xmit_packets").write_text(f"{packets}\n")

    assert reader.take() == []


def test_what_is_news_comes_with_the_reading_before_it(tmp_path, reading):
    """So that it is known since when."""
    folder = write_port(tmp_path)
    reader = reading()
    (first,) = wait_for(reader, len)
    # Later than the first reading, there is one more that says the same.
    seen = reader._last
    while reader._last is seen:
        time.sleep(0.001)
    _beside(folder, "6").replace(folder / "hw_counters" / "local_ack_timeout_err")

    before, after = wait_for(reader, lambda found: len(found) >= 2)[:2]

    assert first.ktime_ns < before.ktime_ns < after.ktime_ns
    assert before.info["ports"] == first.info["ports"]
    assert after.info["ports"][0]["counters"]["local_ack_timeout_err"] == 6


def test_an_adapter_may_come_and_go(tmp_path, reading):
    """Each is news at once."""
    reader = reading()
    write_port(tmp_path / "made", "mlx5_3")
    (tmp_path / "made" / "mlx5_3").replace(tmp_path / "mlx5_3")
    plugged = wait_for(reader, lambda found: any(adapters(one) == ["mlx5_3"] for one in found))
    (tmp_path / "mlx5_3").replace(tmp_path.parent / f"{tmp_path.name}-gone")
    unplugged = wait_for(reader, lambda found: any(adapters(one) == [] for one in found))

    assert plugged
    assert unplugged


def test_a_read_that_does_not_come_back_is_late(tmp_path, reading, monkeypatch):
    """It is counted once, said at once, and said again when it is over."""
    write_port(tmp_path)
    monkeypatch.setattr(polling_thread, "LATE_S", 0.05)
    go_on = threading.Event()
    read_port = Ports._read_port
    monkeypatch.setattr(
        Ports, "_read_port", lambda self, folder: go_on.wait(20) and read_port(self, folder)
    )
    reader = reading()
    (late,) = wait_for(reader, len)
    go_on.set()
    found = wait_for(reader, lambda found: any("ports" in one.info for one in found))

    assert late.info == {"late": 1, "is_late": True}
    assert [one.info["late"] for one in found] == [1] * len(found)
    assert not found[-1].info["is_late"]
    for one in (late, *found):
        FABRIC.parse(json.dumps(one.info).encode())


def adapters(one):
    return [port["adapter"] for port in one.info.get("ports", ())]


def _beside(folder, text):
    path = folder / "new"
    path.write_text(f"{text}\n")
    return path


@pytest.mark.parametrize(
    "body",
    [
        {"ports": [{"adapter": "a"}]},
        {"ports": [{"adapter": "a", "port": 1, "counters": {"no_such": 1}}]},
        {"ports": [{"adapter": "a", "port": 1, "counters": {"symbol_error": -1}}]},
        {"ports": [{"adapter": "a", "port": 1, "counters": {"symbol_error": 1.5}}]},
        {"ports": [{"adapter": "a", "port": 1}] * 2},
        {"ports": [{"adapter": "a", "port": n} for n in range(129)]},
        {"ports": [{"adapter": "a" * 129, "port": 1}]},
        {"ports": {}},
        {"failed": {str(n): 1 for n in range(65)}},
        {"is_late": 1},
        {"late": 1 << 63},
    ],
)
def test_a_recording_may_say_anything(body):
    """What no host says is refused."""
    with pytest.raises(ValidationError):
        FABRIC.parse(json.dumps(body).encode())
