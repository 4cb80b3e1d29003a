"""
The events: records from the kernel side, decoded and immutable.

Times are CLOCK_MONOTONIC nanoseconds (``*_ktime_ns``) and ids are numbers, as in
``bpf/events.h``, whose field comments hold here too. A process image is known by
``pid`` and ``image_ktime_ns`` together. Names and Unix times come in ``enrich``.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.decode.blocks import BlockStack, Holders, Memory, MemoryMap, OutOfMemory
from otel_gpu.decode.device import DeviceTrace
from otel_gpu.decode.memory import MemorySnapshot
from otel_gpu.stacks.frames import Frame

CPU_UNKNOWN: Final = (1 << 32) - 1
"""``cpu`` of a call or a stall from a capture that does not say where it ran."""
STALL_STATE_UNKNOWN: Final = 1 << 31
"""
In ``Stall.flags``: it is known how long the thread was off the CPU, and not whether it
was blocked or could run. The kernel side never sets it: captures of other tools do.
"""


class CudaCall(NamedTuple):
    """One finished CUDA API call that was chosen to become a span. Host time."""

    end_ktime_ns: int
    image_ktime_ns: int
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

    With ``STALL_STATE_UNKNOWN`` in ``flags`` it says nothing of which it was when, and
    ``runnable_ktime_ns`` is its end. ``resource`` is the id of what it waited for; 0: not known.
    """

    end_ktime_ns: int
    image_ktime_ns: int
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
    """Between two outermost CUDA calls of one thread; chosen to become a span."""

    end_ktime_ns: int
    image_ktime_ns: int
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
    """A process made another process. Threads are not forks."""

    end_ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    child_image_ktime_ns: int
    call_start_ktime_ns: int
    root_start_ktime_ns: int
    child_pid: int
    comm: str


class Exec(NamedTuple):
    """A process became another program: a new image under the same pid."""

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int
    old_image_ktime_ns: int
    inode: int
    device: int
    stopped: int
    comm: str
    path: str


class Exit(NamedTuple):
    """
    The last thread of a watched process is gone.

    ``exit_code`` is as ``wait(2)`` gives it. Of an end that the kernel side did not report it is
    None, ``start_boot_ns`` is 0, and ``ktime_ns`` is when the end was noticed.
    """

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int
    start_boot_ns: int
    exit_code: int | None
    comm: str


class Library(NamedTuple):
    """A watched process mapped a CUDA library."""

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int
    stopped: int
    path: str


class Device(NamedTuple):
    """A process learnt the identity of one of its CUDA devices."""

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int
    device: int
    uuid: bytes
    name: str


class Clock(NamedTuple):
    """CLOCK_MONOTONIC and CLOCK_REALTIME, read together."""

    ktime_ns: int
    unix_ns: int


class Counters(NamedTuple):
    """The kernel side's counters, by ``enum counter``, since capture began."""

    ktime_ns: int
    values: tuple[int, ...]


class OpenCall(NamedTuple):
    """
    A CUDA call that has been open for longer than the configured limit.

    One that began before its process was watched did so at ``start_ktime_ns`` at the latest.
    """

    ktime_ns: int
    image_ktime_ns: int
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
        """Whether its entry was not seen: it is at least as old as it seems."""
        return self.start_ktime_ns < self.image_ktime_ns


class SeriesKey(NamedTuple):
    """What one aggregate counts; ``api`` holds a switch type for thread metrics."""

    image_ktime_ns: int
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
    ``min``/``max`` are in the unit of the metric (nanoseconds or bytes). ``unplaced``
    counts what is in the sum and in no bucket: other tools keep no histograms.
    """

    sum: int
    min: int
    max: int
    size_bytes: int
    buckets: tuple[int, ...]
    unplaced: int = 0

    @property
    def counted(self) -> int:
        """How many there were, in buckets or not."""
        return sum(self.buckets) + self.unplaced


class Aggregates(NamedTuple):
    """All series that the kernel side holds, read at one moment."""

    ktime_ns: int
    series: tuple[tuple[SeriesKey, Aggregate], ...]


class CpuSample(NamedTuple):
    """
    A watched thread was on a CPU at a tick of the sampling clock.

    ``weight_ns`` is the time on CPUs that it stands for.
    """

    ktime_ns: int
    image_ktime_ns: int
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


class Stack(NamedTuple):
    """The kernel functions of one stack, innermost first (from JSON)."""

    ktime_ns: int
    kernel_stack: int
    functions: tuple[str, ...]


class UserStack(NamedTuple):
    """
    Python and native frames of one user stack, innermost first (from JSON).

    ``stack`` is the id that calls and stalls name it by. ``complete``, ``native`` and
    ``python`` are those of ``capture.stacks.frames.MergedStack``.
    """

    ktime_ns: int
    stack: int
    frames: tuple[Frame, ...]
    complete: bool
    native: str
    python: str


class FunctionSeen(NamedTuple):
    """The name of a kernel that a process launches by a handle or an address (from JSON)."""

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    function: int
    name: str


class TimesKey(NamedTuple):
    """What one entry of the time account is about; see ``bpf/events.h``."""

    image_ktime_ns: int
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


class ResourceSeen(NamedTuple):
    """
    What a resource is: something behind a file descriptor that a thread waited for (from JSON).

    ``resource`` is the id that stalls and times name it by; ``info`` has what of these is known:
    ``kind``, ``name``, ``file_system``, ``mount``, ``source``, ``is_remote``, ``is_incoming``,
    ``peers`` and ``retransmits``.
    """

    ktime_ns: int
    resource: int
    info: Mapping[str, Any]


class CulpritSeen(NamedTuple):
    """What /proc said about a process that is not watched, and kept others waiting (from JSON)."""

    ktime_ns: int
    pid: int
    info: Mapping[str, Any]


class Pressure(NamedTuple):
    """What the host and the watched cgroups said of their load (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class Devices(NamedTuple):
    """What the devices of the host say of themselves (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class MemoryRead(NamedTuple):
    """What an allocator holds of one device; the kernel side never says it: importers do."""

    ktime_ns: int
    snapshot: MemorySnapshot


class DeviceRead(NamedTuple):
    """What a process recorded of its devices and of itself; importers alone say it."""

    ktime_ns: int
    trace: DeviceTrace


class Capture(NamedTuple):
    """
    How this capture was made: host, settings, histogram layout (from JSON).

    Of a capture that another tool made, ``info["unknown"]`` lists what it cannot tell:
    ``thread_states`` (whether threads ran, waited for a CPU or were blocked),
    ``distributions`` (not all that was counted is in a bucket), ``freed_bytes``.
    """

    ktime_ns: int
    info: Mapping[str, Any]


class ProcessSeen(NamedTuple):
    """What /proc said about one process image while it lived (from JSON)."""

    ktime_ns: int
    image_ktime_ns: int
    pid: int
    facts: Mapping[str, Any]


class Probes(NamedTuple):
    """Which symbols of one library carry probes (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


class Status(NamedTuple):
    """The agent's own figures: CPU time, user-space counters (from JSON)."""

    ktime_ns: int
    info: Mapping[str, Any]


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
    | Devices
    | Memory
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
