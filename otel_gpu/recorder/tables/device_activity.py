"""
The tables of what devices did, as traces of other tools have it.

A row of ``device_traces`` is followed by all rows of its trace, each with a number of its own: what
others refer to comes first, and they refer to it by its number. So a trace of millions of rows can
be written piece by piece, and goes as it came. Times of a trace are after its ``base_unix_ns``.
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
    ColumnKind,
    Table,
)
from otel_gpu.recorder.tables.fields import END, SEQ, START
from otel_gpu.wire.device_activity import HostWork, Work

MAX_TIME_NS = 1 << 62
MAX_DURATION_NS = 10 * 86_400 * 10**9
"""The longest that an importer takes for a duration."""

_TIME = ColumnKind("INTEGER", 0, MAX_TIME_NS)
_DURATION = ColumnKind("INTEGER", 0, MAX_DURATION_NS)
_TRACE = Column("trace", U64, "see device_traces.seq")
_STARTED = Column("start_ns", _TIME, "when it began, after base_unix_ns of its trace", "ns")
_TOOK = Column("duration_ns", _DURATION, "how long it took", "ns")
_NAME = Column("name", U64, "what it is called; see device_names. NULL: not known")
_DEVICE = Column("device", S32, "index as its process sees it; -1: not known")
_CORRELATION = Column(
    "correlation", U32, "what a call enqueued has the same one in its trace; 0: not known"
)


def _kinds(work: type[Work | HostWork]) -> tuple[ColumnKind, str]:
    return ColumnKind("INTEGER", 0, len(work) - 1), ", ".join(
        f"{one}: {one.name.lower()}" for one in work
    )


def _ns(name: str, meaning: str, kind: ColumnKind = U64) -> Column:
    return Column(name, kind, meaning, "ns")


ACTIVITIES, OPERATIONS = "device_activities", "host_operations"
NAMES, SHAPES, THREADS = "device_names", "device_shapes", "device_threads"
COLLECTIVES, MODELS, MARKS = "device_collectives", "device_models", "device_marks"
TRACES = "device_traces"

PARTS: tuple[Table, ...] = (
    Table(
        NAMES,
        "Names of what devices and hosts did; each once in a trace.",
        *(SEQ, _TRACE, Column("name", TEXT, "the name")),
    ),
    Table(
        SHAPES,
        "Shapes and types of the inputs of operators; each once in a trace.",
        *(SEQ, _TRACE, Column("shapes", TEXT, "as the tool wrote them")),
    ),
    Table(
        THREADS,
        "Threads of the host in traces.",
        *(SEQ, _TRACE),
        Column("pid", S64, "process id; -1: not known"),
        Column("tid", S64, "thread id; -1: not known"),
        Column("name", TEXT, "empty: not known"),
    ),
    Table(
        COLLECTIVES,
        "What several devices did together.",
        *(SEQ, _TRACE),
        Column("name", TEXT, "what it is"),
        Column("process_group", TEXT, "who takes part; empty: not known"),
        Column("sequence", S64, "which one of the group it is; -1: not known"),
        Column("size_bytes", U64, "what it moves; 0: not known", "bytes"),
        Column("ranks", U64, "how many take part; 0: not known"),
    ),
    Table(
        MODELS,
        "Devices in traces.",
        *(SEQ, _TRACE, _DEVICE),
        Column("name", TEXT, "its model; empty: not known"),
        Column("compute", U64, "compute capability, as 80 for 8.0; 0: not known"),
        Column("processors", U64, "its multiprocessors; 0: not known"),
        Column("memory_bytes", U64, "what it has; 0: not known", "bytes"),
    ),
    Table(
        MARKS,
        "Steps as devices themselves have them: from the first to the last of their work.",
        *(SEQ, _TRACE, Column("device", S64, "index as its process sees it")),
        *(Column("name", TEXT, "of the step"), _STARTED, _TOOK),
    ),
    Table(
        ACTIVITIES,
        "What devices did, in device time; never the time of the call that enqueued it.",
        *(SEQ, _TRACE, Column("kind", *_kinds(Work)), _DEVICE),
        Column("stream", S64, "stream; -1: not known"),
        *(_STARTED, _TOOK, _NAME, _CORRELATION),
        Column("size_bytes", U64, "of copies and fills; 0: not known", "bytes"),
        Column("collective", U64, "see device_collectives. NULL: none, or not known"),
        Column("occupancy", REAL, "warps of a processor that it can use, 0 to 1; -1: not known"),
        Column("blocks", REAL, "blocks for each processor; -1: not known"),
    ),
    Table(
        OPERATIONS,
        "What threads of the host did meanwhile; those of one thread lie in each other.",
        *(SEQ, _TRACE, Column("kind", *_kinds(HostWork))),
        Column("thread", U64, "see device_threads. NULL: not known"),
        *(_STARTED, _TOOK, _NAME, _CORRELATION),
        Column("shapes", U64, "of its inputs; see device_shapes. NULL: not known"),
    ),
)
"""What a trace is made of, in the order in which it is written."""

_OF_DEVICE = (SEQ, _TRACE, _DEVICE)
_PHASES = (
    _ns("compute_ns", "time in which it computed"),
    _ns("exposed_communication_ns", "time in which it communicated, and did not compute"),
    _ns("exposed_copy_ns", "time in which it copied, and did neither"),
    _ns("idle_ns", "time in which it did nothing. NULL: not known"),
)
_CAUSE = Column("cause", TEXT, "what it waited for; see v_device_idle")
_DID = Column("name", TEXT, "what the thread that launched next did; empty: not known")
_PYTHON = Column("python", TEXT, "in which function of Python; empty: not known")

FOUND: tuple[Table, ...] = (
    Table(
        "device_uses",
        "How a program used a device. The parts of its time are the window.",
        *(*_OF_DEVICE, START._replace(kind=S64)),
        _ns("window_ns", "its steps, or from its first to its last activity"),
        *_PHASES,
        _ns("communication_ns", "time in which it communicated, also while it computed"),
        _ns("copy_ns", "time in which it copied, also while it did something else"),
        Column("steps", U32, "how many there are", "{step}"),
        Column("verdict", TEXT, "what bounds the program"),
        Column("useful", REAL, "share of the window in which it computed. NULL: not known"),
    ),
    Table(
        "device_steps",
        "Steps of a program on a device. The parts of the device's time are the step.",
        *(*_OF_DEVICE, Column("name", TEXT, "of the step"), START._replace(kind=S64)),
        *(_TOOK, _ns("host_ns", "how long the host says that it took"), *_PHASES),
        Column("parts", JSON, "the same time by who had it, in ns: a JSON object"),
        Column("set_aside", TEXT, "why it counts in no median; empty: it does"),
    ),
    Table(
        "device_gaps",
        "The longest stretches in which a device did nothing.",
        *(*_OF_DEVICE, START._replace(kind=S64), _TOOK, _CAUSE, _DID, _PYTHON),
    ),
    Table(
        "device_waits",
        "All idle time of a device, by what it waited for; nothing where the trace cannot tell.",
        *(*_OF_DEVICE, _CAUSE, _DID, _PYTHON, _ns("time_ns", "how long, of all gaps together")),
    ),
)
"""What was found in a trace when it was written; ``explain`` finds it again."""

DEVICE_NUMBERED: tuple[Table, ...] = (
    Table(
        TRACES,
        "What a process recorded of its devices and of itself; see the tables device_… and "
        "host_operations.",
        *(SEQ, END, START),
        Column("source", TEXT, "the file, as it was called"),
        Column("tool", TEXT, "who recorded it"),
        Column("base_unix_ns", U64, "what its times are after, in Unix time", "ns"),
        Column("dated", U8, "0: that is not in the file, and was taken from its own time"),
        Column("rank", U64, "which process of a run it is. NULL: not known"),
        Column("ranks", U64, "how many there are. NULL: not known"),
        Column("program", TEXT, "what the process ran; empty: the file does not say it"),
        Column("host_name", TEXT, "where it ran, likewise"),
        Column("processes", U64, "how many processes the same file is of"),
        Column("has_stacks", U8, "1: functions of Python were recorded"),
        Column("has_shapes", U8, "1: shapes of inputs were recorded"),
        _ns("overhead_ns", "time that recording itself took, as it says"),
        Column("rejected", JSON, "what could not be read of the file: a JSON object of counts"),
        Column("parts", U64, "rows of it, which come right after this one", "{row}"),
    ),
    *PARTS,
    *FOUND,
)
