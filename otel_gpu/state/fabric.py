"""
Ports of network adapters: what they counted, over resets, and what of it in a window.

A counter begins again when its adapter is reset or its driver loaded anew. What it had counted is
kept then, so that sums only rise.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from otel_gpu.enrich.activities import FabricActivity
from otel_gpu.limits.recent import Recent
from otel_gpu.state.reading_history import ReadingHistory
from otel_gpu.wire.fabric_bodies import MAX_PORTS
from otel_gpu.wire.port_counters import COUNTERS, TRAFFIC

_MAX_READINGS = 64
_NS_PER_S = 1_000_000_000
# A port that is up says that it is active.
_UP = "active"

PortKey = tuple[str, int]
"""The name of an adapter, and the number of its port."""


@dataclass(slots=True)
class Port:
    """
    What a port said last.

    Attributes:
        facts: Everything but its counters.
        sums: What its counters counted since they began, over resets.
        last: What its counters said.
        is_present: Whether it was there in the last reading.
    """

    facts: Mapping[str, Any]
    sums: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    is_present: bool = True

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self.is_present and self.facts.get("state") == _UP


class Counted(NamedTuple):
    """
    What one port counted between two readings around a window: nothing that is traffic.

    ``went_down`` is whether it could be used at first and could not at last, and ``usual_per_s`` how
    much of all these it counted in a second before.
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
        """Return how much it counted in a second."""
        length_ns = max(1, self.end_unix_ns - self.start_unix_ns)
        return sum(self.counts.values()) * _NS_PER_S / length_ns


class _Seen(NamedTuple):
    sums: Mapping[str, int]
    is_up: bool


class FabricState:
    """
    Keeps the ports, and their latest readings; bounded.

    Attributes:
        late: How many readings were late, and
        is_late: whether one is now.
        failed: How many reads failed, by the kernel's name of the error.
    """

    def __init__(self) -> None:
        # Names of adapters are few, unless somebody makes them up.
        self._ports: Recent[PortKey, Port] = Recent(2 * MAX_PORTS)
        self._readings: ReadingHistory[dict[PortKey, _Seen]] = ReadingHistory(_MAX_READINGS)
        self.late = 0
        self.is_late = False
        self.failed: Mapping[str, int] = {}

    def observe(self, activity: FabricActivity) -> None:
        """Take in a reading."""
        info = activity.info
        self.late = info.get("late", self.late)
        self.is_late = info.get("is_late", False)
        self.failed = info.get("failed", self.failed)
        if "ports" not in info:
            return
        for port in self._ports.values():
            port.is_present = False
        for said in info["ports"]:
            key = (said["adapter"], said["port"])
            port = self._ports[key] = self._ports.get(key) or Port(said)
            _count(port, said)
        seen = {
            key: _Seen(
                {n: c for n, c in port.sums.items() if COUNTERS[n].meaning not in TRAFFIC},
                port.is_up,
            )
            for key, port in self._ports.items()
        }
        self._readings.add(activity.unix_ns, seen)

    def ports(self) -> Iterator[tuple[PortKey, Port]]:
        """Yield the ports that were ever seen, as far as there is room."""
        yield from self._ports.items()

    def counted(self, start_unix_ns: int, end_unix_ns: int) -> Iterator[Counted]:
        """Yield the ports that counted something in a window, or went down."""
        found = self._readings.within(start_unix_ns, end_unix_ns)
        if found is None:
            return
        first, before, after = found
        earlier_s = (before.unix_ns - first.unix_ns) / _NS_PER_S
        for key, seen in after.value.items():
            # Of a port that was not there before, what it counted may be from long ago.
            then = before.value.get(key, seen)
            counts = _differences(then.sums, seen.sums)
            went_down = then.is_up and not seen.is_up
            if not counts and not went_down:
                continue
            earlier = _differences(first.value.get(key, then).sums, then.sums)
            usual_per_s = sum(earlier.values()) / earlier_s if earlier_s else 0.0
            times = (before.unix_ns, after.unix_ns)
            yield Counted(*key, *times, counts, went_down, usual_per_s)


def _count(port: Port, said: Mapping[str, Any]) -> None:
    for name, value in said.get("counters", {}).items():
        last = port.last.get(name, 0)
        port.sums[name] = port.sums.get(name, 0) + (value - last if value >= last else value)
        port.last[name] = value
    port.facts = {name: fact for name, fact in said.items() if name != "counters"}
    port.is_present = True


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(after) - Counter(before))
