"""The tables of what holds the memory of devices."""

from collections.abc import Mapping

from otel_gpu.recorder.tables.columns import JSON, S32, S64, U32, U64, WORD, Column, Table
from otel_gpu.recorder.tables.fields import DEVICE, PROCESS, SEQ, STACK, UNIX, event_columns
from otel_gpu.wire.blocks import OutOfMemory

TOTALS_MEANINGS: Mapping[str, tuple[str, str]] = {
    "last_ktime_ns": (
        "when the allocator last reported, to a tick of the kernel, on CLOCK_MONOTONIC",
        "ns",
    ),
    "allocated_bytes": ("in use, as the allocator says", "bytes"),
    "reserved_bytes": ("taken from the device, as the allocator says", "bytes"),
    "peak_allocated_bytes": ("the most that was in use", "bytes"),
    "peak_reserved_bytes": ("the most that was reserved", "bytes"),
    "before_bytes": ("in use before the first report", "bytes"),
    "before_freed_bytes": ("freed of blocks that were not seen to be allocated", "bytes"),
    "allocations": ("blocks handed out so far", "{block}"),
    "frees": ("blocks taken back so far", "{block}"),
    "handed_out_bytes": ("handed out so far", "bytes"),
    "taken_back_bytes": ("taken back so far", "bytes"),
    "unequal": ("reports whose total was not what had been seen", "{report}"),
    "unsampled_bytes": ("handed out in blocks that were not chosen for a stack", "bytes"),
    "withheld_bytes": ("handed out in chosen blocks whose stack was over the rate", "bytes"),
}
"""What columns of totals say, and their units."""
_NUMBER = Column("device", S32, "index as the process sees it")
_KEY = Column("place_key", WORD, "names the stack in its process; 0: not known. 64 bits, signed")
_FIGURES = (
    Column("live_bytes", S64, "in use; sampled blocks count as what they stand for", "bytes"),
    Column("live_blocks", S64, "how many blocks that is, about", "{block}"),
    Column("allocated_bytes", U64, "ever allocated there", "bytes"),
    Column("allocated_blocks", U64, "how many blocks that were, about", "{block}"),
    Column(
        "large_live_bytes", U64, "exact: of large blocks, or of all where all have stacks", "bytes"
    ),
)


def _totals(*, optional: bool) -> tuple[Column, ...]:
    rest = ". NULL: not read" if optional else ""
    return tuple(
        Column(name, U64, f"{meaning}{rest}", unit)
        for name, (meaning, unit) in TOTALS_MEANINGS.items()
    )


MEMORY_NUMBERED: tuple[Table, ...] = (
    Table(
        "memory_readings",
        "What allocators of frameworks said of devices. The holders of a reading have its seq.",
        *(SEQ, PROCESS, _NUMBER, DEVICE, UNIX),
        *_totals(optional=True),
    ),
    Table(
        "memory_holders",
        "Who holds memory, by stack: those that changed since the reading before.",
        Column("seq", U64, "of the reading"),
        Column("holder", U32, "number of it in the reading, from 0"),
        *(_KEY, STACK, *_FIGURES),
        key_length=2,
    ),
    Table(
        "out_of_memory",
        "Requests for device memory that failed.",
        *(SEQ, PROCESS, DEVICE, STACK, UNIX._replace(meaning="when it failed, in Unix time")),
        *event_columns(OutOfMemory),
        Column(
            "memory_map",
            JSON,
            "what was where at that moment, as a JSON object: segments and blocks. NULL: not known",
        ),
    ),
    Table(
        "out_of_memory_stacks",
        "Where the blocks of a memory map were allocated.",
        Column("seq", U64, "of the request that failed"),
        *(_KEY, STACK._replace(meaning="where in the program it was; see stacks")),
        key_length=2,
    ),
)
MEMORY_TOTALS: tuple[Table, ...] = (
    Table(
        "memory_totals",
        "What the allocator of a process had said of a device when a chunk ended, where the chunk "
        "added to it.",
        *(PROCESS, Column("chunk", U64, "number of the chunk; see chunks"), _NUMBER, DEVICE),
        *_totals(optional=True),
        key_length=3,
    ),
    Table(
        "memory_holder_totals",
        "What each stack of a process held when a chunk ended, where the chunk added to it.",
        *(PROCESS, Column("chunk", U64, "number of the chunk; see chunks"), _NUMBER),
        *(_KEY, STACK, *_FIGURES),
        key_length=4,
    ),
)
