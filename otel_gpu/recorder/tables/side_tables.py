"""
The tables beside the recorded rows: referred rows, totals, and the store's own records.

Referred rows have the latest chunk that refers to them, and are removed with it.
"""

from otel_gpu.enrich.identity.identities import Who
from otel_gpu.recorder.tables.columns import (
    JSON,
    PID,
    REAL,
    S32,
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
from otel_gpu.recorder.tables.fields import (
    DEVICE,
    INFO,
    PROCESS,
    SEQ,
    START,
    TIME_KEY,
    UNIX,
    WAITED_FOR,
    who,
)

_LAST_CHUNK = Column("last_chunk", U64, "the latest chunk with rows that refer to this one")
_CHUNK = Column("chunk", U64, "number of the chunk; see chunks", refers_to="chunks")
_SEQS = (
    Column("first_seq", U64, "number of its first row"),
    Column("last_seq", U64, "number of its last row"),
)
_EXTENT = (
    Column("start_unix_ns", U64, "the earliest moment in it", unit="ns", clock=ColumnClock.UNIX),
    Column("end_unix_ns", U64, "the latest moment in it", unit="ns", clock=ColumnClock.UNIX),
)
_IDENTITY = {
    "pid": "process id",
    "tid": "thread id; 0: it is about the process",
    "comm": "the kernel's name",
    "command": "command line, without apparent secrets; or its program",
    "container": "id of its container",
    "pod": "uid of its Kubernetes pod",
    "unit": "systemd unit",
    "owner": "name of its user",
    "function": "function of a thread without a name of its own",
}

NAMES: tuple[Table, ...] = (
    Table(
        "captures",
        "Captures: one row per start of the agent.",
        Column("capture", U64, "number of the capture"),
        _LAST_CHUNK,
        SEQ,
        UNIX,
        Column("version", TEXT, "version of the agent"),
        Column("host", TEXT, "name of the host"),
        Column("boot_id", TEXT, "id of the boot of the host"),
        INFO,
    ),
    Table(
        "processes",
        "Programs that ran under a pid.",
        Column("process", U64, "number of the program"),
        _LAST_CHUNK,
        Column("capture", U64, "see captures", refers_to="captures"),
        Column("pid", PID, "process id, in the agent's pid namespace"),
        Column(
            "program_ktime_ns",
            U64,
            "start of the program; with pid, its key in the capture",
            unit="ns",
            clock=ColumnClock.MONOTONIC,
        ),
        Column("comm", TEXT, "the kernel's name for it"),
        START,
        Column(
            "end_unix_ns",
            U64,
            "end. NULL: not yet",
            unit="ns",
            is_nullable=True,
            clock=ColumnClock.UNIX,
        ),
        Column(
            "exit_code", U32, "exit status of wait(2). NULL: none yet, or unknown", is_nullable=True
        ),
        Column("service_name", TEXT, "its service name"),
        Column("command", TEXT, "its command line; empty: unknown"),
        Column("container_id", TEXT, "id of its container; empty: none"),
        Column("attributes", JSON, "its OpenTelemetry resource attributes"),
    ),
    Table(
        "devices",
        "CUDA devices.",
        Column("cuda_device", U64, "number of the device"),
        _LAST_CHUNK,
        Column("cuda_index", S32, "index as the process sees it"),
        Column("uuid", TEXT, "UUID; NULL: not observed", is_nullable=True),
        Column("model", TEXT, "model; NULL: not observed", is_nullable=True),
    ),
    Table(
        "stacks",
        "Stacks, each stored once.",
        Column("stack", U64, "number of the stack"),
        _LAST_CHUNK,
        Column("kind", TEXT, "kernel or program; launch: the name of a kernel for a device"),
        Column("id", TEXT, "of a program: otel_gpu.stack.id in its spans; else empty"),
        Column(
            "place",
            TEXT,
            "of a program: file, line and function of the innermost frame of its own code; empty: unknown",
        ),
        Column(
            "frames",
            JSON,
            "innermost first. Of the kernel, or a launch: functions, a JSON list; of a program: an object "
            "with stack, complete, native, python and frames, lists of kind, function, file, "
            "line, module and address",
        ),
    ),
    Table(
        "waits",
        "Waits of threads with their culprits, each stored once.",
        Column("wait", U64, "number of the wait"),
        _LAST_CHUNK,
        Column("api", U16, "the outermost open CUDA call, or the one before the gap; 0: none"),
        *who("who", "thread that had the CPU, or ended the wait. NULL: none, or unknown"),
        *who("end", "the last of the threads that waited for each other. NULL: unknown"),
        Column(
            "end_state", U8, "state of that thread; see states. 255: unknown", refers_to="states"
        ),
        Column("end_reason", TEXT, "why that thread was blocked; empty: not blocked"),
        WAITED_FOR,
    ),
    Table(
        "identities",
        "Names of processes and threads that other tables refer to by number; the latest row "
        "is valid. Empty: unknown.",
        SEQ,
        UNIX,
        *(
            Column(name, PID if name in ("pid", "tid") else TEXT, _IDENTITY[name])
            for name in Who._fields
        ),
    ),
    Table(
        "series",
        "Series, one per histogram of the kernel side.",
        Column("series", U64, "number of the series"),
        _LAST_CHUNK,
        PROCESS,
        Column("metric", U16, "see metrics", refers_to="metrics"),
        Column(
            "api", U16, "see apis; of off_cpu and run_queue: see switch_types", refers_to="apis"
        ),
        Column(
            "status",
            S32,
            "0: the calls that succeeded, else their error; see errors",
            refers_to="errors",
        ),
        Column("device", S32, "device index as the process sees it; -1: unknown"),
        DEVICE,
        Column("copy_kind", U8, "direction of copies; see copy_kinds", refers_to="copy_kinds"),
        Column("nested", U8, "1: calls inside another CUDA call, which counts them too"),
    ),
    Table(
        "probes",
        "Libraries with probes.",
        Column("probe", U64, "number of the row"),
        Column("capture", U64, "see captures", refers_to="captures"),
        SEQ,
        UNIX,
        INFO,
    ),
    Table(
        "buckets",
        "Value ranges of the buckets of aggregates.",
        Column("capture", U64, "see captures", refers_to="captures"),
        Column("quantity", TEXT, "duration or size"),
        Column("bucket", U8, "number of the bucket"),
        Column(
            "middle",
            REAL,
            "value that represents the bucket. NULL: there is no upper bound",
            unit="ns, or bytes",
            is_nullable=True,
        ),
        key_length=3,
    ),
)

# Totals at the end of a chunk, with which a reader of a later chunk begins.
TOTALS: tuple[Table, ...] = (
    Table(
        "aggregate_totals",
        "Totals of a series at the end of a chunk, if the chunk changed them.",
        Column("series", U64, "see series", refers_to="series"),
        _CHUNK,
        Column("sum", U64, "sum as in aggregates, since the process began", unit="ns, or bytes"),
        Column("min", U64, "the smallest; NULL: none", unit="as sum", is_nullable=True),
        Column("max", U64, "the largest", unit="as sum"),
        Column("size_bytes", U64, "bytes of the successful calls", unit="bytes"),
        Column("buckets", JSON, "counts by number of the bucket; see buckets", refers_to="buckets"),
        key_length=2,
    ),
    Table(
        "thread_time_totals",
        "Totals of thread times at the end of a chunk, if the chunk changed them.",
        PROCESS,
        _CHUNK,
        *TIME_KEY,
        Column("time_ns", U64, "total since the process began", unit="ns"),
        Column("count", U64, "total since the process began", unit="{interval}"),
        Column("ended_ns", U64, "total of ended waits since the process began", unit="ns"),
        key_length=2 + len(TIME_KEY),
    ),
)

BOOKS: tuple[Table, ...] = (
    Table(
        "chunks",
        "Chunks of about a minute. To free space, the oldest are removed as a whole.",
        _CHUNK,
        *_SEQS,
        *_EXTENT,
        Column("written_unix_ns", U64, "time of its last write", unit="ns", clock=ColumnClock.UNIX),
        Column("rows", U64, "number of rows with a seq", unit="{row}"),
        Column("bytes", S64, "estimated bytes in the file", unit="bytes"),
    ),
    Table(
        "batches",
        "Write batches, about one per second: a batch is in the store as a whole, or not at all.",
        Column("batch", U64, "number of the batch"),
        _CHUNK,
        *_SEQS,
        Column("rows", U64, "number of rows with a seq", unit="{row}"),
        *_EXTENT,
    ),
    Table(
        "writers",
        "Programs that wrote this store. One without an end is still running, or was killed.",
        Column("writer", U64, "number of the writer"),
        _LAST_CHUNK,
        Column("began_unix_ns", U64, "when it opened the store", unit="ns", clock=ColumnClock.UNIX),
        Column(
            "ended_unix_ns",
            U64,
            "when it closed the store; NULL: it did not",
            unit="ns",
            is_nullable=True,
            clock=ColumnClock.UNIX,
        ),
        Column(
            "lost_rows",
            U64,
            "maximum number of rows with a seq in its memory when it was killed. NULL: it was not killed",
            unit="{row}",
            is_nullable=True,
        ),
        Column("version", TEXT, "version of the agent"),
        Column("pid", U32, "process id"),
    ),
    Table(
        "losses",
        "Rows that did not reach the store, by reason, over its whole life.",
        Column("reason", TEXT, "reason"),
        Column("rows", U64, "number of rows", unit="{row}"),
    ),
    Table(
        "meta",
        "Properties of the store.",
        Column("key", TEXT, "name of the property"),
        Column("value", TEXT, "value of the property"),
    ),
    Table(
        "schema_info",
        "Meaning of tables, views and columns: this page, as a table.",
        Column("position", U64, "order of the rows"),
        Column("table_name", TEXT, "table or view"),
        Column("column_name", TEXT, "column; empty: the table or view itself"),
        Column("meaning", TEXT, "meaning"),
        Column("unit", TEXT, "unit of numbers that have one"),
    ),
)
