"""The load of the host during a window: context for a reader, never a cause."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.state.differences import grown
from otel_gpu.state.window import Window
from otel_gpu.wire.bodies import CgroupLoad

_RESOURCES = ("cpu", "io", "memory")
_US_PER_NS = 1e-3


class Throttled(NamedTuple):
    """How long the CPU quota of a cgroup kept its threads off their CPUs."""

    cgroup: str
    throttled_ns: int
    throttled_periods: int
    periods: int


class Load(NamedTuple):
    """
    The load of the host: context, never a cause.

    Attributes:
        most_load: The highest average of one minute.
        stalled: By resource, the share of time in which some thread of the host waited for it.
        throttled: The cgroups that their CPU quota held up.
    """

    most_load: float
    cpus: int
    stalled: Mapping[str, float]
    swapped_in_pages: int
    swapped_out_pages: int
    throttled: tuple[Throttled, ...]


class PressureState:
    """Computes the load between the first and the last reading of the window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._first: PressureActivity | None = None
        self._last: PressureActivity | None = None
        self._most_load = 0.0

    def observe(self, activity: PressureActivity) -> None:
        """Add a reading."""
        if not self._window.overlaps(activity.unix_ns, activity.unix_ns):
            return
        self._first = self._first or activity
        self._last = activity
        self._most_load = max(self._most_load, activity.info.get("load1", 0.0))

    def load(self) -> Load | None:
        """The load of the host; None: not read."""
        if self._first is None or self._last is None:
            return None
        first, last = self._first.info, self._last.info
        length_us = (self._last.unix_ns - self._first.unix_ns) * _US_PER_NS
        before, after = first.get("psi", {}), last.get("psi", {})
        stalled = {
            resource: min(1.0, _grown_us(before.get(resource), after[resource]) / length_us)
            for resource in _RESOURCES
            if length_us > 0 and resource in after
        }
        return Load(
            most_load=self._most_load,
            cpus=last.get("cpus", 0),
            stalled=stalled,
            swapped_in_pages=grown(last.get("swap_in_pages", 0), first.get("swap_in_pages", 0)),
            swapped_out_pages=grown(last.get("swap_out_pages", 0), first.get("swap_out_pages", 0)),
            throttled=tuple(_throttled(first.get("cgroups", {}), last.get("cgroups", {}))),
        )


def _throttled(
    first: Mapping[str, CgroupLoad], last: Mapping[str, CgroupLoad]
) -> Iterator[Throttled]:
    for path in sorted(first.keys() & last.keys()):
        before, after = first[path], last[path]
        throttled_ns = grown(after.get("throttled_ns", 0), before.get("throttled_ns", 0))
        throttled = grown(after.get("nr_throttled", 0), before.get("nr_throttled", 0))
        periods = grown(after.get("nr_periods", 0), before.get("nr_periods", 0))
        if throttled_ns > 0:
            yield Throttled(
                cgroup=path, throttled_ns=throttled_ns, throttled_periods=throttled, periods=periods
            )


def _grown_us(before: Mapping[str, float] | None, after: Mapping[str, float]) -> float:
    if before is None:
        return 0.0
    return max(0.0, after.get("some_total_us", 0.0) - before.get("some_total_us", 0.0))
