"""
States of the host's devices: clock limits and errors, by window.

NVML counts how long the clocks of a device were limited, by reason, and errors of its memory. The
driver reports XIDs. Readings are of the host, so the device that a process means is found here as
well.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu.capture.host.kernel_log import format_bus_id
from otel_gpu.enrich.activities import DeviceFaultActivity, DevicesActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity, Program, key_of
from otel_gpu.limits.recent import Recent
from otel_gpu.state.reading_history import Reading, ReadingHistory
from otel_gpu.wire.device_bodies import MAX_DEVICES, MAX_PARTS, GpuReading

_MAX_READINGS = 64
_MAX_FAULTS = 256
_PREFIX = "GPU-"


class DeviceState(NamedTuple):
    """The reading of one device: cumulative counters, and current clocks (0: not known)."""

    limited_ns: Mapping[str, int]
    uncorrected: int
    clock_mhz: int
    clock_limit_mhz: int


class Limited(NamedTuple):
    """
    The share of a window in which the clocks of a device were limited, and the main reason.

    ``clock_mhz`` is the highest one that was read in it; 0: not known.
    """

    reason: str
    share: float
    clock_mhz: int
    clock_limit_mhz: int

    @property
    def lost_share(self) -> float:
        """The part of the window that was lost: halved clocks cost half of it."""
        if not self.clock_mhz or not self.clock_limit_mhz:
            return self.share
        return self.share * max(0.0, 1 - self.clock_mhz / self.clock_limit_mhz)


class DeviceStates:
    """
    Keeps the latest readings and faults; bounded, as a reading has a limited number of devices.
    """

    def __init__(self) -> None:
        self._states: Recent[str, ReadingHistory[DeviceState]] = Recent(MAX_DEVICES)
        self._faults: deque[DeviceFaultActivity] = deque(maxlen=_MAX_FAULTS)
        # Other names of a device: the UUIDs of its parts, its place on the bus, and its users.
        self._parents: Recent[str, str] = Recent(MAX_DEVICES * MAX_PARTS)
        self._places: Recent[str, str] = Recent(MAX_DEVICES)
        self._users: dict[int, set[str]] = {}

    def observe(self, activity: DevicesActivity) -> None:
        """Add a reading of all devices."""
        gpus = activity.info.get("gpus")
        if gpus is None:
            return
        known = [gpu for gpu in gpus if gpu.get("uuid")]
        # A lost device is still there; one that was taken out is not.
        uuids = {_bare(gpu["uuid"]) for gpu in known}
        if len(known) == len(gpus):
            for gone in self._states.keys() - uuids:
                del self._states[gone]
        self._users.clear()
        for gpu in known:
            uuid = _bare(gpu["uuid"])
            if gpu.get("is_lost"):
                continue
            history = self._states.use(uuid)
            if history is None:
                history = self._states[uuid] = ReadingHistory(_MAX_READINGS)
            history.add(activity.unix_ns, _state_of(gpu))
            self._learn(uuid, gpu)

    def _learn(self, uuid: str, gpu: GpuReading) -> None:
        if bus_id := gpu.get("bus_id"):
            self._places[format_bus_id(bus_id)] = uuid
        for part in gpu.get("parts", ()):
            self._parents[_bare(part.get("uuid", ""))] = uuid
        for process in gpu.get("processes", ()):
            self._users.setdefault(process["pid"], set()).add(uuid)

    def observe_fault(self, activity: DeviceFaultActivity) -> None:
        """Add an error of a device."""
        self._faults.append(activity)

    def find(self, pid: int, device: DeviceIdentity | None) -> str:
        """
        Return the UUID of the device that a process means; empty: not known.

        What CUDA reported to the process decides; else the process's use of devices, if it is one
        device; else the only device of the host.
        """
        if device is not None and device.uuid:
            uuid = _bare(device.uuid)
            return self._parents.get(uuid, uuid)
        used = self._users.get(pid, ())
        if len(used) == 1:
            return next(iter(used))
        return next(iter(self._states)) if len(self._states) == 1 else ""

    def uuid_at(self, bus_id: str) -> str:
        """Return the UUID of the device at a place on the bus; empty: not known."""
        return self._places.get(bus_id, "")

    def limited(self, uuid: str, start_unix_ns: int, end_unix_ns: int) -> Limited | None:
        """Return what limited the clocks of a device in a window; None: nothing, or not known."""
        readings = self._readings(uuid, start_unix_ns, end_unix_ns)
        if not readings:
            return None
        before, after = readings[0], readings[-1]
        if after.unix_ns <= max(before.unix_ns, start_unix_ns):
            # The host's clock was set back in between.
            return None
        grown = {
            reason: limited_ns - before.value.limited_ns[reason]
            for reason, limited_ns in after.value.limited_ns.items()
            if reason in before.value.limited_ns
        }
        reason = max(grown, key=lambda name: (grown[name], name), default="")
        if not reason or grown[reason] <= 0:
            return None
        share = min(1.0, grown[reason] / (after.unix_ns - before.unix_ns))
        # Time outside the two readings is not known to be limited.
        covered_ns = min(end_unix_ns, after.unix_ns) - start_unix_ns
        share *= min(1.0, covered_ns / max(1, end_unix_ns - start_unix_ns))
        return Limited(
            reason,
            share,
            clock_mhz=max(reading.value.clock_mhz for reading in readings),
            clock_limit_mhz=max(reading.value.clock_limit_mhz for reading in readings),
        )

    def uncorrected(self, uuid: str, start_unix_ns: int, end_unix_ns: int) -> int:
        """Return how many errors of its memory a device could not correct around a window."""
        readings = self._readings(uuid, start_unix_ns, end_unix_ns)
        return (
            max(0, readings[-1].value.uncorrected - readings[0].value.uncorrected)
            if readings
            else 0
        )

    def faults(
        self, process: Program, uuid: str, start_unix_ns: int, end_unix_ns: int
    ) -> Iterator[DeviceFaultActivity]:
        """Yield the faults in a window that are a process's, or of its device."""
        for fault in self._faults:
            if not start_unix_ns <= fault.unix_ns <= end_unix_ns:
                continue
            is_own = fault.process is not None and key_of(fault.process) == key_of(process)
            if is_own or (uuid and uuid == self.uuid_at(fault.event.bus_id)):
                yield fault

    def _readings(
        self, uuid: str, start_unix_ns: int, end_unix_ns: int
    ) -> Sequence[Reading[DeviceState]]:
        history = self._states.get(uuid)
        return history.across(start_unix_ns, end_unix_ns) if history else ()


def _bare(uuid: str) -> str:
    return uuid.removeprefix(_PREFIX).removeprefix("MIG-").lower()


def _state_of(gpu: GpuReading) -> DeviceState:
    return DeviceState(
        limited_ns={
            str(reason): limited_ns for reason, limited_ns in gpu.get("limited_ns", {}).items()
        },
        uncorrected=gpu.get("errors", {}).get("uncorrected", 0),
        clock_mhz=gpu.get("clock_mhz", 0),
        clock_limit_mhz=gpu.get("clock_limit_mhz", 0),
    )
