"""The nouns of a document that say what holds the memory of a device. Sizes are bytes."""

from typing import NamedTuple

from otel_gpu.state.memory.allocations import AllocationWindow
from otel_gpu.state.memory.sizes import FileHolder as FileHolder  # noqa: PLC0414 -- likewise
from otel_gpu.state.memory.sizes import SegmentSize as SegmentSize  # noqa: PLC0414 -- likewise
from otel_gpu.state.memory.snapshot import Layer as Layer  # noqa: PLC0414 -- a noun of documents too


class Holding(NamedTuple):
    """What a line of a program holds; a function in brackets stands for what has no line."""

    function: str
    file: str
    line: int
    size_bytes: int
    blocks: int


class PinnedBy(NamedTuple):
    """A line whose blocks keep ``hole_bytes`` beside them from being given back or merged."""

    function: str
    file: str
    line: int
    hole_bytes: int
    size_bytes: int
    blocks: int


class MemoryPool(NamedTuple):
    """Segments that serve the same requests: a hole in one helps no request to another."""

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
    """How many blocks of one size were allocated; ``holders``: up to 3, who allocated the most."""

    block_bytes: int
    blocks: int
    size_bytes: int
    holders: tuple[Holding, ...]


class PinnedHoleRow(NamedTuple):
    """A hole of which ``stuck_bytes`` cannot be given back; ``holders``: of the blocks at its ends."""

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
    A request that failed; see ``explain.chains.Failure``.

    ``free_bytes`` is what the device had free. What may be None is so where it is not known.
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
    """What was in use and reserved at one moment."""

    unix_ns: int
    live_bytes: int
    reserved_bytes: int


class GrowingLine(NamedTuple):
    """A line whose memory grows steadily; ``full_in_s``: when it will be all, None: not known."""

    function: str
    file: str
    line: int
    bytes_per_s: float
    r_squared: float
    readings: int
    full_in_s: float | None


class DeviceMemory(NamedTuple):
    """
    What one process holds of one device, as one layer says.

    The layers hold the same memory: they are never added up. ``reserved_bytes`` is the sum of
    requested, rounding, pending, stuck and whole free bytes; what a source cannot say is None.
    ``holders`` are those at the peak, by what they asked for, and ``end_holders`` those in the end.

    Attributes:
        pid: None: the source does not say.
        live_bytes: In use, as large as the blocks are.
        peak_bytes: The most that was in use.
        stuck_bytes: Free between blocks that are in use.
        whole_free_bytes: Free, and can be given back to the device.
        churn: What was allocated while it was recorded, also what is free again.
        leaks: Who allocated in each phase that repeats and freed nothing.
        alarms: What went wrong, each for an effect that it had.
        blocks: Of which blocks it is known where they were allocated: ``memory.blocks``; None: all
            that a source recorded.
        before_bytes: In use since before the attach, and still.
        unknown_bytes: In use, and where it was allocated is not known.
        coverage: Share of the allocator's reports whose total agreed with what was seen.
        readings: What was in use and reserved over time.
        growth: Which lines hold more and more.
        windows: How the calls of a runtime or driver that allocate went over time.
        files: What is in use in the end, by file.
        largest_blocks: In use in the end, up to 10.
        churn_sizes: Of which sizes most was allocated, up to 15, of blocks from 1 MiB on.
        segment_sizes: Segments by how large they are.
        holes: Up to 20, of which most is stuck.
        unreserved_bytes: Of the device, what is not reserved; None also where more is reserved than
            the device is said to have.
        usable_bytes: Of the device, what blocks could have: all but what is stuck, pending or kept by private pools.
        pooled_bytes: Free as a whole in private pools, which give it back when nothing uses them any more.
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
