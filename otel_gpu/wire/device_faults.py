"""Errors of devices, as their driver reports them: the body of RECORD_DEVICE_FAULT, and its event."""

from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from otel_gpu.wire.json_body import UINT32_MAX, BodyType, UInt32

MAX_TEXT: Final = 1024
"""Characters of a text in it."""

_Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class DeviceFaultBody(Struct, frozen=True):
    """The fields are those of ``DeviceFault``; ``pid`` and ``name`` are from the driver."""

    told_by: Literal["kernel_log", "nvml"]
    xid: UInt32
    bus_id: _Text
    pid: UInt32 = 0
    name: _Text = ""
    message: _Text = ""
    times: Annotated[int, Meta(ge=1, le=UINT32_MAX)] = 1


DEVICE_FAULT: Final = BodyType(DeviceFaultBody)


class DeviceFault(NamedTuple):
    """
    An error of a device, as its driver said it.

    Attributes:
        program_ktime_ns: With ``pid``, the watched process whose work it was; 0: none that is watched.
        told_by: ``kernel_log`` or ``nvml``, which does not say whose work it was.
        xid: NVIDIA's number of the kind.
        bus_id: Where the device is: domain, bus and device of PCI.
        said_pid: Whose work it was, as the driver knows it: in the initial pid namespace; 0: not said.
        said_name: That process's name, which it chose itself.
        times: How often it was said at once.
        message: What else was said.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    told_by: str
    xid: int
    bus_id: str
    said_pid: int
    said_name: str
    times: int
    message: str

    @property
    def comm(self) -> str:
        """Return the name of the process."""
        return self.said_name

    @property
    def tid(self) -> int:
        """Return 0: it is about no thread."""
        return 0
