"""
The events that are read again and again: what counters, histograms and adapters say at a moment.

What is cumulative grows from one reading to the next; nothing is added up here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_gpu import wire


class Counters(NamedTuple):
    """The kernel side's counters, by ``enum counter``, since capture began."""

    ktime_ns: int
    values: tuple[int, ...]

    def by_name(self) -> dict[str, int]:
        """Return the values by the names of their counters, without those that are no longer there."""
        names, count = wire.COUNTER_NAMES, wire.COUNTER_COUNT
        return {
            names.get(number, f"counter_{number}"): value
            for number, value in enumerate(self.values)
            if number in names or number > count
        }


class SeriesKey(NamedTuple):
    """What one aggregate counts; ``api`` holds a switch type for thread metrics."""

    program_ktime_ns: int
    pid: int
    status: int
    device: int
    metric: int
    api: int
    copy_kind: int
    nested: int


class Aggregate(NamedTuple):
    """
    One series' histogram, cumulative since the process image began.

    ``buckets`` has one count per bucket of the capture's layout, ``sum`` and
    ``min``/``max`` are in the unit of the metric (nanoseconds or bytes).
    """

    sum: int
    min: int
    max: int
    size_bytes: int
    buckets: tuple[int, ...]

    @property
    def counted(self) -> int:
        """How many there were."""
        return sum(self.buckets)


class Aggregates(NamedTuple):
    """All series that the kernel side holds, read at one moment."""

    ktime_ns: int
    series: tuple[tuple[SeriesKey, Aggregate], ...]


class TimesKey(NamedTuple):
    """What one entry of the time account is about; see ``bpf/events.h``."""

    program_ktime_ns: int
    pid: int
    kernel_stack: int
    system_call: int
    state: int
    context: int
    flags: int
    end_state: int = wire.STATE_NONE
    who_pid: int = 0
    who_tid: int = 0
    end_pid: int = 0
    end_tid: int = 0
    end_kernel_stack: int = -1
    end_system_call: int = -1
    resource: int = 0
    api: int = 0
    end_flags: int = 0
    is_folded: int = 0


class TimesEntry(NamedTuple):
    """
    One entry of the time account, cumulative.

    ``time_ns`` is booked while it passes, ``ended_ns`` when a wait ends: the whole of it.
    """

    key: TimesKey
    time_ns: int
    count: int  # type: ignore[assignment] # as above
    ended_ns: int = 0
    who_comm: str = ""
    end_comm: str = ""


class Times(NamedTuple):
    """Entries of the time account that changed since they were last read."""

    ktime_ns: int
    entries: tuple[TimesEntry, ...]


class Pressure(NamedTuple):
    """What the host and the watched cgroups said of their load (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class Devices(NamedTuple):
    """What the devices of the host say of themselves (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class FabricRead(NamedTuple):
    """What the network adapters that do RDMA said (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class Status(NamedTuple):
    """The agent's own figures: CPU time, user-space counters (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]
