"""Snapshots: the measurements of one Resource at one time, before they become points."""

from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.resources import Resource

from otel_gpu.enrich.identity.identities import DeviceIdentity, ProcessKey
from otel_gpu.export.metrics.points import Attributes, HistogramLayout, Measurement


class Agent(NamedTuple):
    """The agent that made the capture, and the layouts of its histograms."""

    resource: Resource
    version: str
    layouts: Mapping[str, HistogramLayout]
    start_unix_ns: int


class Snapshot(NamedTuple):
    """Measurements of one Resource; ``is_final``: it will not change, so it can be evicted."""

    key: ProcessKey
    resource: Resource
    agent: Agent
    devices: dict[int, DeviceIdentity]
    measurements: list[Measurement]
    exemplars: dict[tuple[str, Attributes], list[Exemplar]]
    exemplars_seen: int
    start_unix_ns: int
    time_unix_ns: int
    is_final: bool = False
