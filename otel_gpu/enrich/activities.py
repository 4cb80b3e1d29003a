"""
The activities: events with Unix time and names.

An activity keeps its event and adds what the event's numbers mean: the process
image, the API's row in the probe table, Unix times in nanoseconds.

An activity that can become a span carries the ids of that span, which are not worked
out again: ``trace_id`` (16 bytes), ``span_id`` (8 bytes; empty: no span) and
``parent_span_id`` (empty: a root). Where they come from is in ``ids.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from otel_gpu import wire
from otel_gpu.decode.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.decode.device import DeviceTrace
from otel_gpu.decode.events import (
    Aggregate,
    CpuSample,
    CudaCall,
    Fork,
    Gap,
    OpenCall,
    SeriesKey,
    Stall,
)
from otel_gpu.decode.memory import MemorySnapshot
from otel_gpu.probe_table import Api
from otel_gpu.stacks.frames import Frame


@dataclass(frozen=True, slots=True, eq=False)
class ProcessImage:
    """
    One program that ran under one pid; compared by identity.

    Attributes:
        pid: In the agent's pid namespace.
        image_ktime_ns: With ``pid``, the key of this image everywhere.
        comm: The kernel's 15-character name; always known.
        attributes: OTel resource attributes of the process, in emission order:
            ``service.name``, ``service.instance.id``, ``process.*``,
            ``container.id``, ``k8s.*``, ``host.*``.
        start_unix_ns: When the image began.
    """

    pid: int
    image_ktime_ns: int
    comm: str
    start_unix_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def service_name(self) -> str:
        """The name under which backends list this process."""
        return str(self.attributes["service.name"])


ImageKey = tuple[int, int]
"""A process image: its pid, and when it began by the kernel's clock."""


def key_of(process: ProcessImage) -> ImageKey:
    """Return what tells a process image from all others, also from those of the same pid."""
    return process.pid, process.image_ktime_ns


class DeviceIdentity(NamedTuple):
    """A CUDA device as OBI names it; None where it was not observed."""

    index: int  # type: ignore[assignment] # OBI's word; this tuple is never searched
    uuid: str | None
    model: str | None


class CallStack(NamedTuple):
    """
    Where a thread was in its program: Python and native frames, innermost first.

    Attributes:
        id: Of its content: equal stacks have equal ids, everywhere.
        frames: A frame of kind ``cut`` stands for others that were left out.
        complete: Whether nothing is missing at the outer end.
        native: How native frames were found; see ``capture.stacks.frames.MergedStack``.
        python: The same for frames of Python.
        place: The innermost frame of the program's own code; None where it is not known.
    """

    id: int
    frames: tuple[Frame, ...]
    complete: bool
    native: str
    python: str
    place: Frame | None


class Who(NamedTuple):
    """
    Who a process, or a thread of one, is; empty where that is not known.

    Attributes:
        pid: The process.
        tid: The thread; 0: what is said holds for the process.
        comm: The kernel's name.
        command: The command line, without what looks like a secret.
        container: The id of its container.
        pod: The uid of its Kubernetes pod.
        unit: The systemd unit that it belongs to.
        owner: The name of its user.
        function: Of a thread: what it runs, if it has no name of its own.
    """

    pid: int
    tid: int = 0
    comm: str = ""
    command: str = ""
    container: str = ""
    pod: str = ""
    unit: str = ""
    owner: str = ""
    function: str = ""


class CallActivity(NamedTuple):
    """A chosen CUDA call; ``stack`` is where it was made, ``kernel`` what it launched, if known."""

    process: ProcessImage
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


class Resource(NamedTuple):
    """
    What a thread waited for, in a system call about a file descriptor.

    Attributes:
        kind: ``file``, ``device``, ``tcp``, ``udp``, ``unix``, ``pipe``, ``eventfd`` or ``other``.
        name: A path, or an address and port: of the peer, or of what is listened on. Empty: it is
            not known, or it stands for many: all files of a file system, say.
        file_system: Its type (``ext4``, ``nfs4``, ``fuse.sshfs``, ``overlay``); else empty.
        mount: Where the process sees that file system; else empty.
        is_remote: Whether another host, or network namespace, is behind it.
        is_incoming: Whether it is listened on, or was connected from the other end.
        peers: The watched processes that have the other end of a pipe or of a socket of this host.
        source: What is mounted: a device, or ``host:/folder``; else empty.
    """

    kind: str
    name: str
    file_system: str = ""
    mount: str = ""
    is_remote: bool = False
    is_incoming: bool = False
    peers: tuple[int, ...] = ()
    source: str = ""

    @property
    def is_network(self) -> bool:
        """Whether it is a connection that this host made to another one."""
        return self.is_remote and not self.is_incoming and self.kind in ("tcp", "udp")


class StallActivity(NamedTuple):
    """
    A scheduler stall of a watched thread.

    ``reason`` says what it was blocked on (``enrich/reasons.py``), ``""`` when it was
    not blocked at all; ``functions`` is its kernel stack, innermost first, and ``stack``
    where in the program it left the CPU. A stall can be two spans: ``span_id`` is that of
    the time until it could run, ``run_queue_span_id`` that of its wait for a CPU; where
    there was no such time, the id is empty.
    """

    process: ProcessImage
    event: Stall
    start_unix_ns: int
    runnable_unix_ns: int
    end_unix_ns: int
    reason: str
    functions: tuple[str, ...]
    stack: CallStack | None
    trace_id: bytes
    span_id: bytes
    run_queue_span_id: bytes
    parent_span_id: bytes
    resource: Resource | None = None


class GapActivity(NamedTuple):
    """A chosen gap between two CUDA calls of a thread."""

    process: ProcessImage
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
    Where a thread was that was on a CPU.

    ``event.weight_ns`` is the time on CPUs that it stands for. ``functions`` is its kernel stack,
    innermost first, empty if it was in user space, and ``stack`` where in the program it was.
    """

    process: ProcessImage
    event: CpuSample
    unix_ns: int
    functions: tuple[str, ...]
    stack: CallStack | None


class Culprit(NamedTuple):
    """Who had the CPU, held the lock, or kept somebody waiting."""

    pid: int
    tid: int
    comm: str


class Wait(NamedTuple):
    """
    In what a thread spent time, and who kept it from going on.

    Attributes:
        api: Number of the API of its outermost open call, or of the call before its gap; 0: none.
        who: Who had the CPU that it waited for, or ended its wait.
        end: The last one of those who waited for each other; may be ``who`` itself.
        end_state: What that one did meanwhile: an enumerator of ``thread_state``.
        end_reason: What it was blocked on, if it was; empty: it was not.
        resource: What the system call that the thread waited in was about.
    """

    api: int
    who: Culprit | None
    end: Culprit | None
    end_state: int
    end_reason: str
    resource: Resource | None


NO_WAIT = Wait(0, None, None, wire.STATE_NONE, "", None)
"""Nothing is known but the time."""

TimeKind = tuple[int, int, str, Wait]
"""What an entry of the time account is about: state, context, reason, and what is known of the wait."""


class ThreadTime(NamedTuple):
    """
    Time of the threads of one process, cumulative.

    ``state`` and ``context`` are enumerators of ``bpf/events.h``; ``reason`` is set
    where the state is blocked. ``time_ns`` grows while the time passes, when it is not known yet
    who will end a wait; ``ended_ns`` grows by the whole of a wait when it ends. So over all waits of
    one state, context and reason, ``time_ns`` is ahead by what has not ended yet.
    """

    process: ProcessImage
    state: int
    context: int
    reason: str
    time_ns: int
    count: int  # type: ignore[assignment] # as above
    ended_ns: int = 0
    wait: Wait = NO_WAIT

    @property
    def kind(self) -> TimeKind:
        """What tells it from others of its process: all but the figures."""
        return self.state, self.context, self.reason, self.wait


class TimesActivity(NamedTuple):
    """The time account at one moment."""

    unix_ns: int
    times: tuple[ThreadTime, ...]


class WhoActivity(NamedTuple):
    """Who somebody is that others name by numbers only; the last word about each holds."""

    unix_ns: int
    who: Who


class ResourceActivity(NamedTuple):
    """A connection's other end, and how many segments were sent to it once more so far."""

    unix_ns: int
    resource: Resource
    retransmits: int


class PressureActivity(NamedTuple):
    """The load of the host and of the watched cgroups at one moment: context, no cause."""

    unix_ns: int
    info: Mapping[str, Any]


class DevicesActivity(NamedTuple):
    """What the devices of the host said of themselves at one moment."""

    unix_ns: int
    info: Mapping[str, Any]


class MemoryActivity(NamedTuple):
    """What an allocator holds of one device, and what led there."""

    unix_ns: int
    snapshot: MemorySnapshot


class BlocksActivity(NamedTuple):
    """
    What a framework's allocator said of one device of a process at one moment.

    ``holders`` are those that changed, by the key of their stack; 0: it is not known where.
    """

    unix_ns: int
    process: ProcessImage
    number: int
    device: DeviceIdentity | None
    totals: MemoryTotals | None
    holders: tuple[tuple[int, Holder, CallStack | None], ...]


class OutOfMemoryActivity(NamedTuple):
    """
    A request for device memory that failed, and where.

    ``api`` is the call that said so, None: a framework did. ``map`` is what was where at that
    moment, as ``MemoryMap.info``, with the stack of each key in ``stacks``.
    """

    unix_ns: int
    process: ProcessImage
    event: OutOfMemory
    device: DeviceIdentity | None
    api: Api | None
    stack: CallStack | None
    map: Mapping[str, Any] | None
    stacks: Mapping[int, CallStack]
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class DeviceTraceActivity(NamedTuple):
    """What a process recorded of its devices and of itself."""

    unix_ns: int
    trace: DeviceTrace


class ForkActivity(NamedTuple):
    """A fork; ``process`` is the parent."""

    process: ProcessImage
    event: Fork
    child: ProcessImage
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

    process: ProcessImage
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

    process: ProcessImage
    key: SeriesKey
    api: Api | None
    device: DeviceIdentity | None
    aggregate: Aggregate


class AggregatesActivity(NamedTuple):
    """All series at one moment."""

    unix_ns: int
    series: tuple[Series, ...]


class CountersActivity(NamedTuple):
    """The kernel side's counters at one moment, by their enumerator's name."""

    unix_ns: int
    values: Mapping[str, int]


class StatusActivity(NamedTuple):
    """The agent's own figures at one moment."""

    unix_ns: int
    info: Mapping[str, Any]


class ProbesActivity(NamedTuple):
    """Symbols of one library that carry probes."""

    unix_ns: int
    info: Mapping[str, Any]


class CaptureActivity(NamedTuple):
    """
    How the capture was made; the first activity of every stream.

    ``seed`` is in the ids of all its spans: 8 bytes that no other capture has.
    """

    unix_ns: int
    info: Mapping[str, Any]
    seed: bytes

    def lacks(self, what: str) -> bool:
        """Say whether a capture cannot tell something; see ``decode.events.Capture``."""
        unknown = self.info.get("unknown")
        return isinstance(unknown, list | tuple) and what in unknown


class ExitActivity(NamedTuple):
    """
    A watched process image ended; nothing of it follows but its last series.

    ``exit_code`` is as ``wait(2)`` gives it, None where the end was not seen. ``is_replaced`` says
    that its process lives on, and runs another program.
    """

    process: ProcessImage
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
    | DeviceTraceActivity
    | MemoryActivity
    | BlocksActivity
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
END_OF: Mapping[type, Callable[[Any], int]] = {
    # Every kind has one of these.
    kind: attrgetter(next(iter(_ENDS & set(kind._fields))))
    for kind in get_args(Activity)
}
"""By kind of activity, what says when one ended or was read, in Unix nanoseconds."""
