"""
The JSON bodies of records that describe the capture, its programs, stacks and the agent.

A body that is printed and stored as a document is a ``TypedDict``: a field that is missing stays
missing. One that becomes an event is a ``Struct``.
"""

import itertools
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal, NotRequired, Required, TypedDict

from msgspec import Meta, Struct, ValidationError

from otel_gpu import wire
from otel_gpu.options import BucketLayout
from otel_gpu.wire.frames import RECORDED_TYPES, FrameType, PythonStatus, UnwindMethod
from otel_gpu.wire.json_body import (
    UINT32_MAX,
    BodyType,
    Count,
    Counts,
    Int32,
    Int64,
    Scalar,
    UInt64,
    check_uint64,
)

MAX_FRAMES: Final = 257
"""256 frames of a user stack, and one that states how many are left out."""
MAX_FRAME_TEXT: Final = 513
"""Characters of a text of a frame: 512, and an ellipsis."""

_MAX_PEERS = 64


class AgentFacts(TypedDict, total=False):
    """The agent that captured."""

    version: str
    pid: Int64


class HostFacts(TypedDict, total=False):
    """The host of a capture."""

    name: str
    id: str | None
    arch: str
    os_version: str | None
    boot_id: str | None
    cpus: Int64 | None


class Buckets(TypedDict, total=False):
    """Buckets of histograms; ``scale`` and ``offset`` are those of OpenTelemetry's exponential ones."""

    kind: Required[BucketLayout]
    scale: Annotated[int, Meta(ge=-10, le=20)]
    offset: Annotated[int, Meta(ge=-(1 << 27), lt=1 << 27)]
    bounds_ns: Annotated[list[UInt64], Meta(max_length=wire.MAX_BOUNDS)]
    bounds_bytes: Annotated[list[UInt64], Meta(max_length=wire.MAX_BOUNDS)]


class Layout(TypedDict):
    """``histogram_layout`` writes it."""

    durations: Buckets
    sizes: Buckets


class CaptureMode(StrEnum):
    """What a capture observes, or that another tool made it."""

    COMMAND = "command"
    PIDS = "pid"
    CGROUP = "cgroup"
    ALL = "all"
    IMPORT = "import"


class CaptureFacts(TypedDict, total=False):
    """
    How a capture was made.

    ``unknown`` and ``source`` are of captures that another tool made: what it does not record
    (``calls``), and what its file states about itself.
    """

    agent: AgentFacts
    host: HostFacts
    mode: str
    layout: Required[Layout]
    settings: dict[str, Scalar | dict[str, Scalar]]
    unknown: list[str]
    source: dict[str, Scalar]
    truncated: bool


class ProcessFacts(TypedDict, total=False):
    """What /proc shows of a program; of an unwatched process only some of it."""

    start_boot_ns: Int64 | None
    boot_offset_ns: Int64 | None
    ppid: Int64 | None
    vpid: Int64 | None
    exe: str | None
    command_args: list[str]
    comm: str
    owner: str | None
    cgroups: list[str]
    env: dict[str, str]
    otel_context: Mapping[str, Scalar | Sequence[Scalar]] | None
    mountinfo_container_id: str | None
    truncated: bool


ProbeSite = TypedDict(
    "ProbeSite",
    {"offset": Int64, "instruction": str, "class": str, "symbols": list[str]},
    total=False,
)
"""An instruction that carries a probe."""


class ProbedLibrary(TypedDict, total=False):
    """The probes of one library."""

    library: Required[str]
    device: UInt64
    inode: UInt64
    build_id: str | None
    symbols: Count
    exported: Count
    failed: list[str]
    unsafe: list[str]
    preload: Count
    sites: list[ProbeSite]
    truncated: bool


class MissedStartFacts(TypedDict, total=False):
    """A process whose first calls were not seen."""

    pid: Int64
    name: str
    reason: str
    file: str


class UnreadFacts(TypedDict, total=False):
    """A file of a process that was not read."""

    pid: Int64
    uid: Int64
    name: str
    what: str
    reason: str


class ShareFacts(TypedDict, total=False):
    """A program that reached a bound that holds for each user or program."""

    bound: str
    pid: Int64
    name: str
    user: str
    count: Int64


class AgentStatus(TypedDict, total=False):
    """The agent's own figures."""

    cpu_ns: Count
    rss_bytes: Count
    cache_entries: Counts
    cache_bytes: Counts
    cache_released: Counts
    rejected: Counts
    dropped: Counts
    stacks: Counts
    blocks: Counts
    steps: Counts
    devices: Counts
    preload: Counts
    preload_calls: Count
    files: Counts
    errors: Counts
    skipped: Counts
    off: Counts
    unknown_interpreters: Counts
    still_running: Count
    missed_starts: list[MissedStartFacts]
    unread: list[UnreadFacts]
    over_share: list[ShareFacts]
    truncated: bool


_Reading = Annotated[float, Meta(ge=0, lt=1e18)]


CountField = Literal["cpu_ns", "rss_bytes", "preload_calls"]
CountsField = Literal[
    "cache_entries",
    "cache_bytes",
    "cache_released",
    "rejected",
    "dropped",
    "devices",
    "preload",
    "files",
    "errors",
    "skipped",
    "off",
]
"""Fields of ``AgentStatus`` that are exported."""


class CgroupLoad(TypedDict, total=False):
    """Throttling of one cgroup, cumulative; ``pids`` are the watched processes in it."""

    nr_periods: Count
    nr_throttled: Count
    throttled_ns: Count
    pids: list[Int64]


class HostLoad(TypedDict, total=False):
    """
    The load of the host and of the watched cgroups.

    ``psi`` is pressure by resource: ``some_avg10`` (a percentage), ``some_total_us`` and others.
    """

    psi: dict[str, dict[str, _Reading]]
    load1: _Reading
    cpus: Count
    swap_in_pages: Count
    swap_out_pages: Count
    cgroups: dict[str, CgroupLoad]
    truncated: bool


class ResourceKind(StrEnum):
    """What a thread waited for."""

    FILE = "file"
    DEVICE = "device"
    TCP = "tcp"
    UDP = "udp"
    UNIX = "unix"
    PIPE = "pipe"
    EVENTFD = "eventfd"
    OTHER = "other"
    COLLECTIVE = "collective"
    """Its name is a text of ours; no record has it."""


class ResourceFacts(TypedDict, total=False):
    """What is behind a file descriptor that a thread waited for."""

    resource: Required[Annotated[int, Meta(ge=1, le=UINT32_MAX)]]
    kind: Required[ResourceKind]
    name: str
    file_system: str
    mount: str
    source: str
    is_remote: bool
    is_incoming: bool
    peers: Annotated[list[Annotated[int, Meta(ge=1, le=UINT32_MAX)]], Meta(max_length=_MAX_PEERS)]
    retransmits: Count
    truncated: bool


class MemoryMapFacts(TypedDict):
    """
    Segments [address, bytes] and blocks [address, bytes, stack] of a device.

    ``stack`` is as in a holder's key. ``left_out`` blocks were too many, and those below
    ``smallest_bytes`` are not listed. Records have ``device``; stores have it in a column.
    """

    device: NotRequired[Int32]
    segments: list[tuple[UInt64, Count]]
    blocks: list[tuple[UInt64, Count, UInt64]]
    left_out: Count
    smallest_bytes: Count


class KernelStackBody(Struct, frozen=True):
    """Functions, innermost first."""

    kernel_stack: Int64
    functions: tuple[str, ...]


_FrameText = Annotated[str, Meta(max_length=MAX_FRAME_TEXT)]
_FrameRow = tuple[
    FrameType,
    _FrameText,
    _FrameText,
    Annotated[int, Meta(ge=0, le=(1 << 31) - 1)],
    _FrameText,
    UInt64,
]


class UserStackBody(Struct, frozen=True):
    """A merged stack; a row of ``frames`` has the fields of ``Frame``."""

    stack: Annotated[int, Meta(ge=1)]
    complete: bool
    native: UnwindMethod
    python: PythonStatus
    frames: Annotated[list[_FrameRow], Meta(max_length=MAX_FRAMES)]

    def __post_init__(self) -> None:
        check_uint64("stack or address", self.stack, *[row[-1] for row in self.frames])
        other = {row[0] for row in self.frames} - RECORDED_TYPES
        if other:
            raise ValidationError(f"frames: expected types of records, got {', '.join(other)}")


class FunctionBody(Struct, frozen=True):
    """The name of a kernel."""

    function: Annotated[int, Meta(ge=1)]
    name: Annotated[str, Meta(min_length=1, max_length=MAX_FRAME_TEXT)]

    def __post_init__(self) -> None:
        check_uint64("function", self.function)


def _check_layouts(body: CaptureFacts) -> None:
    durations, sizes = body["layout"]["durations"], body["layout"]["sizes"]
    _check_buckets("durations", durations, durations.get("bounds_ns"))
    _check_buckets("sizes", sizes, sizes.get("bounds_bytes"))


def _check_buckets(name: str, buckets: Buckets, bounds: Sequence[int] | None) -> None:
    if buckets["kind"] == BucketLayout.EXPONENTIAL:
        if "scale" not in buckets or "offset" not in buckets:
            raise ValidationError(f"layout.{name}: expected a scale and an offset, got {buckets}")
        return
    if bounds is None or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValidationError(f"layout.{name}: expected rising bounds, got {bounds}")
    check_uint64(f"layout.{name}", *bounds)


def _check_library(body: ProbedLibrary) -> None:
    check_uint64("device or inode", body.get("device", 0), body.get("inode", 0))


def _check_resource(body: ResourceFacts) -> None:
    if body["kind"] is ResourceKind.COLLECTIVE:
        raise ValidationError(f"kind: expected that of a file descriptor, got {body['kind']}")


def _check_memory_map(body: MemoryMapFacts) -> None:
    for row in (*body["segments"], *body["blocks"]):
        check_uint64("address or stack", *row)


CAPTURE: Final = BodyType(CaptureFacts, _check_layouts)
PROCESS: Final = BodyType(ProcessFacts)
PROBES: Final = BodyType(ProbedLibrary, _check_library)
STATUS: Final = BodyType(AgentStatus)
PRESSURE: Final = BodyType(HostLoad)
RESOURCE: Final = BodyType(ResourceFacts, _check_resource)
MEMORY_MAP: Final = BodyType(MemoryMapFacts, _check_memory_map)
KERNEL_STACK: Final = BodyType(KernelStackBody)
USER_STACK: Final = BodyType(UserStackBody)
FUNCTION: Final = BodyType(FunctionBody)
