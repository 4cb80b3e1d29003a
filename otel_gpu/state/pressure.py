"""The load of the host during a window: context for a reader, never a cause."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.state.window import Window

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

    ``stalled`` is, by resource, the share of time in which some thread of the host waited for it.
    """

    most_load: float
    cpus: int
    stalled: Mapping[str, float]
    swapped_in_pages: int
    swapped_out_pages: int
    throttled: tuple[Throttled, ...]


class PressureState:
    """
    Computes the load between the first and the last reading of the window.

    Readings can come from an untrusted recording: a value that is not a number counts as not read.
    """

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
        self._most_load = max(self._most_load, _number(activity.info.get("load1")))

    def load(self) -> Load | None:
        """The load of the host; None: not read."""
        if self._first is None or self._last is None:
            return None
        first, last = self._first.info, self._last.info
        length_us = (self._last.unix_ns - self._first.unix_ns) * _US_PER_NS
        stalled = {}
        for resource in _RESOURCES:
            grown_us = _grown(first, last, "psi", resource, "some_total_us")
            if length_us > 0 and _has(last, "psi", resource):
                stalled[resource] = min(1.0, grown_us / length_us)
        return Load(
            self._most_load,
            round(_number(last.get("cpus"))),
            stalled,
            round(_grown(first, last, "swap_in_pages")),
            round(_grown(first, last, "swap_out_pages")),
            tuple(_throttled(first, last)),
        )


def _throttled(first: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[Throttled]:
    cgroups = last.get("cgroups")
    for path in sorted(cgroups) if isinstance(cgroups, Mapping) else ():
        throttled_ns = round(_grown(first, last, "cgroups", path, "throttled_ns"))
        if throttled_ns > 0:
            yield Throttled(
                path,
                throttled_ns,
                round(_grown(first, last, "cgroups", path, "nr_throttled")),
                round(_grown(first, last, "cgroups", path, "nr_periods")),
            )


def _grown(first: Mapping[str, Any], last: Mapping[str, Any], *keys: str) -> float:
    return max(0.0, _find(last, keys) - _find(first, keys)) if _has(first, *keys[:-1]) else 0.0


def _has(info: Mapping[str, Any], *keys: str) -> bool:
    found: Any = info
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            return False
        found = found[key]
    return True


def _find(info: Mapping[str, Any], keys: tuple[str, ...]) -> float:
    found: Any = info
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return _number(found)


def _number(value: Any) -> float:  # noqa: ANN401 -- whatever JSON held
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    # Not infinite, not NaN, and not an integer beyond the range of floats.
    return float(value) if 0 <= value < 1e18 else 0.0  # noqa: PLR2004
