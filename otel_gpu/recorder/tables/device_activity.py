"""
The tables of device activity from traces of other tools.

A row of ``device_traces`` is followed by all rows of its trace, each with its own ``seq``. Referred rows
come first, and others refer to them by ``seq``. So a trace of millions of rows is written and evicted in
parts. Times of a trace are relative to its ``base_unix_ns``.
"""

from otel_gpu.recorder.tables.columns import (
    JSON,
    REAL,
    S32,
    S64,
    TEXT,
    U8,
    U32,
    U64,
    Column,
    ColumnClock,
    ColumnKind,
    Table,
)
from otel_gpu.recorder.tables.fields import END, SEQ, START
from otel_gpu.wire.device_activity import HostWork, Work

MAX_TIME_NS = 1 << 62
MAX_DURATION_NS = 10 * 86_400 * 10**9
"""The longest duration that an importer accepts."""

_TIME = ColumnKind("INTEGER", 0, MAX_TIME_NS)
_DURATION = ColumnKind("INTEGER", 0, MAX_DURATION_NS)
_TRACE = Column("trace", U64, "see device_traces.seq", refers_to="device_traces")
_STARTED = Column("start_ns", _TIME, "start, after base_unix_ns of its trace", unit="ns")
_TOOK = Column("duration_ns", _DURATION, "duration", unit="ns")
_NAME = Column(
    "name", U64, "name; see device_names. NULL: unknown", is_nullable=True, refers_to="device_names"
)
_DEVICE = Column("device", S32, "index as its process sees it; -1: unknown")
_CORRELATION = Column(
    "correlation", U32, "number that a call and its enqueued work share in their trace; 0: unknown"
)


def _kinds(work: type[Work | HostWork]) -> tuple[ColumnKind, str]:
    return ColumnKind("INTEGER", 0, len(work) - 1), ", ".join(
        f"{one}: {one.name.lower()}" for one in work
    )


def _ns(name: str, meaning: str, kind: ColumnKind = U64, *, is_nullable: bool = False) -> Column:
    return Column(name, kind, meaning, unit="ns", is_nullable=is_nullable)


ACTIVITIES, OPERATIONS = "device_activities", "host_operations"
NAMES, SHAPES, THREADS = "device_names", "device_shapes", "device_threads"
COLLECTIVES, MODELS, MARKS = "device_collectives", "device_models", "device_marks"
TRACES = "device_traces"

PARTS: tuple[Table, ...] = (
    Table(
        NAMES,
        "Names of device and host activities, each once per trace.",
        *(SEQ, _TRACE, Column("name", TEXT, "the name")),
    ),
    Table(
        SHAPES,
        "Shapes and types of operator inputs, each once per trace.",
        *(SEQ, _TRACE, Column("shapes", TEXT, "shapes, as the tool wrote them")),
    ),
    Table(
        THREADS,
        "Threads of the host in traces.",
        *(SEQ, _TRACE),
        Column("pid", S64, "process id; -1: unknown"),
        Column("tid", S64, "thread id; -1: unknown"),
        Column("name", TEXT, "name; empty: unknown"),
    ),
    Table(
        COLLECTIVES,
        "Collectives in traces.",
        *(SEQ, _TRACE),
        Column("name", TEXT, "name"),
        Column("process_group", TEXT, "ranks of the collective; empty: unknown"),
        Column("sequence", S64, "number of the collective in its group; -1: unknown"),
        Column("size_bytes", U64, "bytes moved; 0: unknown", unit="bytes"),
        Column("ranks", U64, "number of ranks; 0: unknown"),
    ),
    Table(
        MODELS,
        "Devices in traces.",
        *(SEQ, _TRACE, _DEVICE),
        Column("name", TEXT, "model; empty: unknown"),
        Column("compute", U64, "compute capability, such as 80 for 8.0; 0: unknown"),
        Column("processors", U64, "number of multiprocessors; 0: unknown"),
        Column("memory_bytes", U64, "what it has; 0: not known", unit="bytes"),
    ),
    Table(
        MARKS,
        "Steps on devices: from the first to the last work of the step.",
        *(SEQ, _TRACE, Column("device", S64, "index as its process sees it")),
        *(Column("name", TEXT, "name of the step"), _STARTED, _TOOK),
    ),
    Table(
        ACTIVITIES,
        "Device activities, in device time; never the time of the enqueuing call.",
        *(SEQ, _TRACE, Column("kind", *_kinds(Work)), _DEVICE),
        Column("stream", S64, "stream; -1: unknown"),
        *(_STARTED, _TOOK, _NAME, _CORRELATION),
        Column("size_bytes", U64, "bytes of copies and fills; 0: unknown", unit="bytes"),
        Column(
            "collective",
            U64,
            "see device_collectives. NULL: none, or unknown",
            is_nullable=True,
            refers_to="device_collectives",
        ),
        Column(
            "occupancy",
            REAL,
            "occupancy: share of a multiprocessor's warps that it can use, 0 to 1; -1: unknown",
        ),
        Column("blocks", REAL, "blocks per multiprocessor; -1: unknown"),
    ),
    Table(
        OPERATIONS,
        "Operations of host threads in traces; those of one thread are nested.",
        *(SEQ, _TRACE, Column("kind", *_kinds(HostWork))),
        Column(
            "thread",
            U64,
            "see device_threads. NULL: unknown",
            is_nullable=True,
            refers_to="device_threads",
        ),
        *(_STARTED, _TOOK, _NAME, _CORRELATION),
        Column(
            "shapes",
            U64,
            "shapes of its inputs; see device_shapes. NULL: unknown",
            is_nullable=True,
            refers_to="device_shapes",
        ),
    ),
)
"""The tables of a trace's rows, in the order of writing."""

_OF_DEVICE = (SEQ, _TRACE, _DEVICE)
_PHASES = (
    _ns("compute_ns", "time in which it computed"),
    _ns("exposed_communication_ns", "time in which it communicated, and did not compute"),
    _ns("exposed_copy_ns", "time in which it copied, and neither computed nor communicated"),
    _ns("idle_ns", "idle time. NULL: unknown", is_nullable=True),
)
_CAUSE = Column("cause", TEXT, "cause; see v_device_idle")
_DID = Column("name", TEXT, "operation of the thread that launched next; empty: unknown")
_PYTHON = Column("python", TEXT, "Python function; empty: unknown")

FOUND: tuple[Table, ...] = (
    Table(
        "device_uses",
        "Device time of a program by activity. The parts add up to the window.",
        *(*_OF_DEVICE, START._replace(kind=S64)),
        _ns("window_ns", "time of its steps, or from its first to its last activity"),
        *_PHASES,
        _ns("communication_ns", "all time in which it communicated"),
        _ns("copy_ns", "all time in which it copied"),
        Column("steps", U32, "number of steps", unit="{step}"),
        Column("verdict", TEXT, "what bounds the program"),
        Column(
            "useful",
            REAL,
            "share of the window in which it computed. NULL: unknown",
            is_nullable=True,
        ),
    ),
    Table(
        "device_steps",
        "Steps of a program on a device. The parts of the device's time add up to the step.",
        *(*_OF_DEVICE, Column("name", TEXT, "name of the step"), START._replace(kind=S64)),
        *(_TOOK, _ns("host_ns", "duration on the host"), *_PHASES),
        Column("parts", JSON, "the step's time by cause, in ns: a JSON object"),
        Column("set_aside", TEXT, "why medians exclude it; empty: they include it"),
    ),
    Table(
        "device_gaps",
        "The longest idle gaps of a device.",
        *(*_OF_DEVICE, START._replace(kind=S64), _TOOK, _CAUSE, _DID, _PYTHON),
    ),
    Table(
        "device_waits",
        "All idle time of a device, by cause; no rows where the trace does not show causes.",
        *(*_OF_DEVICE, _CAUSE, _DID, _PYTHON, _ns("time_ns", "time of all gaps together")),
    ),
)
"""Results of analysing a trace when it was written; ``explain`` computes them again."""

DEVICE_NUMBERED: tuple[Table, ...] = (
    Table(
        TRACES,
        "Imported device traces, one per process; see the tables device_… and host_operations.",
        *(SEQ, END, START),
        Column("source", TEXT, "name of the file"),
        Column("tool", TEXT, "tool that recorded it"),
        Column(
            "base_unix_ns",
            U64,
            "origin of its times, in Unix time",
            unit="ns",
            clock=ColumnClock.UNIX,
        ),
        Column("dated", U8, "0: the file does not contain it, and its modification time was used"),
        Column("rank", U64, "rank of the process in its run. NULL: unknown", is_nullable=True),
        Column("ranks", U64, "number of ranks. NULL: unknown", is_nullable=True),
        Column("program", TEXT, "program of the process; empty: the file does not contain it"),
        Column("host_name", TEXT, "its host; empty: the file does not contain it"),
        Column("processes", U64, "number of processes in the file"),
        Column("has_stacks", U8, "1: functions of Python were recorded"),
        Column("has_shapes", U8, "1: shapes of inputs were recorded"),
        _ns("overhead_ns", "time that the recording itself took, as the tool reports it"),
        Column("rejected", JSON, "unreadable parts of the file: a JSON object of counts"),
        Column("parts", U64, "number of its rows, which follow this one", unit="{row}"),
    ),
    *PARTS,
    *FOUND,
)
