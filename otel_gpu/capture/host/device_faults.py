"""
RECORD_DEVICE_FAULT for XIDs, from the kernel's log, or from NVML if the log cannot be read.

The driver writes each XID with the process into the kernel's log. NVML reports only the device, so it is
used only without the log. Each XID is reported once.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from otel_gpu import wire
from otel_gpu.capture.bpf.settings import is_in_initial_pid_namespace
from otel_gpu.capture.host.kernel_log import KernelLog, Xid
from otel_gpu.capture.host.nvml import NvmlDevices
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.config import Config
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs import kernel_clock
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.device_faults import FaultSource

_MAX_ENDED = 1024
_MAX_KINDS = 256
# A device can repeat an error thousands of times per second.
_REPEAT_S = 1.0

_Kind = tuple[int, str, int]


def open_devices(
    config: Config, watched: Callable[[], Mapping[int, int]]
) -> tuple[NvmlDevices, "DeviceFaults"]:
    """Open the sources of device metrics, which are not read yet, and of device errors."""
    log = KernelLog(config.devices.kernel_log if config.devices.enabled else "")
    nvml = NvmlDevices(config.devices.interval_s, wants_xids=not log.is_open)
    return nvml, DeviceFaults(log, nvml, watched, knows_pids=is_in_initial_pid_namespace())


class DeviceFaults:
    """
    Makes records of device errors.

    Args:
        log: The kernel's log.
        nvml: The source if the log cannot be read.
        watched: ``program_ktime_ns`` by pid of every process that is watched.
        knows_pids: Whether the driver's pids are the agent's: it is in the initial pid namespace.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        log: KernelLog,
        nvml: NvmlDevices,
        watched: Callable[[], Mapping[int, int]],
        *,
        knows_pids: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._nvml = nvml
        self._watched = watched
        self._knows_pids = knows_pids
        self._clock = clock
        # Programs can have ended before their fault is read.
        self._ended: Recent[int, int] = Recent(_MAX_ENDED, cache="known_processes")
        # When each kind was last reported, and the latest one with the count since then.
        self._reported_s: Recent[_Kind, float] = Recent(_MAX_KINDS)
        self._held: dict[_Kind, tuple[Xid, int]] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Losses by reason."""
        return {AgentLoss.KERNEL_LOG_OVERRUN: self._log.overrun}

    def note_ended(self, ended: Iterable[ProcessKey]) -> None:
        """Remember programs that ended; call it before later records are read."""
        for pid, program_ktime_ns in ended:
            self._ended[pid] = program_ktime_ns

    def read(self, *, is_last: bool = False) -> Iterator[bytes]:
        """Yield new errors; repeated ones are counted in one record per second."""
        now_s = self._clock()
        source, found = FaultSource.KERNEL_LOG, list(self._log.read())
        if not self._log.is_open:
            source, found = FaultSource.NVML, [*found, *self._nvml.take_xids()]
        for xid in found:
            kind = xid[:3]
            held = self._held.get(kind)
            is_again = now_s - self._reported_s.get(kind, -_REPEAT_S) < _REPEAT_S
            # If too many kinds repeat, further ones are reported at once.
            if held or (is_again and len(self._held) < _MAX_KINDS):
                self._held[kind] = xid, (held[1] if held else 0) + 1
                continue
            yield self._record(source, xid, times=1, now_s=now_s)
        for kind, (xid, times) in tuple(self._held.items()):
            if is_last or now_s - self._reported_s.get(kind, 0.0) >= _REPEAT_S:
                del self._held[kind]
                yield self._record(source, xid, times=times, now_s=now_s)

    def close(self) -> None:
        """Stop reading."""
        self._log.close()

    def _record(self, source: str, xid: Xid, times: int, now_s: float) -> bytes:
        self._reported_s[xid[:3]] = now_s
        pid, program_ktime_ns = self._find_program(xid.pid)
        body = {"reported_by": source, "times": times, **xid._asdict()}
        ktime_ns = kernel_clock.ktime_ns()
        return json_record(
            wire.RECORD_DEVICE_FAULT, ktime_ns, body, pid=pid, program_ktime_ns=program_ktime_ns
        )

    def _find_program(self, pid: int) -> ProcessKey:
        if not pid or not self._knows_pids:
            return 0, 0
        watched = self._watched()
        program_ktime_ns = watched[pid] if pid in watched else self._ended.get(pid, 0)
        return (pid, program_ktime_ns) if program_ktime_ns else (0, 0)
