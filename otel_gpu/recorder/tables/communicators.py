"""The tables and the views of the progress of ranks in collectives."""

from otel_gpu.recorder.tables.columns import (
    JSON,
    S32,
    TEXT,
    U32,
    U64,
    WORD,
    Column,
    ColumnClock,
    Table,
    View,
)
from otel_gpu.recorder.tables.fields import DEVICE, PROCESS, SEQ, UNIX
from otel_gpu.recorder.views.view_sql import ms, utc
from otel_gpu.wire.communicators import OPERATIONS

_OPERATION = " ".join(
    (
        "CASE o.key",
        *(f"WHEN '{number}' THEN '{name}'" for number, name in OPERATIONS.items()),
        "ELSE 'operation ' || o.key END",
    )
)
_HANDLE = (
    Column("handle", WORD, "the ncclComm_t; a signed 64-bit number"),
    Column(
        "generation", U32, "generation of this handle in its process, because addresses are reused"
    ),
)
_FIGURES = (
    Column("communicator", TEXT, "id, the same on all ranks, 16 hex digits; zeros: unknown"),
    Column("called", U64, "number of the last collective that was called"),
    Column("completed", U64, "number of the last collective that the program knows to be complete"),
    Column(
        "completed_ktime_ns",
        U64,
        "when the program learned that, on CLOCK_MONOTONIC; 0: never",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column("completions", U64, "number of collectives in waited_ns", unit="{collective}"),
    Column(
        "waited_ns",
        U64,
        "time from calls until the program knew that they were complete",
        unit="ns",
    ),
    Column("captured", U64, "calls that became part of a graph", unit="{call}"),
    Column("failed", U64, "calls that failed", unit="{call}"),
    Column(
        "made_ktime_ns",
        U64,
        "when it was created or first observed, on CLOCK_MONOTONIC",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column("rank", S32, "rank of the process; -1: unknown"),
    Column("rank_count", S32, "ranks of the communicator, on all hosts; 0: unknown"),
    Column("device", S32, "index as the process sees it; -1: unknown"),
    Column("async_error", S32, "last asynchronous ncclResult_t that the program read; 0: none"),
    Column("flags", U32, "1: created before the capture began, 2: aborted, 4: destroyed"),
)
"""The figures of a rank, in the order of ``wire.communicators.Communicator``."""
_SHARED = (
    *_FIGURES,
    Column("operations", JSON, "calls and bytes by number of the operation, as a JSON object"),
    Column(
        "completed_unix_ns",
        U64,
        "completed_ktime_ns in Unix time; 0: never",
        unit="ns",
        clock=ColumnClock.UNIX,
    ),
    Column("name", TEXT, "name in the program; empty: unknown"),
    Column(
        "calls",
        JSON,
        "the latest calls, as a JSON object: offset_ns from CLOCK_MONOTONIC to Unix time, signatures "
        "(operation, elements, datatype, reduction, root) and calls (number, when it returned on "
        "CLOCK_MONOTONIC, number of the signature, and of the stack where that is known); of a reading "
        "those since the one before in its chunk",
    ),
)

COMMUNICATOR_NUMBERED: tuple[Table, ...] = (
    Table(
        "communicator_readings",
        "Progress of ranks in NCCL collectives: one row for each rank that changed.",
        *(SEQ, PROCESS, DEVICE, UNIX, *_HANDLE),
        *_SHARED,
    ),
)
COMMUNICATOR_TOTALS: tuple[Table, ...] = (
    Table(
        "communicator_totals",
        "Progress of the ranks of a process at the end of a chunk, if the chunk changed it.",
        *(
            PROCESS,
            Column("chunk", U64, "number of the chunk; see chunks", refers_to="chunks"),
            *_HANDLE,
            DEVICE,
        ),
        *_SHARED,
        key_length=4,
    ),
)
COMMUNICATOR_VIEWS: tuple[View, ...] = (
    View(
        "v_communicators",
        "Progress of ranks in NCCL collectives, reading by reading.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, p.service_name AS service, p.pid AS pid,
          e.communicator, e.rank, e.rank_count, e.called, e.completed,
          max(0, e.called - e.completed) AS pending, e.completions,
          {ms("e.waited_ns / max(1, e.completions)")} AS in_flight_ms, e.captured, e.failed,
          e.async_error, e.flags & 1 AS made_before, e.flags & 6 <> 0 AS has_left, e.unix_ns
        FROM communicator_readings e LEFT JOIN processes p ON p.process = e.process
        """,
        time="time of the reading, UTC",
        communicator="id, the same on all ranks; zeros: unknown",
        rank="rank of the process; -1: unknown",
        rank_count="ranks of the communicator, on all hosts; 0: unknown",
        called="number of the last collective that it called; comparable between ranks",
        completed="number of the last collective that the program knows to be complete",
        pending=("called and not known to be complete", "{collective}"),
        completions=("number of collectives in the mean in_flight_ms", "{collective}"),
        in_flight_ms=("mean time from a call until the program knew that it was complete", "ms"),
        captured=("calls that became part of a graph", "{call}"),
        failed=("calls that failed", "{call}"),
        async_error="last asynchronous ncclResult_t that the program read; 0: none",
        made_before="1: created before the capture began; its numbers are not comparable",
        has_left="1: it was aborted or destroyed",
    ),
    View(
        "v_collectives",
        "Calls and bytes by rank and operation, from the last reading of each rank.",
        f"""
        WITH latest AS (
          SELECT max(seq) AS seq FROM communicator_readings GROUP BY process, handle, generation)
        SELECT e.seq, {utc("e.unix_ns")} AS time, p.service_name AS service, p.pid AS pid,
          e.communicator, e.rank,
          {_OPERATION} AS operation,
          json_extract(o.value, '$[0]') AS calls, json_extract(o.value, '$[1]') AS bytes
        FROM latest l JOIN communicator_readings e ON e.seq = l.seq, json_each(e.operations) o
          LEFT JOIN processes p ON p.process = e.process
        """,
        time="time of the reading, UTC",
        communicator="id, the same on all ranks; zeros: unknown",
        rank="rank of the process; -1: unknown",
        operation="the operation",
        calls=("number of calls", "{call}"),
        bytes=("elements times the size of their type", "bytes"),
    ),
)
