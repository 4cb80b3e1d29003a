"""Errors of devices, as their driver reports them: the body of RECORD_DEVICE_FAULT, and its event."""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from otel_gpu.wire.json_body import UINT32_MAX, BodyType, UInt32

MAX_TEXT: Final = 1024
"""Characters of a text in it."""

_Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class FaultSource(StrEnum):
    """What reported an error of a device."""

    KERNEL_LOG = "kernel_log"
    NVML = "nvml"
    """It does not name the process."""


class DeviceFaultBody(Struct, frozen=True):
    """The fields are those of ``DeviceFault``; ``pid`` and ``name`` are from the driver."""

    reported_by: FaultSource
    xid: UInt32
    bus_id: _Text
    pid: UInt32 = 0
    name: _Text = ""
    message: _Text = ""
    times: Annotated[int, Meta(ge=1, le=UINT32_MAX)] = 1


DEVICE_FAULT: Final = BodyType(DeviceFaultBody)


class DeviceFault(NamedTuple):
    """
    An error of a device, as its driver reported it.

    Attributes:
        program_ktime_ns: With ``pid``, the watched program whose work failed; 0: not a watched one.
        xid: NVIDIA's number of the kind of error.
        bus_id: PCI domain, bus and device.
        reported_pid: The process whose work failed, in the initial pid namespace; 0: not reported.
        reported_name: The name of that process, which it chose itself.
        times: The number of equal reports in a short time.
        message: The rest of the driver's text.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    reported_by: FaultSource
    xid: int
    bus_id: str
    reported_pid: int
    reported_name: str
    times: int
    message: str

    @property
    def comm(self) -> str:
        """Return the name of the process."""
        return self.reported_name

    @property
    def tid(self) -> int:
        """Return 0: an error has no thread."""
        return 0
