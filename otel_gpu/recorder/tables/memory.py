"""The tables of device memory: figures of allocators, holders by stack, and failed requests."""

from collections.abc import Mapping

from otel_gpu.recorder.tables.columns import (
    JSON,
    S32,
    S64,
    U32,
    U64,
    WORD,
    Column,
    ColumnClock,
    Table,
)
from otel_gpu.recorder.tables.fields import DEVICE, PROCESS, SEQ, STACK, UNIX, event_columns
from otel_gpu.wire.blocks import OutOfMemory

_LAST_REPORT = "last_ktime_ns"
TOTALS_MEANINGS: Mapping[str, tuple[str, str]] = {
    _LAST_REPORT: (
        "last report of the allocator, to a tick of the kernel, on CLOCK_MONOTONIC",
        "ns",
    ),
    "allocated_bytes": ("bytes in use, as the allocator reports", "bytes"),
    "reserved_bytes": ("bytes taken from the device, as the allocator reports", "bytes"),
    "peak_allocated_bytes": ("peak bytes in use", "bytes"),
    "peak_reserved_bytes": ("peak bytes reserved", "bytes"),
    "before_bytes": ("bytes in use before the first report", "bytes"),
    "before_freed_bytes": ("bytes freed of blocks whose allocation was not observed", "bytes"),
    "allocations": ("blocks handed out so far", "{block}"),
    "frees": ("blocks taken back so far", "{block}"),
    "handed_out_bytes": ("bytes handed out so far", "bytes"),
    "taken_back_bytes": ("bytes taken back so far", "bytes"),
    "unequal": ("reports whose total differs from what was observed", "{report}"),
    "unsampled_bytes": ("handed out in blocks that were not sampled for a stack", "bytes"),
    "rate_limited_bytes": ("handed out in sampled blocks whose stack was rate-limited", "bytes"),
}
"""Meanings and units of the columns of totals."""
_NUMBER = Column("device", S32, "index as the process sees it")
_KEY = Column(
    "place_key", WORD, "id of the stack in its process; 0: unknown. A signed 64-bit number"
)
_FIGURES = (
    Column(
        "live_bytes",
        S64,
        "bytes in use; sampled blocks count for the bytes that they represent",
        unit="bytes",
    ),
    Column("live_blocks", S64, "estimated number of these blocks", unit="{block}"),
    Column("allocated_bytes", U64, "bytes ever allocated there", unit="bytes"),
    Column("allocated_blocks", U64, "estimated number of these blocks", unit="{block}"),
    Column(
        "large_live_bytes",
        U64,
        "exact bytes of large blocks, or of all blocks where all have stacks",
        unit="bytes",
    ),
)


def _totals(*, optional: bool) -> tuple[Column, ...]:
    rest = ". NULL: not read" if optional else ""
    return tuple(
        Column(
            name,
            U64,
            f"{meaning}{rest}",
            unit=unit,
            is_nullable=optional,
            clock=ColumnClock.MONOTONIC if name == _LAST_REPORT else None,
        )
        for name, (meaning, unit) in TOTALS_MEANINGS.items()
    )


MEMORY_NUMBERED: tuple[Table, ...] = (
    Table(
        "memory_readings",
        "Figures of framework allocators per device. The holders of a reading have its seq.",
        *(SEQ, PROCESS, _NUMBER, DEVICE, UNIX),
        *_totals(optional=True),
    ),
    Table(
        "memory_holders",
        "Memory in use by stack: those that changed since the previous reading.",
        Column("seq", U64, "seq of the reading"),
        Column("holder", U32, "number of the holder in the reading, from 0"),
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
            "memory map at that time, as a JSON object: segments and blocks. NULL: unknown",
            is_nullable=True,
        ),
    ),
    Table(
        "out_of_memory_stacks",
        "Stacks that allocated the blocks of a memory map.",
        Column("seq", U64, "seq of the failed request"),
        *(_KEY, STACK._replace(meaning="stack in the program; see stacks", is_nullable=False)),
        key_length=2,
    ),
)
MEMORY_TOTALS: tuple[Table, ...] = (
    Table(
        "memory_totals",
        "Totals of a process's allocator per device at the end of a chunk, if the chunk changed them.",
        *(
            PROCESS,
            Column("chunk", U64, "number of the chunk; see chunks", refers_to="chunks"),
            _NUMBER,
            DEVICE,
        ),
        *_totals(optional=True),
        key_length=3,
    ),
    Table(
        "memory_holder_totals",
        "Memory in use by stack at the end of a chunk, if the chunk changed it.",
        *(
            PROCESS,
            Column("chunk", U64, "number of the chunk; see chunks", refers_to="chunks"),
            _NUMBER,
        ),
        *(_KEY, STACK, *_FIGURES),
        key_length=4,
    ),
)
