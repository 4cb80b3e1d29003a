"""
The tables of a store.

Everything that is recorded has a number, ``seq``, from one count over all tables: the
order in which it was seen. A chunk is a range of such numbers, about a minute long, and
because ``seq`` is also where a row lies in the file, a chunk is removed from every table
by cutting off one end of it. Nothing else has an index, so that writing stays cheap.
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

_OF_EFFECT = Column("seq", U64, "of the chain or the incident")


LAUNCHES = Table(
    "launches",
    "Calls that launched a kernel whose name is known.",
    Column("seq", U64, "of the call"),
    Column("kernel", U64, "the name of the kernel; see stacks"),
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
        Column("exit_code", U32, "as wait(2) gives it; 0 for exec. NULL: unknown"),
        Column("replaced", U8, "1: its process lives on, and runs another program"),
    ),
    Table(
        "readings",
        "When the kernel's figures were read. The rows of a reading have its seq.",
        SEQ,
        Column("kind", TEXT, "aggregates, counters or times"),
        UNIX,
    ),
    Table(
        "aggregates",
        "What each series counted since its reading before. These counts are exact: they "
        "contain every call, also those that no row of calls shows.",
        SEQ,
        Column("series", U64, "what was counted; see series"),
        Column("count", U64, "how many calls, gaps, stalls, copies or forks", "{event}"),
        Column("sum", S64, "their durations, or sizes, together", "ns, or bytes for copy_size"),
        Column("size_bytes", S64, "bytes of the successful calls", "bytes"),
        Column("min", U64, "the smallest one so far, where that is new; else NULL", "as sum"),
        Column("max", U64, "the largest one so far, where that is new; else NULL", "as sum"),
        Column("buckets", JSON, "counts by number of the bucket; see buckets"),
        key_length=2,
    ),
    Table(
        "thread_times",
        "Where the time of the threads of a process went since the reading before.",
        SEQ,
        PROCESS,
        *TIME_KEY,
        Column("time_ns", S64, "time of all threads together", "ns"),
        Column("count", S64, "how many intervals", "{interval}"),
        Column("ended_ns", S64, "of waits that ended since then: the whole of each", "ns"),
        key_length=2 + len(TIME_KEY),
    ),
    Table(
        "counters",
        "Counters of the kernel side since the capture began: those that changed, and all of "
        "them at the beginning of a chunk.",
        SEQ,
        Column("name", TEXT, "counter_lost_… are events that were lost, by reason"),
        Column("value", U64, "how many so far"),
        key_length=2,
    ),
    Table(
        "connections",
        "Connections over which segments of TCP had to be sent once more.",
        SEQ,
        UNIX,
        WAITED_FOR._replace(meaning="what it leads to, as waited_for in stalls"),
        Column("retransmits", U64, "how many segments so far", "{segment}"),
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
        "What the devices of the host said of themselves, through NVML.",
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "fabric_readings",
        "What the host's network adapters that do RDMA counted.",
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
        "Captures of other tools that were imported, and what is to be known of them.",
        *(SEQ, UNIX._replace(meaning="when the capture began, in Unix time")),
        Column("source", TEXT, "the file"),
        Column("notes", JSON, "what it cannot tell: a JSON list of sentences"),
        Column("rejected", JSON, "what of it could not be read: a JSON object of counts by reason"),
    ),
    Table(
        "chains",
        "Causal chains: what was slow, hung or failed. Their causes are in causes.",
        SEQ,
        Column("id", TEXT, "name of the chain, the same wherever it is shown"),
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
        Column("duration_ns", U64, "how long it took", "ns"),
        Column("excess_ns", U64, "how much longer than is usual for its series", "ns"),
        Column("trace_id", TEXT, "of the span that shows it, in hexadecimal digits"),
        Column("span_id", TEXT, "of the span that shows it, in hexadecimal digits"),
        Column("unexplained_ns", S64, "time that no cause accounts for", "ns"),
        Column("severity", TEXT, "high, medium or low"),
        STACK,
    ),
    Table(
        "causes",
        "The causes of chains and of incidents, those that cost most first.",
        _OF_EFFECT,
        Column("cause", U16, "number of the cause in it, from 0"),
        Column("parent", U16, "the cause that this is a part of; NULL: none"),
        Column("kind", TEXT, "see cause_kinds"),
        Column("time_ns", S64, "how much time it took", "ns"),
        Column("share", REAL, "of the effect's duration, 0 to 1"),
        *who("culprit", "the thread to blame; NULL: nobody is"),
        key_length=2,
    ),
    Table(
        "evidence",
        "The measured intervals that a cause rests on.",
        _OF_EFFECT,
        Column("cause", U16, "number of the cause in it"),
        Column("evidence", U16, "number of the interval in the cause, from 0"),
        Column("id", TEXT, "name of the interval"),
        Column("kind", TEXT, "run_queue, blocked, call, gap, fork, unseen, account or device"),
        Column("start_unix_ns", S64, "when it began, in Unix time", "ns"),
        Column("end_unix_ns", S64, "when it ended, in Unix time", "ns"),
        *who("culprit", "who had the CPU; NULL: unknown"),
        *who("waker", "who ended the wait; NULL: unknown"),
        Column("reason", TEXT, "what the thread was blocked on; empty: not blocked"),
        Column("functions", JSON, "its kernel stack, innermost first: a JSON list"),
        Column("span_id", TEXT, "of the span that shows it, in hexadecimal digits; or empty"),
        STACK,
        Column("cpu_idle", U8, "of a run queue: 1: no thread had the CPU"),
        key_length=3,
    ),
    Table(
        "incidents",
        "Effects of the same causes, close to each other.",
        SEQ,
        Column("id", TEXT, "name of the incident"),
        Column("severity", TEXT, "high, medium or low"),
        START,
        END,
        Column("lost_ns", S64, "time lost to its causes", "ns"),
        Column("unexplained_ns", S64, "time that no cause accounts for", "ns"),
        Column("effects", U64, "how many chains it is made of", "{chain}"),
        Column("advice", JSON, "what to do: a JSON list of sentences"),
        Column("chronic", U8, "1: of all time of feeding threads, not only of effects"),
        Column("pid", PID, "whose time it was; NULL: see its chains"),
    ),
    Table(
        "incident_chains",
        "The worst chains of an incident.",
        Column("seq", U64, "of the incident"),
        Column("chain_id", TEXT, "see chains.id"),
        key_length=2,
    ),
)
"""The tables whose rows belong to a chunk by their ``seq``."""
