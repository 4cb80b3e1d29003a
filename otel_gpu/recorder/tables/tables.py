"""
The tables of a store.

Each recorded row has a number, ``seq``, counted over all tables in the order of observation. A chunk is
a range of these numbers, of about a minute. ``seq`` is also the position of a row in the file, so the
removal of a chunk cuts one end off each table. Tables have no other index, which keeps writes cheap.
"""

from otel_gpu.recorder.tables.columns import (
    JSON,
    PID,
    REAL,
    S64,
    TEXT,
    U8,
    U16,
    U32,
    U64,
    Column,
    ColumnClock,
    Table,
)
from otel_gpu.recorder.tables.communicators import COMMUNICATOR_NUMBERED
from otel_gpu.recorder.tables.device_activity import DEVICE_NUMBERED
from otel_gpu.recorder.tables.events import EVENT_TABLES
from otel_gpu.recorder.tables.fields import (
    END,
    INFO,
    PROCESS,
    SEQ,
    STACK,
    START,
    TIME_KEY,
    UNIX,
    WAITED_FOR,
    who,
)
from otel_gpu.recorder.tables.memory import MEMORY_NUMBERED

_OF_EFFECT = Column("seq", U64, "seq of the chain or the incident")


LAUNCHES = Table(
    "launches",
    "Launches of kernels with a known name.",
    Column("seq", U64, "seq of the call"),
    Column("kernel", U64, "the name of the kernel; see stacks", refers_to="stacks"),
)
NUMBERED: tuple[Table, ...] = (
    *(kind.table for kind in EVENT_TABLES),
    *MEMORY_NUMBERED,
    *COMMUNICATOR_NUMBERED,
    *DEVICE_NUMBERED,
    LAUNCHES,
    Table(
        "exits",
        "Programs that ended, also by becoming another one (exec).",
        SEQ,
        PROCESS,
        END,
        Column(
            "exit_code", U32, "exit status of wait(2); 0 for exec. NULL: unknown", is_nullable=True
        ),
        Column("replaced", U8, "1: exec: its process runs another program now"),
    ),
    Table(
        "readings",
        "Times of the readings of kernel counters. The rows of a reading have its seq.",
        SEQ,
        Column("kind", TEXT, "aggregates, counters or times"),
        UNIX,
    ),
    Table(
        "aggregates",
        "Counts of each series since its previous reading. They are exact and contain every "
        "call, also those without a row in calls.",
        SEQ,
        Column("series", U64, "the series; see series", refers_to="series"),
        Column("count", U64, "number of calls, gaps, stalls, copies or forks", unit="{event}"),
        Column("sum", S64, "sum of their durations or sizes", unit="ns, or bytes for copy_size"),
        Column("size_bytes", S64, "bytes of the successful calls", unit="bytes"),
        Column(
            "min",
            U64,
            "smallest value so far, if it is new; else NULL",
            unit="as sum",
            is_nullable=True,
        ),
        Column(
            "max",
            U64,
            "largest value so far, if it is new; else NULL",
            unit="as sum",
            is_nullable=True,
        ),
        Column("buckets", JSON, "counts by number of the bucket; see buckets", refers_to="buckets"),
        key_length=2,
    ),
    Table(
        "thread_times",
        "Time of the threads of a process by state since the previous reading.",
        SEQ,
        PROCESS,
        *TIME_KEY,
        Column("time_ns", S64, "time of all threads together", unit="ns"),
        Column("count", S64, "number of intervals", unit="{interval}"),
        Column("ended_ns", S64, "total duration of the waits that ended since then", unit="ns"),
        key_length=2 + len(TIME_KEY),
    ),
    Table(
        "counters",
        "Counters of the kernel side since the capture began: changed ones, and all of them "
        "at the start of a chunk.",
        SEQ,
        Column("name", TEXT, "counter_lost_… are events that were lost, by reason"),
        Column("value", U64, "value so far"),
        key_length=2,
    ),
    Table(
        "connections",
        "Connections with TCP retransmits.",
        SEQ,
        UNIX,
        WAITED_FOR._replace(meaning="the connection, as waited_for in stalls", is_nullable=False),
        Column("retransmits", U64, "retransmitted segments so far", unit="{segment}"),
    ),
    Table(
        "pressure",
        "The load of the host and of the watched cgroups: context, never a cause.",
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "device_readings",
        "Readings of the host's devices, from NVML.",
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "fabric_readings",
        "Counters of the host's network adapters that do RDMA.",
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "statuses",
        "The agent's own figures.",
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "imports",
        "Imported captures of other tools, with notes about them.",
        *(SEQ, UNIX._replace(meaning="start of the capture, in Unix time")),
        Column("source", TEXT, "the file"),
        Column("notes", JSON, "limits of the capture: a JSON list of sentences"),
        Column("rejected", JSON, "unreadable parts: a JSON object of counts by reason"),
    ),
    Table(
        "chains",
        "Causal chains: slow, hung or failed calls and gaps. Their causes are in causes.",
        SEQ,
        Column("id", TEXT, "id of the chain, the same in all outputs"),
        PROCESS,
        Column(
            "kind",
            TEXT,
            "slow_call, slow_gap, hung_call, failed_call, killed_call, out_of_memory, device_fault, network_event or "
            "hung_collective",
        ),
        Column("api", TEXT, "the call, or the call that a gap delayed"),
        Column("tid", PID, "thread id"),
        Column("comm", TEXT, "name of the thread"),
        START,
        Column("duration_ns", U64, "duration", unit="ns"),
        Column("excess_ns", U64, "time above the median of its series", unit="ns"),
        Column("trace_id", TEXT, "id of the span that shows it, in hexadecimal digits"),
        Column("span_id", TEXT, "id of the span that shows it, in hexadecimal digits"),
        Column("unexplained_ns", S64, "time that no cause accounts for", unit="ns"),
        Column("severity", TEXT, "high, medium or low"),
        STACK,
    ),
    Table(
        "causes",
        "Causes of chains and of incidents, most expensive first.",
        _OF_EFFECT,
        Column("cause", U16, "number of the cause in it, from 0"),
        Column("parent", U16, "the cause that this is a part of; NULL: none", is_nullable=True),
        Column("kind", TEXT, "see cause_kinds", refers_to="cause_kinds"),
        Column("time_ns", S64, "time that it took", unit="ns"),
        Column("share", REAL, "share of the effect's duration, 0 to 1"),
        *who("culprit", "the culprit; NULL: none"),
        key_length=2,
    ),
    Table(
        "evidence",
        "Measured intervals of a cause.",
        _OF_EFFECT,
        Column("cause", U16, "number of the cause in it"),
        Column("evidence", U16, "number of the interval in the cause, from 0"),
        Column("id", TEXT, "id of the interval"),
        Column("kind", TEXT, "run_queue, blocked, call, gap, fork, unseen, account or device"),
        Column("start_unix_ns", S64, "start, in Unix time", unit="ns", clock=ColumnClock.UNIX),
        Column("end_unix_ns", S64, "end, in Unix time", unit="ns", clock=ColumnClock.UNIX),
        *who("culprit", "thread that had the CPU; NULL: unknown"),
        *who("waker", "thread that ended the wait; NULL: unknown"),
        Column("reason", TEXT, "why the thread was blocked; empty: not blocked"),
        Column("functions", JSON, "its kernel stack, innermost first: a JSON list"),
        Column("span_id", TEXT, "id of the span that shows it, in hexadecimal digits; or empty"),
        STACK,
        Column("cpu_idle", U8, "of a wait for a CPU: 1: the CPU was idle"),
        key_length=3,
    ),
    Table(
        "incidents",
        "Incidents: effects of the same causes, close in time.",
        SEQ,
        Column("id", TEXT, "id of the incident"),
        Column("severity", TEXT, "high, medium or low"),
        START,
        END,
        Column("lost_ns", S64, "time lost to its causes", unit="ns"),
        Column("unexplained_ns", S64, "time that no cause accounts for", unit="ns"),
        Column("effects", U64, "number of its chains", unit="{chain}"),
        Column("advice", JSON, "what to do: a JSON list of sentences"),
        Column("chronic", U8, "1: covers all time of the launching threads, not only effects"),
        Column("pid", PID, "the process; NULL: see its chains", is_nullable=True),
    ),
    Table(
        "incident_chains",
        "The worst chains of an incident.",
        Column("seq", U64, "seq of the incident"),
        Column("chain_id", TEXT, "see chains.id", refers_to="chains"),
        key_length=2,
    ),
)
"""The tables whose rows belong to a chunk by their ``seq``."""
