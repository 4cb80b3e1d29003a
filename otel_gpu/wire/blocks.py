"""Device memory of framework allocators, as the kernel side counts it: blocks and who holds them."""

from typing import NamedTuple

from otel_gpu.wire.bodies import MemoryMapFacts


class DeviceKey(NamedTuple):
    """A device, by the number that one program uses for it."""

    program_ktime_ns: int
    pid: int
    device: int


class MemoryTotals(NamedTuple):
    """
    Totals of one device.

    The allocator itself reports ``allocated_bytes``, ``reserved_bytes`` and their peaks, at
    ``last_ktime_ns``. All others are monotonic counters of the probes. ``before_bytes`` was
    allocated before the first report. ``before_freed_bytes`` of it, or of lost blocks, are free
    again. ``unequal`` counts reports that differ from the probes' counts. Of the allocated bytes,
    ``unsampled_bytes`` were not sampled, and the stack of ``rate_limited_bytes`` exceeded the rate.
    """

    last_ktime_ns: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    before_bytes: int
    before_freed_bytes: int
    allocations: int
    frees: int
    handed_out_bytes: int
    taken_back_bytes: int
    unequal: int
    unsampled_bytes: int
    rate_limited_bytes: int


class Memory(NamedTuple):
    """The totals of devices at one time."""

    ktime_ns: int
    totals: tuple[tuple[DeviceKey, MemoryTotals], ...]


class HolderKey(NamedTuple):
    """Blocks of one device that were allocated by one stack; 0: unknown."""

    program_ktime_ns: int
    stack: int
    pid: int
    device: int


class Holder(NamedTuple):
    """
    Live and cumulative blocks of one stack; a sampled block counts with its weight.

    ``large_live_bytes`` is exact: of large blocks, or of all blocks if all have stacks.
    """

    live_bytes: int
    live_blocks: int
    allocated_bytes: int
    allocated_blocks: int
    large_live_bytes: int


class Holders(NamedTuple):
    """The holders that changed since the reading before."""

    ktime_ns: int
    holders: tuple[tuple[HolderKey, Holder], ...]


class BlockStack(NamedTuple):
    """The user stack that a holder's key stands for."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    stack: int
    user_stack: int
    device: int


class OutOfMemory(NamedTuple):
    """
    A request for device memory that failed.

    ``source`` is of ``enum out_of_memory_source``. The memory of the device is from the thread's
    last call of ``cudaMemGetInfo``, at ``device_ktime_ns``; 0: it made none.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    asked_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_free_bytes: int
    device_total_bytes: int
    device_ktime_ns: int
    root_start_ktime_ns: int
    user_stack: int
    device: int
    source: int
    api: int
    comm: str


class MemoryMap(NamedTuple):
    """Segments and blocks of one device at the time when a request failed (from JSON)."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    device: int
    info: MemoryMapFacts
