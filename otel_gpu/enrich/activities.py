"""
Activities: events with Unix time and names.

An activity keeps its event and adds what the event's numbers stand for: the process, the API's row
in the probe table, Unix times in nanoseconds.

An activity that can become a span carries that span's ids: ``trace_id`` (16 bytes), ``span_id`` (8
bytes; empty: no span) and ``parent_span_id`` (empty: a root). ``ids.py`` computes them.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NamedTuple, get_args

from otel_gpu.enrich.identity.identities import (
    CallStack,
    DeviceIdentity,
    Program,
    Resource,
    Who,
)
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.wire.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.wire.bodies import (
    AgentStatus,
    CaptureFacts,
    HostLoad,
    MemoryMapFacts,
    ProbedLibrary,
)
from otel_gpu.wire.communicators import Communicator
from otel_gpu.wire.device_activity import DeviceTrace
from otel_gpu.wire.device_bodies import DevicesReading
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import CpuSample, CudaCall, Fork, Gap, OpenCall, Stall, ThreadContext
from otel_gpu.wire.fabric_bodies import FabricReading
from otel_gpu.wire.memory_snapshot import MemorySnapshot
from otel_gpu.wire.probe_table import Api
from otel_gpu.wire.readings import Aggregate, SeriesKey


class CallActivity(NamedTuple):
    """
    A recorded CUDA call; ``stack`` is where it was made, ``kernel`` what it launched, if known.
    """

    process: Program
    event: CudaCall
    api: Api
    start_unix_ns: int
    end_unix_ns: int
    device: DeviceIdentity | None
    stack: CallStack | None
    kernel: str
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class StallActivity(NamedTuple):
    """
    A scheduler stall of a watched thread.

    ``reason`` is what it was blocked on, ``NONE`` when it was not blocked at all. ``functions`` is
    its kernel stack, innermost first, and ``stack`` where in the program it left the CPU. A stall
    can be two spans: ``span_id`` is that of the time until it could run, ``run_queue_span_id`` that
    of its wait for a CPU. An id is empty if there was no such time.
    """

    process: Program
    event: Stall
    start_unix_ns: int
    runnable_unix_ns: int
    end_unix_ns: int
    reason: WaitReason
    functions: tuple[str, ...]
    stack: CallStack | None
    trace_id: bytes
    span_id: bytes
    run_queue_span_id: bytes
    parent_span_id: bytes
    resource: Resource | None = None


class GapActivity(NamedTuple):
    """A recorded gap between two CUDA calls of a thread."""

    process: Program
    event: Gap
    previous_api: Api
    next_api: Api
    start_unix_ns: int
    end_unix_ns: int
    device: DeviceIdentity | None
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class SampleActivity(NamedTuple):
    """
    Where a thread on a CPU was.

    ``event.weight_ns`` is the time on CPUs that it stands for. ``functions`` is its kernel stack,
    innermost first, empty in user space, and ``stack`` where in the program it was.
    """

    process: Program
    event: CpuSample
    unix_ns: int
    functions: tuple[str, ...]
    stack: CallStack | None


class TimesActivity(NamedTuple):
    """One reading of the thread times."""

    unix_ns: int
    times: tuple[ThreadTime, ...]


class WhoActivity(NamedTuple):
    """The names of a process or thread that others refer to by number; the latest ones count."""

    unix_ns: int
    who: Who


class ResourceActivity(NamedTuple):
    """The other end of a connection, and how many segments were retransmitted to it so far."""

    unix_ns: int
    resource: Resource
    retransmits: int


class PressureActivity(NamedTuple):
    """One reading of the load of the host and of the watched cgroups: context, never a cause."""

    unix_ns: int
    info: HostLoad


class ContextActivity(NamedTuple):
    """
    The span of its own application that a thread was in; the event that it belongs to follows.
    """

    unix_ns: int
    event: ThreadContext


class DevicesActivity(NamedTuple):
    """One reading of the devices of the host."""

    unix_ns: int
    info: DevicesReading


class DeviceFaultActivity(NamedTuple):
    """An error of a device; ``process`` is the watched one whose work it was, None if not known."""

    unix_ns: int
    process: Program | None
    event: DeviceFault
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class FabricActivity(NamedTuple):
    """One reading of the network adapters that do RDMA."""

    unix_ns: int
    info: FabricReading


class MemoryActivity(NamedTuple):
    """What an allocator holds of one device, and what led there."""

    unix_ns: int
    snapshot: MemorySnapshot


class BlocksActivity(NamedTuple):
    """
    One reading of a framework's allocator for one device of a process.

    ``holders`` are those that changed, by the key of their stack; 0: not known.
    """

    unix_ns: int
    process: Program
    number: int
    device: DeviceIdentity | None
    totals: MemoryTotals | None
    holders: tuple[tuple[int, Holder, CallStack | None], ...]


class CommunicatorActivity(NamedTuple):
    """
    The progress of one rank with the collectives of one communicator.

    ``handle`` is unique within a process, also among communicators that had the same address.
    ``recent_unix_ns`` are the times of ``communicator.recent`` and ``stacks`` where they were
    called. ``completed_unix_ns`` is when the program learned of the latest end (0: it never asked).
    """

    unix_ns: int
    process: Program
    handle: tuple[int, int]
    device: DeviceIdentity | None
    communicator: Communicator
    recent_unix_ns: tuple[int, ...]
    completed_unix_ns: int
    stacks: tuple[CallStack | None, ...] = ()


class OutOfMemoryActivity(NamedTuple):
    """
    A request for device memory that failed, and where.

    ``api`` is the call that failed, None: a framework reported it. ``map`` is the layout of memory
    at that time, as ``MemoryMap.info``, with the stack of each key in ``stacks``.
    """

    unix_ns: int
    process: Program
    event: OutOfMemory
    device: DeviceIdentity | None
    api: Api | None
    stack: CallStack | None
    map: MemoryMapFacts | None
    stacks: Mapping[int, CallStack]
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class DeviceTraceActivity(NamedTuple):
    """The trace that a process recorded of its devices and of itself."""

    unix_ns: int
    trace: DeviceTrace


class ForkActivity(NamedTuple):
    """A fork; ``process`` is the parent."""

    process: Program
    event: Fork
    child: Program
    start_unix_ns: int
    end_unix_ns: int
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class OpenCallActivity(NamedTuple):
    """
    A CUDA call that has not returned for longer than the limit.

    ``stack`` is where its thread last left the CPU.
    """

    process: Program
    event: OpenCall
    api: Api
    start_unix_ns: int
    seen_unix_ns: int
    device: DeviceIdentity | None
    stack: CallStack | None
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class Series(NamedTuple):
    """One kernel-side histogram with the names of what it counts."""

    process: Program
    key: SeriesKey
    api: Api | None
    device: DeviceIdentity | None
    aggregate: Aggregate


class AggregatesActivity(NamedTuple):
    """One reading of all series."""

    unix_ns: int
    series: tuple[Series, ...]


class CountersActivity(NamedTuple):
    """One reading of the kernel side's counters, by their enumerator's name."""

    unix_ns: int
    values: Mapping[str, int]


class StatusActivity(NamedTuple):
    """One reading of the agent's own figures."""

    unix_ns: int
    info: AgentStatus


class ProbesActivity(NamedTuple):
    """Symbols of one library that carry probes."""

    unix_ns: int
    info: ProbedLibrary


class CaptureActivity(NamedTuple):
    """
    How the capture was made; the first activity of every stream.

    ``seed`` is in the ids of all its spans: 8 bytes, different for each capture.
    """

    unix_ns: int
    info: CaptureFacts
    seed: bytes

    def lacks(self, what: str) -> bool:
        """Return whether a capture does not record something; see ``wire.events.Capture``."""
        return what in self.info.get("unknown", ())


class ExitActivity(NamedTuple):
    """
    A watched program ended; only its last series follow.

    ``exit_code`` is that of ``wait(2)``, None if the end was not seen. ``is_replaced``: its process
    runs another program now.
    """

    process: Program
    end_unix_ns: int
    exit_code: int | None
    is_replaced: bool = False


Activity = (
    CallActivity
    | StallActivity
    | GapActivity
    | SampleActivity
    | TimesActivity
    | WhoActivity
    | ResourceActivity
    | PressureActivity
    | DevicesActivity
    | ContextActivity
    | StepActivity
    | RangeActivity
    | DeviceFaultActivity
    | FabricActivity
    | DeviceTraceActivity
    | MemoryActivity
    | BlocksActivity
    | CommunicatorActivity
    | OutOfMemoryActivity
    | ForkActivity
    | OpenCallActivity
    | AggregatesActivity
    | CountersActivity
    | StatusActivity
    | ProbesActivity
    | CaptureActivity
    | ExitActivity
)

_ENDS = {"unix_ns", "end_unix_ns", "seen_unix_ns"}
END_OF: Mapping[type, Callable[[object], int]] = {
    # Every kind has one of these.
    kind: attrgetter(next(iter(_ENDS & set(kind._fields))))
    for kind in get_args(Activity)
}
"""By kind of activity, the time when one ended or was read, in Unix nanoseconds."""
