"""Snapshots: what one Resource has to say at one moment, before points are made of it."""

from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.resources import Resource

from otel_gpu.enrich.identity.identities import DeviceIdentity, ProcessKey
from otel_gpu.export.metrics.points import Attributes, HistogramLayout, Measurement


class Agent(NamedTuple):
    """Who made the capture, and in which layouts it is counted."""

    resource: Resource
    version: str
    layouts: Mapping[str, HistogramLayout]
    start_unix_ns: int


class Snapshot(NamedTuple):
    """What one Resource has to say now; ``is_final``: nothing will be added, so that it may go."""

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
