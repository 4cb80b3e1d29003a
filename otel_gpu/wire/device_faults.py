"""Errors of devices, as their driver said them: the body of RECORD_DEVICE_FAULT, and its event."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_TEXT: Final = 1024
"""Characters of a text in it."""

_UINT32_MAX = (1 << 32) - 1
_TEXTS = ("bus_id", "name", "message")
_TOLD_BY = frozenset({"kernel_log", "nvml"})

SHAPE: Final[Mapping[str, Any]] = {
    "told_by": str,
    "xid": int,
    "bus_id": str,
    "pid": int,
    "name": str,
    "message": str,
    "times": int,
}
"""See ``bodies._check``."""


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


def check_device_fault(body: Mapping[str, Any]) -> None:
    """
    Check what a shape cannot say.

    Raises:
        TypeError: It is not what a driver may say.
    """
    good = (
        body["told_by"] in _TOLD_BY
        and all(len(body.get(name, "")) <= MAX_TEXT for name in _TEXTS)
        and all(0 <= body.get(name, 0) <= _UINT32_MAX for name in ("xid", "pid"))
        and 1 <= body.get("times", 1) <= _UINT32_MAX
    )
    if not good:
        raise TypeError("body is not a fault of a device")


def device_fault_of(
    ktime_ns: int, program_ktime_ns: int, pid: int, body: Mapping[str, Any]
) -> DeviceFault:
    """Return the event of a body that was checked."""
    return DeviceFault(
        ktime_ns,
        program_ktime_ns,
        pid,
        body["told_by"],
        body["xid"],
        body["bus_id"],
        body.get("pid", 0),
        body.get("name", ""),
        body.get("times", 1),
        body.get("message", ""),
    )
