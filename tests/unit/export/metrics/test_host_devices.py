"""What the devices of the host say of themselves, as metrics."""

import dataclasses
import json

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.export.exports import open_exports
from otel_gpu.options import ExportConfig
from tests.activities import (
    GPU,
    SECOND,
    capture,
    counters,
    device_fault,
    devices,
    image,
    thread_time,
    times,
)

TRAINER = image(name="train.py")
WORK = times(0, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_GAP, SECOND))
UUID = GPU["uuid"]
DEVICE = {
    "hw.id": UUID,
    "hw.vendor": "NVIDIA",
    "hw.model": "NVIDIA H200",
    "hw.serial_number": "1654922007036",
    "hw.driver_version": "580.65.06",
    "cuda.device.uuid": UUID.removeprefix("GPU-"),
    "cuda.device.index": "0",
}


def metrics_of(tmp_path, *activities, process=None):
    """The latest point of each metric and each set of attributes beside those of the device."""
    path = tmp_path / "sent.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)))
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), WORK, *activities, counters(5)):
            exports.observe(activity)
    found = {}
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            name = attributes_of(resource["resource"]).get("service.name")
            if (name == "train.py") is not bool(process):
                continue
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if scope["scope"]["name"] == "otel_gpu.hardware" or "devices" in metric["name"]:
                        (data,) = (metric[kind] for kind in ("sum", "gauge") if kind in metric)
                        for point in data["dataPoints"]:
                            value = point.get("asInt", point.get("asDouble"))
                            own = attributes_of(point).items() - DEVICE.items()
                            found[metric["name"], *sorted(own)] = float(value)
    return found


def attributes_of(one):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in one.get("attributes", ())}


def test_each_figure_is_a_metric_in_the_unit_of_the_conventions(tmp_path):
    """On the resource of the host, with the device as DCGM names it."""
    reading = devices(1, driver="580.65.06", gpus=[GPU], late=2, failed={"Timeout": 3})

    part = (("hw.id", "MIG-0"), ("hw.parent", UUID))
    gpu = ("hw.type", "gpu")
    assert metrics_of(tmp_path, reading) == {
        ("hw.status", ("hw.state", "ok"), gpu): 1,
        ("hw.status", ("hw.state", "failed"), gpu): 0,
        ("hw.power", gpu): 612.345,
        ("hw.energy", gpu): 7.001,
        ("hw.temperature", ("hw.temperature.sensor", "gpu"), gpu): 71,
        ("hw.temperature", ("hw.temperature.sensor", "memory"), gpu): 88,
        ("hw.errors", ("error.type", "corrected"), gpu): 3,
        ("hw.errors", ("error.type", "uncorrected"), gpu): 0,
        ("hw.gpu.utilization", ("hw.gpu.task", "general")): 0.97,
        ("hw.gpu.utilization", ("hw.gpu.task", "encoder")): 0,
        ("hw.gpu.memory.limit",): 1000,
        ("hw.gpu.memory.usage",): 250,
        ("hw.gpu.memory.utilization",): 0.25,
        ("hw.gpu.memory.limit", *part): 17,
        ("hw.gpu.memory.usage", *part): 16,
        ("hw.gpu.memory.utilization", *part): 16 / 17,
        ("hw.gpu.io", ("gpu.link", "pcie"), ("network.io.direction", "transmit")): 1_048_583,
        ("gpu.clock.frequency",): 1_410e6,
        ("gpu.clock.limit",): 1_980e6,
        ("gpu.clock.limited.time", ("gpu.clock.limit.reason", "sw_power_cap")): 5.000000007,
        ("gpu.sm.activity",): 0.5,
        ("gpu.sm.occupancy",): 0.375,
        ("gpu.dram.activity",): 0.125,
        ("gpu.tensor.activity",): 0.25,
        ("otel_gpu.devices.late",): 2,
        ("otel_gpu.devices.failed", ("error.type", "Timeout")): 3,
    }


def test_what_a_watched_process_has_of_a_device_is_its_own(tmp_path):
    """On the resource of the process; of others nothing is said."""
    found = metrics_of(tmp_path, devices(1, driver="580.65.06", gpus=[GPU]), process=True)

    assert found == {("gpu.process.memory.usage",): 139, ("gpu.process.utilization",): 0.93}


def test_a_lost_device_has_failed_and_says_nothing_else(tmp_path):
    """It is known by its place, as it does not say its name any more."""
    first = devices(1, driver="580.65.06", gpus=[GPU])
    lost = devices(2, gpus=[{"index": 0, "is_lost": True}], failed={"GpuIsLost": 1})

    found = metrics_of(tmp_path, first, lost)
    assert found["hw.status", ("hw.state", "failed"), ("hw.type", "gpu")] == 1
    assert found["otel_gpu.devices.failed", ("error.type", "GpuIsLost")] == 1


def test_a_reading_that_does_not_come_back_is_a_failure_too(tmp_path):
    """The figures stay the last that there were."""
    first = devices(1, driver="580.65.06", gpus=[GPU])

    found = metrics_of(tmp_path, first, devices(2, late=1, is_late=True, failed={}))
    assert found["hw.status", ("hw.state", "failed"), ("hw.type", "gpu")] == 1
    assert found["hw.status", ("hw.state", "ok"), ("hw.type", "gpu")] == 0
    assert found["hw.power", ("hw.type", "gpu")] == 612.345
    assert found["otel_gpu.devices.late",] == 1


def test_errors_of_a_device_are_counted_by_their_number(tmp_path):
    """With the device as NVML names it, if it does; however many kinds a forged recording has."""
    gpu = {**GPU, "bus_id": "00000000:4E:00.0"}
    errors = [device_fault(2, 79), device_fault(3, 79, times=1006)]
    elsewhere = [device_fault(3, 48, bus_id="0000:5e:00")]
    found = metrics_of(tmp_path, devices(1, driver="580.65.06", gpus=[gpu]), *errors, *elsewhere)
    of_gpu = ("hw.type", "gpu")
    assert found["hw.errors", ("error.type", "xid_79"), of_gpu] == 1007
    assert found["hw.errors", ("error.type", "xid_48"), ("hw.id", "0000:5e:00"), of_gpu] == 1

    many = metrics_of(tmp_path, *(device_fault(2, number) for number in range(5003)))
    of_xids = {key: value for key, value in many.items() if key[0] == "hw.errors"}
    assert (len(of_xids), sum(of_xids.values())) == (1025, 5003)


def fault_logs(tmp_path, *activities, **config):
    """The log records of errors, by whose they are."""
    path = tmp_path / "logs.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)), **config)
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), WORK, *activities, counters(5)):
            exports.observe(activity)
    return [
        (attributes_of(resource["resource"])["service.name"], record)
        for line in path.read_text().splitlines()
        for resource in json.loads(line).get("resourceLogs", ())
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]


def test_an_error_of_a_device_is_a_log_record(tmp_path):
    """Of the process whose work it was, in the trace of its span; else of the agent."""
    gpu = {**GPU, "bus_id": "00000000:4E:00.0"}
    (own, nobodys) = fault_logs(
        tmp_path,
        devices(1, gpus=[gpu]),
        device_fault(2, 79, process=TRAINER),
        device_fault(3, 45, reported_pid=9, reported_name="other\x1b"),
    )
    assert (own[0], own[1]["severityText"], own[1]["eventName"]) == (
        *("train.py", "ERROR"),
        "gpu.device.fault",
    )
    said = attributes_of(own[1])
    assert (said["gpu.xid"], said["hw.id"], said["gpu.bus_id"]) == ("79", UUID, "0000:4e:00")
    assert own[1]["traceId"]
    assert (nobodys[0], nobodys[1]["severityText"]) == ("otel-gpu", "INFO")
    assert "traceId" not in nobodys[1]
    said = attributes_of(nobodys[1])
    assert (said["gpu.fault.pid"], said["gpu.fault.process_name"]) == ("9", "other\\x1b")


def test_without_spans_an_error_is_logged_all_the_same(tmp_path):
    """In no trace, as there is none."""
    without = dataclasses.replace(Config().spans, mode="none")
    ((name, record),) = fault_logs(tmp_path, device_fault(2, process=TRAINER), spans=without)
    assert name == "train.py"
    assert "traceId" not in record
