"""NVML: NVIDIA's own bindings over a stub of its library, in a process that has only that one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import ValidationError

from otel_gpu.capture.host import nvml
from otel_gpu.capture.host.nvml import NvmlDevices
from otel_gpu.wire.device_bodies import DEVICES
from tests.stubs.build import stub_nvml

H200 = """\
-1 count 1
0 uuid GPU-8f6d2bd1-6c0a-4c5a-9d0b-9a8c7f6e5d4c
0 model NVIDIA H200
0 serial 1654922007036
0 bus_id 00000000:4E:00.0
0 gpu_percent 97
0 memory_percent 31
0 encoder_percent 0
0 memory_total 150754820096
0 memory_reserved 700448768
0 memory_used 140000000001
0 power_mw 612345
0 energy_mj 123456789012
0 temperature_c 71
0 clock_mhz 1410
0 clock_limit_mhz 1980
0 reasons 4
0 corrected 3
0 uncorrected 0
0 field.74 5000000007
0 field.269 11
0 field.197 1048583
0 field.82 88
0 pid 4242
0 pid_bytes 139000000007
0 pid_percent 93
"""
# Reads until there is what is asked for, and prints it.
READ = """
import json, sys, time
from otel_gpu.capture.host import nvml, polling_thread as patient_reader
patient_reader.LATE_S = {late_s}
devices = nvml.NvmlDevices({interval_s})
devices.start()
found = []
until = time.monotonic() + 20
while len(found) < {readings} and time.monotonic() < until:
    if (reading := devices.take()) is not None:
        found.append(reading)
        print(json.dumps(reading), flush=True)
    time.sleep(0.01)
devices.close()
"""


@pytest.fixture
def read(tmp_path):
    """Return the readings of devices that say what a text says, as a recording would have them."""

    def run(said, readings=1, *, late_s=5.0, interval_s=60):
        file = tmp_path / "devices.txt"
        file.write_text(said)
        script = READ.format(readings=readings, late_s=late_s, interval_s=interval_s)
        environment = {
            "LD_LIBRARY_PATH": str(stub_nvml().parent),
            "OTEL_GPU_STUB_NVML": str(file),
            "PYTHONPATH": str(Path(__file__).parents[4]),
        }
        printed = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        return [DEVICES.parse(line.encode()) for line in printed.splitlines()]

    return run


def test_what_a_device_says_is_read(read):
    """Every figure, in the unit of its name."""
    (reading,) = read(H200)

    assert reading == {
        "driver": "580.65.06",
        "left_out": 0,
        "late": 0,
        "is_late": False,
        "failed": {},
        "gpus": [
            {
                "index": 0,
                "is_lost": False,
                "uuid": "GPU-8f6d2bd1-6c0a-4c5a-9d0b-9a8c7f6e5d4c",
                "model": "NVIDIA H200",
                "serial_number": "1654922007036",
                "bus_id": "00000000:4E:00.0",
                "utilization": {"general": 97, "memory": 31, "encoder": 0},
                "memory_bytes": {
                    "limit": 150754820096,
                    "usage": 140000000001,
                    "reserved": 700448768,
                },
                "power_mw": 612345,
                "energy_mj": 123456789012,
                "temperature_c": 71,
                "clock_mhz": 1410,
                "clock_limit_mhz": 1980,
                "reasons": 4,
                "errors": {"corrected": 3, "uncorrected": 0},
                "limited_ns": {"sw_power_cap": 5000000007, "sw_thermal": 11},
                "io_bytes": [("pcie", "transmit", 1048583)],
                "memory_temperature_c": 88,
                "processes": [{"pid": 4242, "memory_bytes": 139000000007, "sm_percent": 93}],
            }
        ],
    }


def test_a_device_that_can_say_little_says_that(read):
    """What is not supported is left out, and is no failure."""
    (reading,) = read("-1 count 1\n0 uuid GPU-1\n0 model T4\n")

    assert reading["failed"] == {}
    (gpu,) = reading["gpus"]
    assert gpu.keys() <= {
        *("index", "is_lost", "uuid", "model", "reasons", "processes", "limited_ns", "io_bytes")
    }


def test_parts_of_a_device_have_memory_of_their_own(read):
    """MIG devices."""
    said = H200 + "0 mig 1\n0 parts 7\n"
    for part, size in ((0, 17), (2, 19)):
        said += f"{100 + part} uuid MIG-{part}\n{100 + part} memory_total {size}\n"
        said += f"{100 + part} memory_used {size - 1}\n"
    (reading,) = read(said)

    assert reading["gpus"][0]["parts"] == [
        {"uuid": "MIG-0", "memory_bytes": {"limit": 17, "usage": 16}},
        {"uuid": "MIG-2", "memory_bytes": {"limit": 19, "usage": 18}},
    ]


def test_activities_are_shares_of_the_time_since_the_reading_before(read):
    """Of a device that counts them; none is more than all of it."""
    said = H200 + "0 gpm 1\n0 gpm.2 62.5\n0 gpm.3 100.25\n0 gpm.5 0\n"
    found = read(said, readings=3, interval_s=0.01)

    assert found[-1]["gpus"][0]["activity"] == {
        "sm_activity": 0.625,
        "sm_occupancy": 1.0,
        "tensor_activity": 0.0,
    }
    assert found[-1]["failed"] == {}


def test_a_device_that_fell_off_its_bus_is_lost_and_the_other_is_not(read):
    """GPU_IS_LOST; the error is counted by NVML's own name."""
    said = H200.replace("count 1", "count 2") + "1 uuid GPU-2\n1 code 15\n"
    (reading,) = read(said)

    assert [gpu["is_lost"] for gpu in reading["gpus"]] == [False, True]
    assert reading["failed"] == {"GpuIsLost": 1}


def test_a_call_that_does_not_come_back_is_late_once(read):
    """The capture goes on, and the process ends without waiting for it."""
    found = read(H200 + "0 sleep_ms 30000\n", late_s=0.05)

    assert [(one["late"], one["is_late"], "gpus" in one) for one in found] == [(1, True, False)]


def test_a_host_without_a_driver_says_why(read):
    """NVML is there, the driver is not; it is tried again later."""
    assert read("-1 code.nvmlInit 9\n", readings=0) == []


XIDS = """
import json, sys, time
from otel_gpu.capture.host import nvml
devices = nvml.NvmlDevices(60, wants_xids=True)
devices.start()
found = []
until = time.monotonic() + 20
while len(found) < {count} and time.monotonic() < until:
    found += devices.take_xids()
    time.sleep(0.01)
devices.close()
print(json.dumps(found))
"""


def test_xids_are_said_with_their_device(tmp_path):
    """Of one that registers for them, between two readings; the other one cannot."""
    file = tmp_path / "devices.txt"
    said = H200.replace("count 1", "count 2") + "0 xid 79\n1 uuid GPU-2\n1 xid 48\n"
    file.write_text(said + "1 bus_id 00000000:5E:00.0\n1 code.nvmlDeviceRegisterEvents 3\n")
    printed = subprocess.run(
        [sys.executable, "-c", XIDS.format(count=1)],
        env={
            "LD_LIBRARY_PATH": str(stub_nvml().parent),
            "OTEL_GPU_STUB_NVML": str(file),
            "PYTHONPATH": str(Path(__file__).parents[4]),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert json.loads(printed) == [[79, "0000:4e:00", 0, "", ""]]


def test_without_the_bindings_nothing_is_read():
    """The extra is not installed."""

    def load():
        raise ImportError

    devices = NvmlDevices(1.0, load)
    devices.start()
    devices._thread.join(10)
    assert not devices._thread.is_alive()
    assert devices.take() is None


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": [{"uuid": "x"}]},
        {"gpus": [{"index": 0}, {"index": 0}]},
        {"gpus": [{"index": 64}]},
        {"gpus": [{"index": 0, "is_lost": 1}]},
        {"gpus": [{"index": 0, "uuid": "x" * 257}]},
        {"gpus": [{"index": 0, "power_mw": -1}]},
        {"gpus": [{"index": 0, "utilization": {"general": 101}}]},
        {"gpus": [{"index": 0, "utilization": {"mining": 1}}]},
        {"gpus": [{"index": 0, "limited_ns": {"boredom": 1}}]},
        {"gpus": [{"index": 0, "io_bytes": [["pcie", "transmit"]]}]},
        {"gpus": [{"index": 0, "io_bytes": [["pcie", "transmit", True]]}]},
        {"gpus": [{"index": 0, "activity": {"sm_activity": 1.5}}]},
        {"gpus": [{"index": 0, "processes": [{"memory_bytes": 1}]}]},
        {"gpus": [{"index": 0, "processes": [{"pid": 1}] * 257}]},
        {"gpus": [{"index": number} for number in range(65)]},
        {"late": -1},
        {"is_late": "yes"},
        {"failed": {"x": -1}},
    ],
)
def test_what_no_host_says_is_refused(body):
    """A recording may come from anywhere."""
    with pytest.raises(ValidationError):
        DEVICES.parse(json.dumps(body).encode())


def test_without_nvml_its_bindings_are_not_loaded_until_there_is_one(monkeypatch):
    """They are megabytes, which an agent on a host without a driver has no use for."""

    def load_library(name):
        asked.append(name)
        if len(asked) < 3:
            raise OSError(f"{name}: cannot open shared object file")

    asked, loaded, waited = [], [], []
    monkeypatch.setattr(nvml.ctypes, "CDLL", load_library)
    monkeypatch.setattr(nvml.importlib, "import_module", lambda name: loaded.append(name) or True)
    monkeypatch.setattr(nvml._Devices, "read", lambda _: None)
    devices = NvmlDevices(1)
    monkeypatch.setattr(devices, "_rest", lambda *_: devices.close())
    monkeypatch.setattr(devices._stop, "wait", waited.append)
    devices._run()

    assert asked == ["libnvidia-ml.so.1"] * 3
    assert loaded == ["pynvml"]
    assert waited == [60, 60, 0]
