"""The body of RECORD_DEVICES: what NVML reports of the devices of a host."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Required, TypedDict

from msgspec import Meta, ValidationError

from otel_gpu.wire.json_body import BodyType, Count, Int64

MAX_DEVICES: Final = 64
"""Devices that are read, without MIG devices."""
MAX_PARTS: Final = 256
"""Processes, and MIG devices, that are listed per device."""
MAX_TEXT: Final = 256
"""Characters of a text."""


class ClockLimit(StrEnum):
    """Why the clocks of a device are limited."""

    SW_POWER_CAP = "sw_power_cap"
    SYNC_BOOST = "sync_boost"
    SW_THERMAL = "sw_thermal"
    HW_THERMAL = "hw_thermal"
    HW_POWER_BRAKE = "hw_power_brake"


# Reasons for limited clocks, by NVML's field that counts their nanoseconds.
LIMITED: Final[Mapping[str, ClockLimit]] = {
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP": ClockLimit.SW_POWER_CAP,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST": ClockLimit.SYNC_BOOST,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": ClockLimit.SW_THERMAL,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": ClockLimit.HW_THERMAL,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": ClockLimit.HW_POWER_BRAKE,
}
# Link and direction of the bytes that a field of NVML counts.
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
"""Activities that NVML's GPM measures as shares of time, by its number."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
MemorySizes = dict[Literal["limit", "usage", "reserved"], Count]
_Percent = Annotated[int, Meta(ge=0, le=100)]


class MigDevice(TypedDict, total=False):
    """A part of a device that behaves as a device."""

    uuid: Text
    memory_bytes: MemorySizes


class GpuProcess(TypedDict, total=False):
    """A process that uses a device; its pid is that of the initial pid namespace."""

    pid: Required[Count]
    memory_bytes: Count
    sm_percent: _Percent


class GpuReading(TypedDict, total=False):
    """
    Figures of one device; those that the device does not have are missing.

    Attributes:
        utilization: Percent, by task.
        reasons: NVML's bits of why clocks are limited now.
        limited_ns: How long clocks were limited, by reason, cumulative.
        io_bytes: Link, direction and bytes, cumulative.
        activity: Shares of time, from 0 to 1.
    """

    index: Required[Annotated[int, Meta(ge=0, lt=MAX_DEVICES)]]
    is_lost: bool
    uuid: Text
    model: Text
    serial_number: Text
    bus_id: Text
    utilization: dict[Literal["general", "memory", "encoder", "decoder"], _Percent]
    memory_bytes: MemorySizes
    power_mw: Count
    energy_mj: Count
    temperature_c: Int64
    memory_temperature_c: Int64
    clock_mhz: Count
    clock_limit_mhz: Count
    reasons: Count
    errors: dict[Literal["corrected", "uncorrected"], Count]
    limited_ns: dict[ClockLimit, Count]
    io_bytes: Annotated[
        list[tuple[Literal["pcie", "nvlink"], Literal["transmit", "receive"], Count]],
        Meta(max_length=len(IO)),
    ]
    parts: Annotated[list[MigDevice], Meta(max_length=MAX_PARTS)]
    processes: Annotated[list[GpuProcess], Meta(max_length=MAX_PARTS)]
    activity: dict[
        Literal["sm_activity", "sm_occupancy", "tensor_activity", "dram_activity"],
        Annotated[float, Meta(ge=0, le=1)],
    ]


class DevicesReading(TypedDict, total=False):
    """
    One reading of all devices; without ``gpus`` it only reports that a reading is late.

    ``failed`` counts NVML's errors by name, and ``late`` readings that took too long.
    """

    driver: Text
    left_out: Count
    late: Count
    is_late: bool
    failed: Annotated[dict[Text, Count], Meta(max_length=MAX_PARTS)]
    gpus: Annotated[list[GpuReading], Meta(max_length=MAX_DEVICES)]
    truncated: bool


def _check_devices(body: DevicesReading) -> None:
    indices = [gpu["index"] for gpu in body.get("gpus", ())]
    if len(set(indices)) < len(indices):
        raise ValidationError(f"gpus: expected one device of each index, got {indices}")


DEVICES: Final = BodyType(DevicesReading, _check_devices)
