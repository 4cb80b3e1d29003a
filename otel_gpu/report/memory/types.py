"""Rows of device memory in a document. Sizes are bytes."""

from typing import NamedTuple

from otel_gpu.state.memory.allocations import AllocationWindow
from otel_gpu.state.memory.sizes import FileHolder as FileHolder  # noqa: PLC0414 -- as above
from otel_gpu.state.memory.sizes import SegmentSize as SegmentSize  # noqa: PLC0414 -- as above
from otel_gpu.state.memory.snapshot import Layer as Layer  # noqa: PLC0414 -- a type of documents, too


class Holding(NamedTuple):
    """Memory held by a line of a program; a function in brackets stands for unknown code."""

    function: str
    file: str
    line: int
    size_bytes: int
    blocks: int


class PinnedBy(NamedTuple):
    """A line whose blocks keep ``hole_bytes`` beside them from being released or merged."""

    function: str
    file: str
    line: int
    hole_bytes: int
    size_bytes: int
    blocks: int


class MemoryPool(NamedTuple):
    """Segments that serve the same requests; their holes cannot serve others."""

    pool: tuple[int, int]
    stream: int
    small: bool
    expandable: bool
    segments: int
    reserved_bytes: int
    live_bytes: int
    free_bytes: int
    largest_hole_bytes: int


class ChurnRow(NamedTuple):
    """Allocated blocks of one size; ``holders``: up to 3 lines that allocated most of them."""

    block_bytes: int
    blocks: int
    size_bytes: int
    holders: tuple[Holding, ...]


class PinnedHoleRow(NamedTuple):
    """
    A hole with ``stuck_bytes`` that cannot be released; ``holders``: lines of the blocks at its
    ends.
    """

    hole_bytes: int
    stuck_bytes: int
    segment_bytes: int
    holders: tuple[Holding, ...]


class KeptMemory(NamedTuple):
    """Free memory that could not serve a request; see ``state.memory.snapshot.Kept``."""

    pool: tuple[int, int]
    stream: int
    is_small: bool
    free_bytes: int
    whole_bytes: int
    largest_hole_bytes: int
    holders: tuple[Holding, ...]


class OutOfMemoryRow(NamedTuple):
    """
    A failed request; see ``explain.chains.Failure``.

    ``free_bytes`` is the device's free memory. None: not known.
    """

    unix_ns: int | None
    function: str
    file: str
    line: int
    asked_bytes: int
    free_bytes: int | None
    cause: str
    reserved_bytes: int
    live_bytes: int
    hole_bytes: int
    largest_hole_bytes: int | None
    elsewhere_bytes: int
    outside_bytes: int | None
    holders: tuple[Holding, ...]
    pins: tuple[PinnedBy, ...]
    leaks: tuple[Holding, ...]
    kept: tuple[KeptMemory, ...] = ()


class MemoryReading(NamedTuple):
    """Memory in use and reserved at one time."""

    unix_ns: int
    live_bytes: int
    reserved_bytes: int


class GrowingLine(NamedTuple):
    """
    A line whose memory grows steadily; ``full_in_s``: time until the device is full, None: not
    known.
    """

    function: str
    file: str
    line: int
    bytes_per_s: float
    r_squared: float
    readings: int
    full_in_s: float | None


class DeviceMemory(NamedTuple):
    """
    Memory of one process on one device, as one layer reports it.

    The layers hold the same memory: they are never added up. ``reserved_bytes`` is the sum of
    requested, rounding, pending, stuck and whole free bytes; None: the source lacks the value.
    ``holders`` are those at the peak, by requested bytes, and ``end_holders`` those at the end.

    Attributes:
        pid: None: the source lacks it.
        live_bytes: In use, by block size.
        peak_bytes: The most that was in use.
        stuck_bytes: Free between blocks that are in use.
        whole_free_bytes: Free, and can be released to the device.
        churn: Allocations while it was recorded, including freed ones.
        leaks: Lines that allocated in each repeated phase and freed nothing.
        alarms: Problems, each with its effect.
        blocks: The blocks with known code locations: ``memory.blocks``; None: all that a source
            recorded.
        before_bytes: In use since before the attach, and still.
        unknown_bytes: In use, without a known code location.
        coverage: Share of the allocator's reports whose total agreed with the followed blocks.
        readings: Memory in use and reserved over time.
        growth: Lines that hold more and more.
        windows: Allocating calls of a runtime or driver over time.
        files: Memory in use at the end, by file.
        largest_blocks: In use at the end, up to 10.
        churn_sizes: The most allocated sizes, up to 15, of blocks from 1 MiB on.
        segment_sizes: Segments by size.
        holes: Up to 20, those with most stuck bytes.
        unreserved_bytes: Of the device, not reserved; None also if more is reserved than the
            device's stated size.
        usable_bytes: Of the device, available to blocks: all but stuck, pending and private pools'
            memory.
        pooled_bytes: Whole free segments in private pools, which release them when unused.
    """

    pid: int | None
    device: int
    layer: str
    live_bytes: int
    peak_bytes: int | None
    peak_unix_ns: int | None
    reserved_bytes: int
    peak_reserved_bytes: int | None
    requested_bytes: int | None
    rounding_bytes: int | None
    pending_bytes: int | None
    stuck_bytes: int | None
    whole_free_bytes: int | None
    largest_hole_bytes: int | None
    capacity_bytes: int | None
    expandable_segments: bool | None
    segments: int | None
    allocations: int
    frees: int
    segment_allocations: int | None
    segment_frees: int | None
    recorded_ns: int | None
    pools: tuple[MemoryPool, ...]
    holders: tuple[Holding, ...]
    end_holders: tuple[Holding, ...]
    churn: tuple[Holding, ...]
    leaks: tuple[Holding, ...]
    ooms: tuple[OutOfMemoryRow, ...]
    alarms: tuple[str, ...]
    advice: tuple[str, ...]
    blocks: str | None = None
    before_bytes: int | None = None
    unknown_bytes: int | None = None
    coverage: float | None = None
    readings: tuple[MemoryReading, ...] = ()
    growth: tuple[GrowingLine, ...] = ()
    windows: tuple[AllocationWindow, ...] = ()
    files: tuple[FileHolder, ...] = ()
    largest_blocks: tuple[Holding, ...] = ()
    churn_sizes: tuple[ChurnRow, ...] = ()
    segment_sizes: tuple[SegmentSize, ...] = ()
    holes: tuple[PinnedHoleRow, ...] = ()
    unreserved_bytes: int | None = None
    usable_bytes: int | None = None
    pooled_bytes: int | None = None
