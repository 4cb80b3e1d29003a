"""Figures of the host and the agent that belong to no process."""

from collections.abc import Callable, Mapping
from typing import Any

from otel_gpu.enrich.activities import (
    CountersActivity,
    DeviceFaultActivity,
    DevicesActivity,
    FabricActivity,
    ProbesActivity,
    StatusActivity,
)
from otel_gpu.export.metrics.host_devices import HostDevices
from otel_gpu.export.metrics.host_fabric import HostFabric
from otel_gpu.export.metrics.points import Measurement
from otel_gpu.export.metrics.self_telemetry import SelfTelemetry, SeriesDrop

OfHost = (
    CountersActivity
    | DeviceFaultActivity
    | DevicesActivity
    | FabricActivity
    | ProbesActivity
    | StatusActivity
)


class HostFigures:
    """
    The latest figures.

    Attributes:
        agent: The agent's own figures.
        devices: Those of the host's devices.
    """

    def __init__(self) -> None:
        self.agent = SelfTelemetry()
        self.devices = HostDevices()
        self._fabric = HostFabric()
        self._observers: Mapping[type, Callable[[Any], None]] = {
            CountersActivity: self.agent.observe,
            DeviceFaultActivity: self.devices.observe_fault,
            DevicesActivity: self.devices.observe,
            FabricActivity: self._fabric.observe,
            ProbesActivity: self.agent.observe,
            StatusActivity: self.agent.observe,
        }

    def observe(self, activity: OfHost) -> None:
        """Add one activity."""
        self._observers[type(activity)](activity)

    def measurements(self, dropped_series: Mapping[SeriesDrop, int]) -> list[Measurement]:
        """Return all figures; ``dropped_series`` counts dropped series by reason."""
        return [
            *self.agent.measurements(dropped_series),
            *self.devices.measurements(),
            *self._fabric.measurements(),
        ]
