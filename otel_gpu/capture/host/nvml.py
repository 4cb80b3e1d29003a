"""
Metrics of the host's GPUs from NVML, through NVIDIA's Python bindings.

Nothing is set, enabled or reset. Metrics that a GPU does not support are left out.
"""

# Calls can block
# ---------------
#
# NVML asks the driver, which can block for many seconds if a device fell off its bus. A call cannot
# be interrupted, so a separate thread makes them. The capture neither waits for that thread nor joins
# it: late readings are counted, and the capture continues with the readings that it has. ctypes
# releases the GIL.
#
# A reading also wakes an idle device. More than one per second would never let it rest.

import ctypes
import importlib.util
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from otel_gpu.capture.host.kernel_log import Xid
from otel_gpu.capture.host.nvml_events import XidEvents
from otel_gpu.capture.host.polling_thread import PollingThread
from otel_gpu.wire.device_bodies import GPM_METRICS, IO, LIMITED, MAX_DEVICES, MAX_PARTS

MAX_XIDS: Final = 256
"""How many XIDs are kept until they are taken; the oldest are evicted."""


_OPEN_AGAIN_S = 60.0
# The longest wait, so that the thread notices the end of the capture.
_WAIT_S = 0.5
_NS_PER_S = 10**9
_WHOLE_PERCENT = 100
_MEMORY_TEMPERATURE = "NVML_FI_DEV_MEMORY_TEMP"
_UNSIGNED_INT = 1
_ALL_LINKS = (1 << 32) - 1
# Errors for metrics that a healthy device does not support.
_UNSUPPORTED = frozenset(
    {"NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "NotFound"}
)
_LOST = frozenset({"GpuIsLost", "GpuNotFound"})


def load_bindings() -> ModuleType:
    """
    Load NVML's bindings, which take 3 MB of memory.

    Raises:
        ImportError: The bindings are not installed.
        OSError: NVML is not installed (yet).
    """
    if importlib.util.find_spec("pynvml") is None:
        raise ImportError("pynvml is not installed", name="pynvml")
    ctypes.CDLL("libnvidia-ml.so.1")
    return importlib.import_module("pynvml")


class NvmlDevices(PollingThread):
    """
    Reads all devices periodically.

    Args:
        interval_s: The period.
        load: Returns the bindings, see ``load_bindings``.
        clock: A monotonic clock in seconds.
        wants_xids: Also wait for XIDs.
    """

    def __init__(
        self,
        interval_s: float,
        load: Callable[[], ModuleType] = load_bindings,
        clock: Callable[[], float] = time.monotonic,
        *,
        wants_xids: bool = False,
    ) -> None:
        super().__init__("otel-gpu-nvml", clock)
        self._wants_xids = wants_xids
        self._xids: deque[Xid] = deque(maxlen=MAX_XIDS)
        self._events: XidEvents | None = None
        self._devices: _Devices | None = None
        self._interval_s = interval_s
        self._load = load
        self._reading: dict[str, object] | None = None
        self._failed: Counter[str] = Counter()

    def take(self) -> dict[str, object] | None:
        """
        Return the latest reading as the body of RECORD_DEVICES; None: nothing changed.

        If a reading became late or stopped being late, the body contains only that.
        """
        with self._lock:
            reading, self._reading = self._reading, None
            has_changed, lateness = self._lateness()
            if reading is None and not has_changed:
                return None
            return {**(reading or {}), **lateness, "failed": dict(self._failed)}

    def take_xids(self) -> Sequence[Xid]:
        """Return the XIDs since the previous call."""
        with self._lock:
            found = tuple(self._xids)
            self._xids.clear()
            return found

    def _turn(self) -> float | None:
        try:
            nvml = self._load()
        except ImportError:
            return None
        except OSError:
            return _OPEN_AGAIN_S
        self._devices = self._devices or _Devices(nvml, self._count_failure)
        with self._asking():
            reading = self._devices.read()
        with self._lock:
            self._reading = reading or self._reading
        self._rest(nvml, reading)
        return 0.0

    def _rest(self, nvml: ModuleType, reading: dict[str, Any] | None) -> None:
        time_s = self._interval_s if reading else _OPEN_AGAIN_S
        until_s = self._clock() + time_s
        gpus = reading["gpus"] if reading and self._wants_xids else ()
        if self._events is not None and any(gpu["is_lost"] for gpu in gpus):
            # NVML was shut down, which ended its events.
            self._events = None
        elif self._events is None and gpus:
            self._events = XidEvents(nvml, len(gpus))
        while not self._stop.is_set() and (left_s := until_s - self._clock()) > 0:
            if self._events is None or not self._events.is_open:
                self._stop.wait(left_s)
            elif (xid := self._events.wait(min(left_s, _WAIT_S))) is not None:
                with self._lock:
                    self._xids.append(xid)

    def _count_failure(self, name: str) -> None:
        with self._lock:
            self._failed[name] += 1


class _Devices:
    # Reads the metrics that each device supports.

    def __init__(self, nvml: Any, failed: Callable[[str], None]) -> None:  # noqa: ANN401 - no types
        self._nvml = nvml
        self._failed = failed
        self._is_open = False
        self._error = ""
        self._gpm: dict[str, object] = {}
        self._seen_us: dict[str, int] = {}

    def read(self) -> dict[str, Any] | None:
        # None: NVML could not be opened.
        if not self._is_open:
            self._ask("nvmlInit")
            if self._error:
                return None
            self._is_open = True
        count = self._ask("nvmlDeviceGetCount") or 0
        gpus = [self._read_device(index) for index in range(min(count, MAX_DEVICES))]
        # A device that was reset is found only after NVML was opened again.
        if any(gpu.get("is_lost") for gpu in gpus):
            self._is_open = False
            self._ask("nvmlShutdown")
        return {
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
            "left_out": max(0, count - MAX_DEVICES),
            "gpus": gpus,
        }

    def _read_device(self, index: int) -> dict[str, object]:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return {"index": index, "is_lost": self._error in _LOST}
        uuid = _text(self._ask("nvmlDeviceGetUUID", handle))
        if self._error in _LOST:
            return {"index": index, "is_lost": True}
        found: dict[str, object] = {"index": index, "is_lost": False, "uuid": uuid}
        for name, value in self._figures(handle, uuid):
            # Lost during the reading: leave the partial reading out.
            if self._error in _LOST:
                return {"index": index, "is_lost": True, "uuid": uuid}
            if value is not None:
                found[name] = value
        return found

    def _figures(self, handle: object, uuid: str) -> Iterator[tuple[str, object]]:
        nvml, ask = self._nvml, self._ask
        yield "model", _text(ask("nvmlDeviceGetName", handle))
        yield "serial_number", _text(ask("nvmlDeviceGetSerial", handle)) or None
        pci = ask("nvmlDeviceGetPciInfo", handle)
        yield "bus_id", _text(pci.busId) if pci is not None else None
        yield "utilization", self._utilization(handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2)
        if memory is not None:
            sizes = {"limit": memory.total, "usage": memory.used, "reserved": memory.reserved}
            yield "memory_bytes", sizes
        yield "power_mw", ask("nvmlDeviceGetPowerUsage", handle)
        yield "energy_mj", ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        yield "temperature_c", ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        yield "clock_mhz", ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
        yield "clock_limit_mhz", ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
        yield "reasons", ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        yield "errors", self._errors(handle)
        yield from self._fields(handle)
        is_mig = ask("nvmlDeviceGetMigMode", handle)
        if is_mig is not None and is_mig[0]:
            yield "parts", list(self._parts(handle))
        yield "processes", self._processes(handle, uuid)
        yield "activity", self._activity(handle, uuid)

    def _utilization(self, handle: object) -> dict[str, int] | None:
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        found = {"general": rates.gpu, "memory": rates.memory} if rates is not None else {}
        for task in ("Encoder", "Decoder"):
            used = self._ask(f"nvmlDeviceGet{task}Utilization", handle)
            if used is not None:
                found[task.lower()] = used[0]
        return found or None

    def _errors(self, handle: object) -> dict[str, int] | None:
        nvml = self._nvml
        kinds = {
            "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        since_load = nvml.NVML_VOLATILE_ECC
        found = {
            name: self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, since_load)
            for name, kind in kinds.items()
        }
        return {name: count for name, count in found.items() if count is not None} or None

    def _fields(self, handle: object) -> Iterator[tuple[str, object]]:
        names = [*LIMITED, *IO, _MEMORY_TEMPERATURE]
        names = [name for name in names if hasattr(self._nvml, name)]
        wanted = [
            (getattr(self._nvml, name), _ALL_LINKS if "NVLINK" in name else 0) for name in names
        ]
        values = self._ask("nvmlDeviceGetFieldValues", handle, wanted)
        if values is None:
            return
        # Each field has its own result code.
        known = {
            name: int(value.value.uiVal if value.valueType == _UNSIGNED_INT else value.value.ullVal)
            for name, value in zip(names, values, strict=True)
            if value.nvmlReturn == self._nvml.NVML_SUCCESS
        }
        yield "limited_ns", {LIMITED[name]: known[name] for name in LIMITED if name in known}
        io = [[*IO[name], known[name]] for name in IO if name in known]
        yield "io_bytes", io
        yield "memory_temperature_c", known.get(_MEMORY_TEMPERATURE)

    def _parts(self, handle: object) -> Iterator[dict[str, object]]:
        count = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        for number in range(min(count, MAX_PARTS)):
            part = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part is None:
                continue
            found: dict[str, object] = {"uuid": _text(self._ask("nvmlDeviceGetUUID", part))}
            memory = self._ask("nvmlDeviceGetMemoryInfo", part, self._nvml.nvmlMemory_v2)
            if memory is not None:
                found["memory_bytes"] = {"limit": memory.total, "usage": memory.used}
            yield found

    def _processes(self, handle: object, uuid: str) -> list[dict[str, int]] | None:
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        if running is None:
            return None
        used = self._ask("nvmlDeviceGetProcessUtilization", handle, self._seen_us.get(uuid, 0))
        shares: dict[int, int] = {}
        for sample in used or ():
            # The latest sample of each process.
            if sample.timeStamp >= self._seen_us.get(uuid, 0) and sample.smUtil <= _WHOLE_PERCENT:
                shares[sample.pid] = sample.smUtil
        self._seen_us[uuid] = max(
            (sample.timeStamp for sample in used or ()), default=self._seen_us.get(uuid, 0)
        )
        return [
            {"pid": one.pid}
            | ({"memory_bytes": one.usedGpuMemory} if one.usedGpuMemory is not None else {})
            | ({"sm_percent": shares[one.pid]} if one.pid in shares else {})
            for one in running[:MAX_PARTS]
        ]

    def _activity(self, handle: object, uuid: str) -> dict[str, float] | None:
        # Activities between the previous reading and this one, if the device counts them.
        nvml = self._nvml
        support = self._ask("nvmlGpmQueryDeviceSupport", handle)
        if support is None or not support.isSupportedDevice:
            return None
        sample = self._ask("nvmlGpmSampleAlloc")
        if sample is None or (
            self._ask("nvmlGpmSampleGet", handle, sample) is None and self._error
        ):
            return None
        before, self._gpm[uuid] = self._gpm.get(uuid), sample
        if before is None:
            return None
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(GPM_METRICS)
        asked.sample1, asked.sample2 = before, sample
        for at, number in enumerate(GPM_METRICS):
            asked.metrics[at].metricId = number
        found = self._ask("nvmlGpmMetricsGet", asked)
        self._ask("nvmlGpmSampleFree", before)
        if found is None:
            return None
        return {
            # Can be slightly above 100 %, so it is limited.
            name: min(1.0, max(0.0, asked.metrics[at].value / _WHOLE_PERCENT))
            for at, name in enumerate(GPM_METRICS.values())
            if asked.metrics[at].nvmlReturn == nvml.NVML_SUCCESS
        }

    def _ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 - the bindings have no types
        self._error = ""
        try:
            return getattr(self._nvml, function)(*arguments)
        except AttributeError:
            # Old bindings lack the function.
            return None
        except self._nvml.NVMLError as error:
            name = type(error).__name__.removeprefix("NVMLError_")
            if name not in _UNSUPPORTED:
                self._error = name
                self._failed(name)
            return None


def _text(value: str | bytes | None) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text or ""
