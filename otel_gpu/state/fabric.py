"""
Fabric state: counters of the ports of network adapters, over resets and by window.

A counter begins again when its adapter is reset or its driver loaded anew. Its earlier count is
kept then, so that sums only rise.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpu.enrich.activities import FabricActivity
from otel_gpu.limits.recent import Recent
from otel_gpu.state.reading_history import ReadingHistory
from otel_gpu.wire.fabric_bodies import MAX_PORTS, PortReading
from otel_gpu.wire.port_counters import COUNTERS, TRAFFIC

_MAX_READINGS = 64
_NS_PER_S = 1_000_000_000
# The state of a port that is up.
_UP = "active"

PortKey = tuple[str, int]
"""The name of an adapter, and the number of its port."""


@dataclass(slots=True)
class Port:
    """
    The latest reading of a port.

    Attributes:
        facts: Its latest reading.
        sums: Its counters since they began, over resets.
        last: Its counters as read.
        is_present: Whether it was in the last reading.
    """

    facts: PortReading
    sums: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    is_present: bool = True

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self.is_present and self.facts.get("state") == _UP


class Counted(NamedTuple):
    """
    What one port counted between two readings around a window, without traffic.

    ``went_down``: it was up at the start and down at the end. ``usual_per_s`` is the rate of all
    these counts before the window.
    """

    adapter: str
    port: int
    start_unix_ns: int
    end_unix_ns: int
    counts: Mapping[str, int]
    went_down: bool
    usual_per_s: float

    @property
    def per_s(self) -> float:
        """The rate of all counts."""
        length_ns = max(1, self.end_unix_ns - self.start_unix_ns)
        return sum(self.counts.values()) * _NS_PER_S / length_ns


class _Seen(NamedTuple):
    sums: Mapping[str, int]
    is_up: bool


class FabricState:
    """
    Keeps the ports, and their latest readings; bounded.

    Attributes:
        late: How many readings were late.
        is_late: Whether one is late now.
        failed: How many reads failed, by the kernel's name of the error.
    """

    def __init__(self) -> None:
        # Names of adapters are few, except in forged recordings.
        self._ports: Recent[PortKey, Port] = Recent(2 * MAX_PORTS)
        self._readings: ReadingHistory[dict[PortKey, _Seen]] = ReadingHistory(_MAX_READINGS)
        self.late = 0
        self.is_late = False
        self.failed: Mapping[str, int] = {}

    def observe(self, activity: FabricActivity) -> None:
        """Add a reading."""
        info = activity.info
        self.late = info.get("late", self.late)
        self.is_late = info.get("is_late", False)
        self.failed = info.get("failed", self.failed)
        if "ports" not in info:
            return
        for port in self._ports.values():
            port.is_present = False
        for facts in info["ports"]:
            key = (facts["adapter"], facts["port"])
            port = self._ports[key] = self._ports.get(key) or Port(facts)
            _count(port, facts)
        seen = {
            key: _Seen(
                {n: c for n, c in port.sums.items() if COUNTERS[n].meaning not in TRAFFIC},
                port.is_up,
            )
            for key, port in self._ports.items()
        }
        self._readings.add(activity.unix_ns, seen)

    def ports(self) -> Iterator[tuple[PortKey, Port]]:
        """Yield all ports that were ever read, within the limit."""
        yield from self._ports.items()

    def counted(self, start_unix_ns: int, end_unix_ns: int) -> Iterator[Counted]:
        """Yield the ports that counted something in a window, or went down."""
        found = self._readings.within(start_unix_ns, end_unix_ns)
        if found is None:
            return
        first, before, after = found
        earlier_s = (before.unix_ns - first.unix_ns) / _NS_PER_S
        for key, seen in after.value.items():
            # The counts of a new port can be from long before.
            then = before.value.get(key, seen)
            counts = _differences(then.sums, seen.sums)
            went_down = then.is_up and not seen.is_up
            if not counts and not went_down:
                continue
            earlier = _differences(first.value.get(key, then).sums, then.sums)
            usual_per_s = sum(earlier.values()) / earlier_s if earlier_s else 0.0
            times = (before.unix_ns, after.unix_ns)
            yield Counted(*key, *times, counts, went_down, usual_per_s)


def _count(port: Port, facts: PortReading) -> None:
    for name, value in facts.get("counters", {}).items():
        last = port.last.get(name, 0)
        port.sums[name] = port.sums.get(name, 0) + (value - last if value >= last else value)
        port.last[name] = value
    port.facts = facts
    port.is_present = True


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(after) - Counter(before))
