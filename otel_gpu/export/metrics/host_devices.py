"""Readings of the host's devices as metrics; see ``wire.device_bodies``."""

from collections.abc import Iterator, Mapping
from typing import Literal

from otel_gpu.capture.host.kernel_log import format_bus_id
from otel_gpu.enrich.activities import DeviceFaultActivity, DevicesActivity
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.device_bodies import MAX_DEVICES, GpuReading, MemorySizes

_GPU = ((semconv.HW_TYPE, "gpu"),)
_TASKS = ("general", "encoder", "decoder")
_FAILED, _OK = "failed", "ok"
_HZ_PER_MHZ = 1_000_000
# Distinct kinds of errors, of all devices, and the key of further ones.
_MAX_XIDS = 1024
_OTHERS = ("", 0)
_Figure = Literal[
    "power_mw",
    "energy_mj",
    "clock_mhz",
    "clock_limit_mhz",
    "temperature_c",
    "memory_temperature_c",
]
# Figures that are a metric each, with the factor to its unit.
_PLAIN: tuple[tuple[_Figure, semconv.Instrument, float, Attributes], ...] = (
    ("power_mw", semconv.METRIC_HW_POWER, 1e-3, _GPU),
    ("energy_mj", semconv.METRIC_HW_ENERGY, 1e-3, _GPU),
    ("clock_mhz", semconv.METRIC_GPU_CLOCK_FREQUENCY, _HZ_PER_MHZ, ()),
    ("clock_limit_mhz", semconv.METRIC_GPU_CLOCK_LIMIT, _HZ_PER_MHZ, ()),
    (
        "temperature_c",
        semconv.METRIC_HW_TEMPERATURE,
        1,
        (*_GPU, (semconv.HW_TEMPERATURE_SENSOR, "gpu")),
    ),
    (
        "memory_temperature_c",
        semconv.METRIC_HW_TEMPERATURE,
        1,
        (*_GPU, (semconv.HW_TEMPERATURE_SENSOR, "memory")),
    ),
)
_ACTIVITIES = {
    "sm_activity": semconv.METRIC_GPU_SM_ACTIVITY,
    "sm_occupancy": semconv.METRIC_GPU_SM_OCCUPANCY,
    "tensor_activity": semconv.METRIC_GPU_TENSOR_ACTIVITY,
    "dram_activity": semconv.METRIC_GPU_DRAM_ACTIVITY,
}


class HostDevices:
    """The latest reading of each device of the host; a removed device keeps only its state."""

    def __init__(self) -> None:
        self._driver = ""
        self._late = 0
        self._failed: Mapping[str, int] = {}
        self._is_late = False
        # By index: a lost device does not report which one it is.
        self._gpus: dict[int, GpuReading] = {}
        self._attributes: dict[int, Attributes] = {}
        # By the bus address: attributes of the device, and counts of each XID.
        self._places: Recent[str, Attributes] = Recent(MAX_DEVICES)
        self._xids: dict[tuple[str, int], int] = {}

    def observe(self, activity: DevicesActivity) -> None:
        """Add a newer reading."""
        info = activity.info
        self._driver = info.get("driver") or self._driver
        self._late = info.get("late", self._late)
        self._failed = info.get("failed", self._failed)
        self._is_late = info.get("is_late", False)
        if "gpus" not in info:
            return
        self._gpus = {gpu["index"]: gpu for gpu in info["gpus"]}
        for index, gpu in self._gpus.items():
            if not gpu.get("is_lost"):
                found = self._attributes[index] = _identify(gpu, self._driver)
                if "bus_id" in gpu:
                    self._places[format_bus_id(gpu["bus_id"])] = found

    def observe_fault(self, activity: DeviceFaultActivity) -> None:
        """Count an error that a driver reported."""
        event = activity.event
        key = (event.bus_id, event.xid)
        if key not in self._xids and len(self._xids) >= _MAX_XIDS:
            key = _OTHERS
        self._xids[key] = self._xids.get(key, 0) + event.times

    def measurements(self) -> Iterator[Measurement]:
        """Yield the measurements of each device, and of the readings themselves."""
        for (bus_id, xid), count in self._xids.items():
            known = self._places.get(bus_id) or ((semconv.HW_ID, bus_id or "others"),)
            kind = f"xid_{xid}" if bus_id else "xid"
            attributes = (*known, *_GPU, (semconv.ERROR_TYPE, kind))
            yield Measurement(
                semconv.METRIC_HW_ERRORS, attributes, source=(bus_id, xid), value=count
            )
        if not self._gpus and not self._failed and not self._late:
            return
        for index, gpu in self._gpus.items():
            device = self._attributes.get(index)
            if device is None:
                # Its identity was never read.
                continue
            has_failed = self._is_late or gpu.get("is_lost", False)
            for state, is_in_it in ((_OK, not has_failed), (_FAILED, has_failed)):
                attributes = (*device, *_GPU, (semconv.HW_STATE, state))
                source = (index, state)
                yield Measurement(
                    semconv.METRIC_HW_STATUS, attributes, source=source, value=int(is_in_it)
                )
            for instrument, attributes, value in _figures(gpu):
                yield Measurement(
                    instrument,
                    attributes=(*device, *attributes),
                    source=(index, attributes),
                    value=value,
                )
            yield from _parts(gpu, device, index)
        yield Measurement(
            semconv.METRIC_OTEL_GPU_DEVICES_LATE, attributes=(), source="late", value=self._late
        )
        for name, count in self._failed.items():
            attributes = ((semconv.ERROR_TYPE, name),)
            yield Measurement(
                semconv.METRIC_OTEL_GPU_DEVICES_FAILED, attributes, source=name, value=count
            )

    def of_process(self, pid: int) -> Iterator[Measurement]:
        """Yield the driver's figures of a process, device by device."""
        for index, device in self._attributes.items():
            if index not in self._gpus:
                continue
            for process in self._gpus[index].get("processes", ()):
                if process["pid"] != pid:
                    continue
                if "memory_bytes" in process:
                    usage = semconv.METRIC_GPU_PROCESS_MEMORY_USAGE
                    yield Measurement(
                        instrument=usage,
                        attributes=device,
                        source=index,
                        value=process["memory_bytes"],
                    )
                if "sm_percent" in process:
                    used = semconv.METRIC_GPU_PROCESS_UTILIZATION
                    yield Measurement(
                        instrument=used,
                        attributes=device,
                        source=index,
                        value=process["sm_percent"] / 100,
                    )


def _identify(gpu: GpuReading, driver: str) -> Attributes:
    pairs = (
        (semconv.HW_ID, gpu.get("uuid", "")),
        (semconv.HW_VENDOR, "NVIDIA"),
        (semconv.HW_MODEL, gpu.get("model", "")),
        (semconv.HW_SERIAL_NUMBER, gpu.get("serial_number", "")),
        (semconv.HW_DRIVER_VERSION, driver),
        (semconv.CUDA_DEVICE_UUID, gpu.get("uuid", "").removeprefix("GPU-")),
    )
    known = tuple((name, value) for name, value in pairs if value)
    return (*known, (semconv.CUDA_DEVICE_INDEX, gpu["index"]))


def _figures(gpu: GpuReading) -> Iterator[tuple[semconv.Instrument, Attributes, float]]:
    for name, instrument, factor, attributes in _PLAIN:
        if name in gpu:
            yield instrument, attributes, gpu[name] * factor
    used = gpu.get("utilization", {})
    for task in _TASKS:
        if task in used:
            instrument = semconv.METRIC_HW_GPU_UTILIZATION
            yield instrument, ((semconv.HW_GPU_TASK, task),), used[task] / 100
    yield from _memory(gpu.get("memory_bytes", {}))
    for kind, count in gpu.get("errors", {}).items():
        attributes = (*_GPU, (semconv.ERROR_TYPE, kind))
        yield semconv.METRIC_HW_ERRORS, attributes, count
    for reason, limited_ns in gpu.get("limited_ns", {}).items():
        attributes = ((semconv.GPU_CLOCK_LIMIT_REASON, reason),)
        yield semconv.METRIC_GPU_CLOCK_LIMITED_TIME, attributes, limited_ns
    for link, direction, size_bytes in gpu.get("io_bytes", ()):
        attributes = ((semconv.NETWORK_IO_DIRECTION, direction), (semconv.GPU_LINK, link))
        yield semconv.METRIC_HW_GPU_IO, attributes, size_bytes
    for activity, share in gpu.get("activity", {}).items():
        yield _ACTIVITIES[activity], (), share


def _memory(sizes: MemorySizes) -> Iterator[tuple[semconv.Instrument, Attributes, float]]:
    limit, usage = sizes.get("limit"), sizes.get("usage")
    if limit is not None:
        yield semconv.METRIC_HW_GPU_MEMORY_LIMIT, (), limit
    if usage is not None:
        yield semconv.METRIC_HW_GPU_MEMORY_USAGE, (), usage
        if limit:
            yield semconv.METRIC_HW_GPU_MEMORY_UTILIZATION, (), usage / limit


def _parts(gpu: GpuReading, device: Attributes, index: int) -> Iterator[Measurement]:
    # The memory of MIG devices, as parts of the device.
    own_names = {semconv.HW_ID, semconv.CUDA_DEVICE_UUID, semconv.HW_SERIAL_NUMBER}
    shared = tuple(pair for pair in device if pair[0] not in own_names)
    for number, part in enumerate(gpu.get("parts", ())):
        own = ((semconv.HW_ID, part.get("uuid", "")), (semconv.HW_PARENT, gpu.get("uuid", "")))
        for instrument, attributes, value in _memory(part.get("memory_bytes", {})):
            source = (index, number, attributes)
            yield Measurement(
                instrument, attributes=(*own, *shared, *attributes), source=source, value=value
            )
