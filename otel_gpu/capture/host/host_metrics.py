"""Metrics of the host: load, GPUs and network adapters."""

from collections.abc import Callable, Iterator, Mapping

from otel_gpu import wire
from otel_gpu.capture.host.device_faults import open_devices
from otel_gpu.capture.host.fabric import FabricReader
from otel_gpu.capture.host.pressure import PressureReader
from otel_gpu.config import Config
from otel_gpu.procfs import kernel_clock
from otel_gpu.wire.agent_records import json_record


class HostMetrics:
    """
    Makes records of the host's metrics.

    Args:
        config: Which sources to read, and how often.
        watched: ``program_ktime_ns`` by pid of every process that is watched.

    Attributes:
        faults: Errors of GPUs.
    """

    def __init__(self, config: Config, watched: Callable[[], Mapping[int, int]]) -> None:
        self._config = config
        self._watched = watched
        self._pressure = PressureReader()
        self._devices, self.faults = open_devices(config, watched)
        self._fabric = FabricReader(config.fabric.interval_s, config.fabric.root)

    def start(self) -> None:
        """Start the threads that read the slow sources."""
        if self._config.devices.enabled:
            self._devices.start()
        if self._config.fabric.enabled:
            self._fabric.start()

    def close(self) -> None:
        """Stop all threads."""
        self._devices.close()
        self.faults.close()
        self._fabric.close()

    def pressure(self) -> Iterator[bytes]:
        """Yield the load of the host and of the watched cgroups."""
        info = self._pressure.read(list(self._watched()))
        yield json_record(wire.RECORD_PRESSURE, kernel_clock.ktime_ns(), info)

    def devices(self) -> Iterator[bytes]:
        """Yield the GPUs' metrics, if there is a new reading."""
        if (info := self._devices.take()) is not None:
            yield json_record(wire.RECORD_DEVICES, kernel_clock.ktime_ns(), info)

    def fabric(self) -> Iterator[bytes]:
        """Yield the adapters' readings since the previous call."""
        for ktime_ns, info in self._fabric.take():
            yield json_record(wire.RECORD_FABRIC, ktime_ns, info)
