"""
The events: decoded, immutable records.

Times are CLOCK_MONOTONIC nanoseconds (``*_ktime_ns``) and ids are numbers, as in
``bpf/events.h``; the field comments there hold here too. ``pid`` and ``program_ktime_ns``
together identify a program. ``enrich`` adds names and Unix times.
"""

from typing import NamedTuple

from otel_gpu.wire.blocks import BlockStack, Holders, Memory, MemoryMap, OutOfMemory
from otel_gpu.wire.bodies import CaptureFacts, ProbedLibrary
from otel_gpu.wire.communicators import Communicators
from otel_gpu.wire.device_activity import DeviceTrace
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.marks import Range, Step
from otel_gpu.wire.memory_snapshot import MemorySnapshot
from otel_gpu.wire.readings import (
    Aggregates,
    Counters,
    Devices,
    FabricRead,
    Pressure,
    Status,
    Times,
)
from otel_gpu.wire.symbol_records import (
    CulpritSeen,
    FunctionSeen,
    ProcessSeen,
    ResourceSeen,
    Stack,
    UserStack,
)


class CudaCall(NamedTuple):
    """One finished CUDA API call that was chosen to become a span; its duration is host time."""

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    parent_start_ktime_ns: int
    root_start_ktime_ns: int
    blocked_ns: int
    run_queue_ns: int
    size_bytes: int
    address: int
    stream: int
    function: int
    user_stack: int
    status: int
    device: int
    weight: int
    voluntary_switches: int
    involuntary_switches: int
    cpu: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    api: int
    variant: int
    copy_kind: int
    choices: int
    depth: int
    comm: str


class Stall(NamedTuple):
    """
    A watched thread off the CPU: blocked, then waiting in a run queue.

    ``resource`` is the id of the resource that it waited for; 0: unknown.
    """

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    runnable_ktime_ns: int
    call_start_ktime_ns: int
    root_start_ktime_ns: int
    user_stack: int
    culprit_pid: int
    culprit_tid: int
    waker_pid: int
    waker_tid: int
    cpu: int
    call_api: int
    call_depth: int
    switch_type: int
    kernel_stack: int
    system_call: int
    argument: int
    flags: int
    comm: str
    culprit_comm: str
    waker_comm: str
    resource: int = 0


class Gap(NamedTuple):
    """The time between two outermost CUDA calls of one thread; chosen to become a span."""

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    blocked_ns: int
    run_queue_ns: int
    device: int
    voluntary_switches: int
    involuntary_switches: int
    previous_api: int
    next_api: int
    choices: int
    comm: str


class Fork(NamedTuple):
    """A process created another process. Threads are not forks."""

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    child_program_ktime_ns: int
    call_start_ktime_ns: int
    root_start_ktime_ns: int
    child_pid: int
    comm: str


class Exec(NamedTuple):
    """A process became another program under the same pid."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    old_program_ktime_ns: int
    inode: int
    device: int
    stopped: int
    comm: str
    path: str


class Exit(NamedTuple):
    """
    The last thread of a watched process ended.

    ``exit_code`` is that of ``wait(2)``. If the kernel side did not report the end, it is None,
    ``start_boot_ns`` is 0, and ``ktime_ns`` is when the agent noticed the end.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_boot_ns: int
    exit_code: int | None
    comm: str


class Library(NamedTuple):
    """A watched process mapped a CUDA library."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    stopped: int
    path: str


class Device(NamedTuple):
    """A process read the identity of one of its CUDA devices."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    device: int
    uuid: bytes
    name: str


class Clock(NamedTuple):
    """CLOCK_MONOTONIC and CLOCK_REALTIME, read at the same time."""

    ktime_ns: int
    unix_ns: int


class OpenCall(NamedTuple):
    """
    A CUDA call that has been open for longer than the configured limit.

    If it began before its process was watched, ``start_ktime_ns`` is an upper bound.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    root_start_ktime_ns: int
    blocked_ns: int
    run_queue_ns: int
    user_stack: int
    device: int
    api: int
    depth: int
    comm: str

    @property
    def began_before_capture(self) -> bool:
        """Whether its entry was not seen, so that it can be older than ``start_ktime_ns``."""
        return self.start_ktime_ns < self.program_ktime_ns


class CpuSample(NamedTuple):
    """
    A watched thread was on a CPU at a tick of the sampling clock.

    ``weight_ns`` is the CPU time that it stands for.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    user_stack: int
    weight_ns: int
    root_start_ktime_ns: int
    kernel_stack: int
    cpu: int
    api: int
    context: int
    comm: str


class ThreadContext(NamedTuple):
    """
    The application's span that a thread was in when its event with ``start_ktime_ns`` began.

    ``trace_flags`` are those of W3C Trace Context: 1 is sampled.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    trace_id: bytes
    span_id: bytes
    trace_flags: int


class MemoryRead(NamedTuple):
    """What an allocator holds of one device; only importers yield it."""

    ktime_ns: int
    snapshot: MemorySnapshot


class DeviceRead(NamedTuple):
    """The trace that a profiler recorded of one process; only importers yield it."""

    ktime_ns: int
    trace: DeviceTrace


class Capture(NamedTuple):
    """How this capture was made: host, settings, histogram layout (from JSON)."""

    ktime_ns: int
    info: CaptureFacts


class Probes(NamedTuple):
    """The symbols of one library that carry probes (from JSON)."""

    ktime_ns: int
    info: ProbedLibrary


Event = (
    CudaCall
    | Stall
    | Gap
    | CpuSample
    | Stack
    | UserStack
    | FunctionSeen
    | ResourceSeen
    | CulpritSeen
    | Times
    | Pressure
    | ThreadContext
    | Step
    | Range
    | Devices
    | DeviceFault
    | FabricRead
    | Memory
    | Communicators
    | Holders
    | BlockStack
    | OutOfMemory
    | MemoryMap
    | DeviceRead
    | MemoryRead
    | Fork
    | Exec
    | Exit
    | Library
    | Device
    | Clock
    | Counters
    | OpenCall
    | Aggregates
    | Capture
    | ProcessSeen
    | Probes
    | Status
)
