"""Rows of device memory in a document. Sizes are bytes."""

from typing import Annotated, NamedTuple

from msgspec import Meta

from otel_gpu.explain.kinds import FAILED_REQUESTS
from otel_gpu.formatting.field_types import Share, Signed, one_of
from otel_gpu.state.memory.allocations import AllocationWindow
from otel_gpu.state.memory.sizes import FileHolder as FileHolder  # noqa: PLC0414 -- as above
from otel_gpu.state.memory.sizes import SegmentSize as SegmentSize  # noqa: PLC0414 -- as above
from otel_gpu.state.memory.snapshot import Layer as Layer  # noqa: PLC0414 -- a type of documents, too

MODES = ("totals", "large", "all")
"""The values of ``options.MemoryConfig.blocks`` with which blocks are followed."""


class Holding(NamedTuple):
    """
    Memory held by a line of a program.

    Attributes:
        function: In brackets without a line: ``(older than the recording)``, ``(without a stack)``,
            ``(N others)``.
        blocks: The number of blocks.
    """

    function: str
    file: str
    line: int
    size_bytes: int
    blocks: int


class PinnedBy(NamedTuple):
    """
    A line whose blocks keep holes beside them from being released or merged.

    Attributes:
        hole_bytes: Those holes.
        size_bytes: Of the blocks.
        blocks: The number of blocks.
    """

    function: str
    file: str
    line: int
    hole_bytes: int
    size_bytes: int
    blocks: int


class MemoryPool(NamedTuple):
    """
    Segments that serve the same requests; their holes cannot serve others.

    Attributes:
        pool: Its id; 0, 0: the pool of all.
        small: Whether it serves small requests only.
        expandable: Whether its segments can grow.
    """

    pool: tuple[int, int]
    stream: Signed
    small: bool
    expandable: bool
    segments: int
    reserved_bytes: int
    live_bytes: int
    free_bytes: int
    largest_hole_bytes: int


class ChurnRow(NamedTuple):
    """
    Allocated blocks of one size.

    Attributes:
        size_bytes: All blocks: ``block_bytes`` times ``blocks``.
        holders: Up to 3 lines that allocated most of them.
    """

    block_bytes: int
    blocks: int
    size_bytes: int
    holders: tuple[Holding, ...]


class PinnedHoleRow(NamedTuple):
    """
    A hole that cannot be released whole.

    Attributes:
        stuck_bytes: The part that cannot be released.
        segment_bytes: The size of its segment.
        holders: The lines of the blocks at its ends.
    """

    hole_bytes: int
    stuck_bytes: int
    segment_bytes: int
    holders: tuple[Holding, ...]


class KeptMemory(NamedTuple):
    """
    Free memory that could not serve a request: of other pools, streams or sizes, or not released.

    Attributes:
        is_small: Whether it serves small requests only.
        whole_bytes: The part that no block is beside, so that the device could have it back.
        holders: The lines that allocated there, the most first.
    """

    pool: tuple[int, int]
    stream: Signed
    is_small: bool
    free_bytes: int
    whole_bytes: int
    largest_hole_bytes: int
    holders: tuple[Holding, ...]


class OutOfMemoryRow(NamedTuple):
    """
    A request for memory that failed; None: not known.

    Attributes:
        unix_ns: When.
        function: Where it was made, as ``file`` and ``line``.
        asked_bytes: The requested size.
        free_bytes: What the device had free.
        cause: Why.
        reserved_bytes: What the allocator held.
        live_bytes: The part of it in use.
        hole_bytes: The free part of it that could have served the request.
        largest_hole_bytes: The largest such hole.
        elsewhere_bytes: Free for other streams, pools or sizes only.
        outside_bytes: Taken by other processes at least, or by this one without the allocator.
        holders: The lines that held memory in use, the most first.
        pins: The lines whose blocks kept holes apart, the most first.
        leaks: The lines that hold more from phase to phase, the most first.
        kept: Free memory that could not serve the request, the most first.
    """

    unix_ns: int | None
    function: str
    file: str
    line: int
    asked_bytes: int
    free_bytes: int | None
    cause: Annotated[str, one_of(FAILED_REQUESTS)]
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
    A line whose memory grows steadily.

    Attributes:
        r_squared: How well a line fits its readings; 1: perfectly.
        readings: The number of readings.
        full_in_s: Time until the device is full at this rate; None: not known.
    """

    function: str
    file: str
    line: int
    bytes_per_s: float
    r_squared: Annotated[float, Meta(le=1)]
    readings: int
    full_in_s: float | None


class DeviceMemory(NamedTuple):
    """
    Memory of one process on one device, as one layer reports it.

    The layers hold the same memory: they are never added up. None: the source lacks the value.

    Attributes:
        live_bytes: In use, by block size.
        peak_bytes: The most that was in use.
        reserved_bytes: What the layer holds of the device: the sum of requested, rounding, pending,
            stuck, pooled and whole free bytes.
        pending_bytes: Freed, and waiting for a stream.
        stuck_bytes: Free between blocks that are in use.
        whole_free_bytes: Free, and can be released to the device.
        capacity_bytes: The size of the device's memory.
        expandable_segments: Whether segments can grow.
        allocations: The number of allocated blocks.
        frees: The number of freed blocks.
        recorded_ns: The time that was recorded.
        holders: At the peak, by requested bytes, the most first.
        end_holders: At the end, the most first.
        churn: Allocations while it was recorded, including freed ones.
        leaks: Lines that allocated in each repeated phase and freed nothing.
        ooms: Requests that failed.
        alarms: Problems, each with its effect.
        blocks: The blocks with known code locations: ``memory.blocks``; None: all that a source
            recorded.
        before_bytes: In use since before the attach, and still.
        unknown_bytes: In use, without a known code location.
        coverage: Share of the allocator's reports whose total agreed with the followed blocks.
        readings: Memory in use and reserved over time.
        growth: Lines that hold more and more.
        windows: Allocating calls of a runtime or driver over time.
        files: Memory in use at the end, by file, the most first: up to 15, and a row for all
            others.
        largest_blocks: In use at the end, up to 10.
        churn_sizes: The most allocated sizes, including freed blocks: up to 15, of blocks from 1
            MiB on.
        segment_sizes: Segments by size, the largest first.
        holes: Up to 20, those with most stuck bytes.
        unreserved_bytes: Of the device, not reserved; None also if more is reserved than the
            device's stated size.
        usable_bytes: Of the device, available to blocks: all but stuck, pending and pooled bytes.
        pooled_bytes: Whole free segments in private pools, which release them when unused.
    """

    pid: Signed | None
    device: int
    layer: Layer
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
    blocks: Annotated[str, one_of(MODES)] | None = None
    before_bytes: int | None = None
    unknown_bytes: int | None = None
    coverage: Share | None = None
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
