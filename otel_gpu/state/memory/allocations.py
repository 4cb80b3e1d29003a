"""Calls that allocate device memory over time: their number, durations and sizes by window."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.state.capture_state import SeriesDelta
from otel_gpu.state.differences import aggregate_since
from otel_gpu.state.memory.blocks import MAX_READINGS, UsageReading, halve
from otel_gpu.wire.probe_table import ApiLayer

WINDOW_NS: Final = 30_000_000_000
"""The length of a window; longer if there were more than ``MAX_WINDOWS``."""
MAX_WINDOWS: Final = 64
MAX_SERIES: Final = 4_096
"""Series kept, each of a device of a program and a layer; further ones are left out."""


class AllocationWindow(NamedTuple):
    """
    Calls that allocated or freed in one window, none of them inside another.

    Attributes:
        calls: The number of calls that allocate.
        mean_ns: Of calls that allocate.
        max_ns: Of calls that allocate; that of its bucket if an earlier call took as long.
        frees: The number of calls that free.
    """

    start_unix_ns: int
    end_unix_ns: int
    calls: int
    mean_ns: int
    max_ns: int
    size_bytes: int
    frees: int


_OF_MEMORY = (wire.FAMILY_ALLOCATE, wire.FAMILY_FREE, wire.FAMILY_UNMAP)

AllocationKey = tuple[ProcessKey, int, ApiLayer]
"""A program, the number of a device (-1: not known) and the layer of the calls."""


class _Sums:
    __slots__ = ("calls", "frees", "max_ns", "size_bytes", "time_ns")

    def __init__(self) -> None:
        self.calls = self.frees = self.max_ns = self.size_bytes = self.time_ns = 0

    def add(self, other: "_Sums") -> None:
        self.calls += other.calls
        self.frees += other.frees
        self.time_ns += other.time_ns
        self.size_bytes += other.size_bytes
        self.max_ns = max(self.max_ns, other.max_ns)


class Allocations:
    """Sums calls by window; bounded."""

    def __init__(self) -> None:
        self.origin_unix_ns = 0
        self.width_ns = WINDOW_NS
        self._sums: dict[AllocationKey, dict[int, _Sums]] = {}
        self._readings: dict[AllocationKey, list[UsageReading]] = {}

    def follow(self, growth: SeriesDelta, middles_ns: Sequence[float]) -> None:
        """
        Add what a reading of a series added to the one before.

        Args:
            growth: What it added.
            middles_ns: The values of the buckets of durations.
        """
        _, key, api, _, now = growth.series
        if api is None or key.nested or key.status:
            return
        if api.family not in _OF_MEMORY:
            return
        added = now if growth.before is None else aggregate_since(now, growth.before, middles_ns)
        sums = _Sums()
        if api.family == wire.FAMILY_FREE:
            sums.frees = added.counted
        elif api.family == wire.FAMILY_ALLOCATE:
            sums.calls, sums.time_ns = added.counted, added.sum
            sums.max_ns, sums.size_bytes = added.max, added.size_bytes
        name = (key_of(growth.series.process), key.device, api.layer_name)
        if name not in self._sums and len(self._sums) >= MAX_SERIES:
            return
        is_taken = api.family == wire.FAMILY_ALLOCATE
        self._read(name, growth.unix_ns, added.size_bytes if is_taken else -added.size_bytes)
        # The calls were before the time of the reading.
        offset_ns = max(0, growth.unix_ns - 1 - self.origin_unix_ns)
        while offset_ns // self.width_ns >= MAX_WINDOWS:
            self._double()
        windows = self._sums.setdefault(name, {})
        windows.setdefault(offset_ns // self.width_ns, _Sums()).add(sums)

    def readings_of(self, name: AllocationKey) -> tuple[UsageReading, ...]:
        """
        Return what was in use over time, of memory that was allocated since the capture began.
        """
        return tuple(
            one._replace(live_bytes=max(0, one.live_bytes), reserved_bytes=max(0, one.live_bytes))
            for one in self._readings.get(name, ())
        )

    def _read(self, name: AllocationKey, unix_ns: int, added_bytes: int) -> None:
        readings = self._readings.setdefault(name, [])
        live_bytes = readings[-1].live_bytes if readings else 0
        if readings and readings[-1].unix_ns == unix_ns:
            readings.pop()
        readings.append(UsageReading(unix_ns, live_bytes + added_bytes, 0))
        if len(readings) > MAX_READINGS:
            self._readings[name] = list(halve(readings))

    def windows_of(self, name: AllocationKey, end_unix_ns: int) -> tuple[AllocationWindow, ...]:
        """Return the windows with calls, up to the end of the last one."""
        return tuple(
            AllocationWindow(
                start_unix_ns=(start := self.origin_unix_ns + number * self.width_ns),
                end_unix_ns=max(start, min(start + self.width_ns, end_unix_ns)),
                calls=one.calls,
                mean_ns=one.time_ns // one.calls if one.calls else 0,
                max_ns=one.max_ns,
                size_bytes=one.size_bytes,
                frees=one.frees,
            )
            for number, one in sorted(self._sums.get(name, {}).items())
        )

    def _double(self) -> None:
        for name, windows in self._sums.items():
            merged: dict[int, _Sums] = {}
            for number, sums in windows.items():
                merged.setdefault(number // 2, _Sums()).add(sums)
            self._sums[name] = merged
        self.width_ns *= 2
