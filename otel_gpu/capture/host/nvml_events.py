"""XIDs as NVML says them: which device it was, and not whose work."""

import ctypes
from typing import Any

from otel_gpu.capture.host.kernel_log import Xid, format_bus_id


class XidEvents:
    """
    Waits for XIDs of the devices; as with all calls of NVML, one may not come back.

    Args:
        nvml: The bindings, of which NVML is open.
        count: How many devices there are.
    """

    def __init__(self, nvml: Any, count: int) -> None:  # noqa: ANN401 - no types
        self._nvml = nvml
        self._set: Any = None
        # By the handle of a device, where it is.
        self._places: dict[int | None, str] = {}
        try:
            self._set = nvml.nvmlEventSetCreate()
        except (AttributeError, nvml.NVMLError):
            return
        for index in range(count):
            self._expect(index)

    @property
    def is_open(self) -> bool:
        """Whether any device says its XIDs."""
        return bool(self._set and self._places)

    def wait(self, time_s: float) -> Xid | None:
        """Return the next XID; None: none came in time."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._set, round(time_s * 1000))
        except self._nvml.NVMLError as error:
            # One that fell off its bus answers at once, again and again.
            if not isinstance(error, self._nvml.NVMLError_Timeout):
                self._places.clear()
            return None
        place = self._places.get(_address(event.device))
        is_xid = event.eventType == self._nvml.nvmlEventTypeXidCriticalError
        return Xid(event.eventData, place) if is_xid and place else None

    def _expect(self, index: int) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        except (AttributeError, nvml.NVMLError):
            # It does not say them: parts of MIG devices and older ones do not.
            return
        text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
        self._places[_address(handle)] = format_bus_id(text)


def _address(handle: Any) -> int | None:  # noqa: ANN401 - opaque
    return ctypes.cast(handle, ctypes.c_void_p).value
