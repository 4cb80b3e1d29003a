"""The tables and the views of how far ranks are with their collectives."""

from otel_gpu.recorder.tables.columns import JSON, S32, TEXT, U32, U64, WORD, Column, Table, View
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
    Column("generation", U32, "of this handle in its process: an address is used again"),
)
_FIGURES = (
    Column("communicator", TEXT, "the same on all ranks, 16 hex digits; zeros: not known"),
    Column("called", U64, "number of the last collective that was called"),
    Column("completed", U64, "up to which number the program knows them to be done"),
    Column("completed_ktime_ns", U64, "when it learned that, on CLOCK_MONOTONIC; 0: never", "ns"),
    Column("completions", U64, "how many waited_ns is of", "{collective}"),
    Column("waited_ns", U64, "from calls until the program knew that they are done", "ns"),
    Column("captured", U64, "calls that became part of a graph", "{call}"),
    Column("failed", U64, "calls that failed", "{call}"),
    Column("made_ktime_ns", U64, "when it was made or first seen, on CLOCK_MONOTONIC", "ns"),
    Column("rank", S32, "of the process; -1: not known"),
    Column("rank_count", S32, "of the communicator, on all hosts; 0: not known"),
    Column("device", S32, "index as the process sees it; -1: not known"),
    Column("async_error", S32, "ncclResult_t that the program was last told; 0: none"),
    Column("flags", U32, "1: made before it was watched, 2: aborted, 4: destroyed"),
)
"""The figures of a rank, in the order of ``wire.communicators.Communicator``."""
_SHARED = (
    *_FIGURES,
    Column("operations", JSON, "calls and bytes by number of the operation, as a JSON object"),
    Column("completed_unix_ns", U64, "completed_ktime_ns in Unix time; 0: never", "ns"),
    Column("name", TEXT, "what the program calls it; empty: not known"),
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
        "How far ranks were with the collectives of NCCL: one row for each rank of which anything changed.",
        *(SEQ, PROCESS, DEVICE, UNIX, *_HANDLE),
        *_SHARED,
    ),
)
COMMUNICATOR_TOTALS: tuple[Table, ...] = (
    Table(
        "communicator_totals",
        "How far the ranks of a process were when a chunk ended, where the chunk added to it.",
        *(PROCESS, Column("chunk", U64, "number of the chunk; see chunks"), *_HANDLE, DEVICE),
        *_SHARED,
        key_length=4,
    ),
)
COMMUNICATOR_VIEWS: tuple[View, ...] = (
    View(
        "v_communicators",
        "How far ranks were with the collectives of NCCL, reading by reading.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, p.service_name AS service, p.pid AS pid,
          e.communicator, e.rank, e.rank_count, e.called, e.completed,
          max(0, e.called - e.completed) AS pending, e.completions,
          {ms("e.waited_ns / max(1, e.completions)")} AS in_flight_ms, e.captured, e.failed,
          e.async_error, e.flags & 1 AS made_before, e.flags & 6 <> 0 AS has_left, e.unix_ns
        FROM communicator_readings e LEFT JOIN processes p ON p.process = e.process
        """,
        time="when it was read, UTC",
        communicator="its id, the same on all ranks; zeros: not known",
        rank="of the process; -1: not known",
        rank_count="of the communicator, on all hosts; 0: not known",
        called="number of the last collective that it called; compares between ranks",
        completed="up to which number the program knows them to be done",
        pending=("called and not known to be done", "{collective}"),
        completions=("of which in_flight_ms is the mean", "{collective}"),
        in_flight_ms=("from a call until the program knew that it is done, on average", "ms"),
        captured=("calls that became part of a graph", "{call}"),
        failed=("calls that failed", "{call}"),
        async_error="ncclResult_t that the program was last told; 0: none",
        made_before="1: before it was watched; its numbers do not compare",
        has_left="1: it was aborted or destroyed",
    ),
    View(
        "v_collectives",
        "Calls and bytes of ranks by operation, of the last reading of each rank.",
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
        time="when it was read, UTC",
        communicator="its id, the same on all ranks; zeros: not known",
        rank="of the process; -1: not known",
        operation="what was called",
        calls=("how many", "{call}"),
        bytes=("elements times the size of their type, as the calls have it", "bytes"),
    ),
)
