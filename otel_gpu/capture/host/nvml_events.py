"""XIDs from NVML, which reports the device but not the process."""

import ctypes
from typing import Any

from otel_gpu.capture.host.kernel_log import Xid, format_bus_id


class XidEvents:
    """
    Waits for XIDs of all devices. Like all calls of NVML, this can block.

    Args:
        nvml: The bindings, with NVML initialized.
        count: The number of devices.
    """

    def __init__(self, nvml: Any, count: int) -> None:  # noqa: ANN401 - no types
        self._nvml = nvml
        self._set: object = None
        # PCI address by the device's handle.
        self._places: dict[int | None, str] = {}
        try:
            self._set = nvml.nvmlEventSetCreate()
        except (AttributeError, nvml.NVMLError):
            return
        for index in range(count):
            self._expect(index)

    @property
    def is_open(self) -> bool:
        """Whether any device reports XIDs."""
        return bool(self._set and self._places)

    def wait(self, time_s: float) -> Xid | None:
        """Return the next XID; None if there was none within ``time_s``."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._set, round(time_s * 1000))
        except self._nvml.NVMLError as error:
            # A device that fell off its bus fails immediately and forever.
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
            # MIG instances and old devices report no XIDs.
            return
        text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
        self._places[_address(handle)] = format_bus_id(text)


def _address(handle: Any) -> int | None:  # noqa: ANN401 - opaque
    return ctypes.cast(handle, ctypes.c_void_p).value
