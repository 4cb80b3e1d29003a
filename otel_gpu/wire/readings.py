"""
Periodic readings of counters, histograms, devices, network adapters and the host.

Cumulative values are as they were read; nothing is added up here.
"""

from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.wire.bodies import AgentStatus, HostLoad
from otel_gpu.wire.device_bodies import DevicesReading
from otel_gpu.wire.fabric_bodies import FabricReading


class Counters(NamedTuple):
    """The kernel side's counters, by ``enum counter``, since capture began."""

    ktime_ns: int
    values: tuple[int, ...]

    def by_name(self) -> dict[str, int]:
        """Return the values by name, without counters that this version does not have."""
        names, count = wire.COUNTER_NAMES, wire.COUNTER_COUNT
        return {
            names.get(number, f"counter_{number}"): value
            for number, value in enumerate(self.values)
            if number in names or number > count
        }


class SeriesKey(NamedTuple):
    """The key of a series; for thread metrics, ``api`` is a switch type."""

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
    One series' histogram, cumulative since the program started.

    ``buckets`` has one count per bucket of the capture's layout. ``sum``, ``min`` and ``max`` are
    in the unit of the metric (nanoseconds or bytes).
    """

    sum: int
    min: int
    max: int
    size_bytes: int
    buckets: tuple[int, ...]

    @property
    def counted(self) -> int:
        """Number of values."""
        return sum(self.buckets)


class Aggregates(NamedTuple):
    """All series of the kernel side at one time."""

    ktime_ns: int
    series: tuple[tuple[SeriesKey, Aggregate], ...]


class TimesKey(NamedTuple):
    """The key of a time entry; see ``bpf/events.h``."""

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
    Time of threads in one state, cumulative.

    ``time_ns`` grows while a wait goes on. ``ended_ns`` grows by the whole wait when it ends.
    """

    key: TimesKey
    time_ns: int
    count: int  # type: ignore[assignment] # as above
    ended_ns: int = 0
    who_comm: str = ""
    end_comm: str = ""


class Times(NamedTuple):
    """Time entries that changed since the reading before."""

    ktime_ns: int
    entries: tuple[TimesEntry, ...]


class Pressure(NamedTuple):
    """The load of the host and of the watched cgroups (from JSON)."""

    ktime_ns: int
    info: HostLoad


class Devices(NamedTuple):
    """Figures of the devices of the host (from JSON)."""

    ktime_ns: int
    info: DevicesReading


class FabricRead(NamedTuple):
    """Counters of network adapters that do RDMA (from JSON)."""

    ktime_ns: int
    info: FabricReading


class Status(NamedTuple):
    """The agent's own figures: CPU time, counters of user space (from JSON)."""

    ktime_ns: int
    info: AgentStatus
