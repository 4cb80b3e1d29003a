"""What the kernel side says of blocks that a framework's allocator hands out and takes back."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class DeviceKey(NamedTuple):
    """A device, as one process image sees it."""

    program_ktime_ns: int
    pid: int
    device: int


class MemoryTotals(NamedTuple):
    """
    What a framework's allocator said of one device, and what was seen of its blocks.

    ``allocated_bytes``, ``reserved_bytes`` and their peaks are the allocator's own words at
    ``last_ktime_ns``; all else is monotonic. ``before_bytes`` was allocated before the first report;
    of it, or of blocks that were lost, ``before_freed_bytes`` are free again. ``unequal`` reports
    did not agree with what was seen until then. Of what was handed out, ``unsampled_bytes`` were
    not chosen for a stack, and the stack of ``rate_limited_bytes`` was over the rate.
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
    """The totals of devices, read at one moment."""

    ktime_ns: int
    totals: tuple[tuple[DeviceKey, MemoryTotals], ...]


class HolderKey(NamedTuple):
    """Blocks of one device that were allocated in one place; ``stack`` 0: it is not known where."""

    program_ktime_ns: int
    stack: int
    pid: int
    device: int


class Holder(NamedTuple):
    """
    What blocks of one place hold, and ever held; sampled ones count as what they stand for.

    ``large_live_bytes`` is exact: of large blocks, or of all where all have stacks.
    """

    live_bytes: int
    live_blocks: int
    allocated_bytes: int
    allocated_blocks: int
    large_live_bytes: int


class Holders(NamedTuple):
    """Who holds blocks, read at one moment: those that changed."""

    ktime_ns: int
    holders: tuple[tuple[HolderKey, Holder], ...]


class BlockStack(NamedTuple):
    """Where in a program the blocks of one key were allocated."""

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

    ``source`` is of ``enum out_of_memory_source``. What the device had is what its thread was last
    told, at ``device_ktime_ns``; ``device_total_bytes`` is 0 where it never asked.
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
    """
    Segments and blocks of one device as they were when a request failed (from JSON).

    ``info`` has ``segments`` [address, size_bytes], ``blocks`` [address, size_bytes, stack], with
    ``stack`` as in a holder's key, ``left_out`` (how many blocks were too many) and
    ``smallest_bytes``: smaller blocks are not in it.
    """

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    device: int
    info: Mapping[str, Any]
