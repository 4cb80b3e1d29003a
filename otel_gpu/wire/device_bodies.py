"""The body of RECORD_DEVICES: what NVML said of the devices of a host."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

MAX_DEVICES: Final = 64
"""Devices that are read, MIG devices apart."""
MAX_PARTS: Final = 256
"""Processes, and MIG devices, that are listed of one device."""

MAX_TEXT: Final = 256
"""Characters of a text in it."""

# Of field values: why the clocks were limited, which is counted in nanoseconds, by the name of its field.
LIMITED: Final[Mapping[str, str]] = {
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP": "sw_power_cap",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST": "sync_boost",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
# Over which link, and which way, bytes went that a field counts.
IO: Final[Mapping[str, tuple[str, str]]] = {
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": ("pcie", "transmit"),
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": ("pcie", "receive"),
    "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES": ("nvlink", "transmit"),
    "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES": ("nvlink", "receive"),
}
GPM_METRICS: Final[Mapping[int, str]] = {
    2: "sm_activity",
    3: "sm_occupancy",
    5: "tensor_activity",
    10: "dram_activity",
}
"""Of NVML's GPM: names of activities that are shares of the time, by their number."""

_TASKS = frozenset({"general", "memory", "encoder", "decoder"})
_ERRORS = frozenset({"corrected", "uncorrected"})
_LIMITS = frozenset(LIMITED.values())
_ACTIVITIES = frozenset(GPM_METRICS.values())
_WAYS = frozenset(IO.values())

_INT64_MAX = (1 << 63) - 1
_PERCENT = range(101)
_IO_FIELDS = 3

GPU_SHAPE: Final[Mapping[str, Any]] = {
    "index": int,
    "uuid": str,
    "model": str,
    "serial_number": str,
    "bus_id": str,
    "utilization": (Mapping, int),
    "memory_bytes": (Mapping, int),
    "power_mw": int,
    "energy_mj": int,
    "temperature_c": int,
    "memory_temperature_c": int,
    "clock_mhz": int,
    "clock_limit_mhz": int,
    "reasons": int,
    "errors": (Mapping, int),
    "limited_ns": (Mapping, int),
    "io_bytes": [list],
    "parts": [{"uuid": str, "memory_bytes": (Mapping, int)}],
    "processes": [{"pid": int, "memory_bytes": int, "sm_percent": int}],
    "activity": (Mapping, float),
}
SHAPE: Final[Mapping[str, Any]] = {
    "driver": str,
    "left_out": int,
    "late": int,
    "failed": (Mapping, int),
    "gpus": [GPU_SHAPE],
}
"""See ``bodies._check``."""


def check_devices(body: Mapping[str, Any]) -> None:
    """
    Check what a shape cannot say.

    Raises:
        TypeError: It is not what a host may say of its devices.
    """
    gpus = body.get("gpus", [])
    counts = [body.get("left_out", 0), body.get("late", 0), *body.get("failed", {}).values()]
    good = (
        isinstance(body.get("is_late", False), bool)
        and len(body.get("driver", "")) <= MAX_TEXT
        and len(body.get("failed", {})) <= MAX_PARTS
        and all(len(name) <= MAX_TEXT for name in body.get("failed", {}))
        and all(0 <= count <= _INT64_MAX for count in counts)
        and len(gpus) <= MAX_DEVICES
        and all(all(_checks(gpu)) for gpu in gpus)
        and len({gpu["index"] for gpu in gpus}) == len(gpus)
    )
    if not good:
        raise TypeError("body is not what devices say of themselves")


def _checks(gpu: Mapping[str, Any]) -> Iterator[bool]:
    yield 0 <= gpu.get("index", -1) < MAX_DEVICES
    yield isinstance(gpu.get("is_lost", False), bool)
    yield all(len(gpu.get(name, "")) <= MAX_TEXT for name in _TEXTS)
    yield all(0 <= gpu.get(name, 0) <= _INT64_MAX for name in _COUNTS)
    utilization = gpu.get("utilization", {})
    yield utilization.keys() <= _TASKS and all(used in _PERCENT for used in utilization.values())
    yield gpu.get("limited_ns", {}).keys() <= _LIMITS
    yield gpu.get("errors", {}).keys() <= _ERRORS
    activity = gpu.get("activity", {})
    yield activity.keys() <= _ACTIVITIES and all(0 <= share <= 1 for share in activity.values())
    for name in ("memory_bytes", "limited_ns", "errors"):
        yield _are_counts(gpu.get(name, {}))
    yield gpu.get("memory_bytes", {}).keys() <= {"limit", "usage", "reserved"}
    yield len(gpu.get("io_bytes", ())) <= len(_WAYS)
    yield all(map(_is_io, gpu.get("io_bytes", ())))
    for name in ("parts", "processes"):
        yield len(gpu.get(name, ())) <= MAX_PARTS
    for part in gpu.get("parts", ()):
        yield len(part.get("uuid", "")) <= MAX_TEXT and _are_counts(part.get("memory_bytes", {}))
    for process in gpu.get("processes", ()):
        yield _are_counts(process) and process.get("sm_percent", 0) in _PERCENT
        yield "pid" in process


_TEXTS = tuple(name for name, shape in GPU_SHAPE.items() if shape is str)
_COUNTS = tuple(
    name for name, shape in GPU_SHAPE.items() if shape is int and not name.endswith("_c")
)


def _are_counts(figures: Mapping[str, int]) -> bool:
    return all(0 <= figure <= _INT64_MAX for figure in figures.values())


def _is_io(row: list[Any]) -> bool:
    if len(row) != _IO_FIELDS:
        return False
    *way, size_bytes = row
    is_known = all(isinstance(part, str) for part in way) and tuple(way) in _WAYS
    return is_known and type(size_bytes) is int and 0 <= size_bytes <= _INT64_MAX
