"""
The columns that tables share, and the fields of events as columns.

A table of events has the fields of its event in their order. Dimensions are three columns each.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.recorder.tables.columns import (
    JSON,
    PID,
    S32,
    SPAN_ID,
    TEXT,
    U8,
    U16,
    U32,
    U64,
    WORD,
    Column,
    ColumnClock,
)

SEQ = Column("seq", U64, "number of the row over all tables, in the order of observation")
UNIX = Column(
    "unix_ns", U64, "time of the reading, in Unix time", unit="ns", clock=ColumnClock.UNIX
)
END = Column("end_unix_ns", U64, "end, in Unix time", unit="ns", clock=ColumnClock.UNIX)
PROCESS = Column("process", U64, "the process; see processes", refers_to="processes")
DEVICE = Column(
    "cuda_device",
    U64,
    "the device; see devices. NULL: unknown",
    is_nullable=True,
    refers_to="devices",
)
STACK = Column(
    "program_stack",
    U64,
    "stack in the program; see stacks. NULL: unknown",
    is_nullable=True,
    refers_to="stacks",
)
START = Column("start_unix_ns", U64, "start, in Unix time", unit="ns", clock=ColumnClock.UNIX)
WAITED_FOR = Column(
    "waited_for",
    JSON,
    "the file of its system call, as a JSON object: kind, name, file_system, mount, "
    "is_remote, is_incoming, peers, source. NULL: unknown",
    is_nullable=True,
)
INFO = Column("info", JSON, "the complete reading, as a JSON object")

DIMENSIONS = ("grid", "block")

# By name. A name has one meaning in all tables.
_COLUMNS = (
    Column("end_ktime_ns", U64, "end, on CLOCK_MONOTONIC", unit="ns", clock=ColumnClock.MONOTONIC),
    Column(
        "ktime_ns",
        U64,
        "time of the report, on CLOCK_MONOTONIC",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "program_ktime_ns",
        U64,
        "start of the program; with pid, the key of the program",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column("pid", PID, "process id, in the agent's pid namespace"),
    Column("tid", PID, "thread id"),
    Column(
        "start_ktime_ns", U64, "start, on CLOCK_MONOTONIC", unit="ns", clock=ColumnClock.MONOTONIC
    ),
    Column(
        "parent_start_ktime_ns",
        U64,
        "start of the CUDA call around it; 0: in none",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "root_start_ktime_ns",
        U64,
        "start of the outermost CUDA call around it, or of the gap that a stall is in; 0: in none",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "call_start_ktime_ns",
        U64,
        "start of the innermost CUDA call around it; 0: in none",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "runnable_ktime_ns",
        U64,
        "when it was runnable again; the start if it was never blocked",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "child_program_ktime_ns",
        U64,
        "start of the new program; with child_pid, its key",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column("blocked_ns", U64, "time inside it in which the thread was blocked", unit="ns"),
    Column(
        "run_queue_ns",
        U64,
        "time inside it in which the thread was runnable and had no CPU",
        unit="ns",
    ),
    Column("size_bytes", WORD, "bytes copied, allocated or freed", unit="bytes"),
    Column(
        "address", WORD, "address that was allocated, freed or copied to; a signed 64-bit number"
    ),
    Column("stream", WORD, "stream handle, 0: the default one; a signed 64-bit number"),
    Column("function", WORD, "of a launch: address or handle of the kernel; signed 64 bits"),
    Column("argument", WORD, "first argument of the system call; a signed 64-bit number"),
    Column("user_stack", WORD, "id of the user stack, 0: none; a signed 64-bit number"),
    Column(
        "status", S32, "return value of the call; 0: success, else see errors", refers_to="errors"
    ),
    Column("device", S32, "device index as the process sees it; -1: unknown"),
    Column("weight_ns", U64, "time on CPUs that it represents", unit="ns"),
    Column("weight", U32, "number of calls that a sampled one represents; else 1", unit="{call}"),
    Column(
        "voluntary_switches",
        U32,
        "number of times that the thread gave up its CPU",
        unit="{switch}",
    ),
    Column(
        "involuntary_switches",
        U32,
        "number of times that the thread was preempted",
        unit="{switch}",
    ),
    Column("cpu", U32, "CPU that it ran on at the end"),
    Column("api", U16, "the CUDA API; see apis", refers_to="apis"),
    Column(
        "call_api",
        U16,
        "CUDA API of the innermost call around it, 0: none; see apis",
        refers_to="apis",
    ),
    Column("previous_api", U16, "CUDA API of the call before; see apis", refers_to="apis"),
    Column("next_api", U16, "CUDA API of the call after; see apis", refers_to="apis"),
    Column("variant", U16, "number of the exported symbol, among those of the API"),
    Column("copy_kind", U8, "direction of a copy; see copy_kinds", refers_to="copy_kinds"),
    Column("choices", U32, "why it was recorded, as a sum; see choices"),
    Column("depth", U8, "number of CUDA calls around it"),
    Column("call_depth", U8, "nesting depth of the innermost call around it"),
    Column("switch_type", U8, "how it left the CPU; see switch_types", refers_to="switch_types"),
    Column("kernel_stack", S32, "the kernel side's id of the stack; negative: none"),
    Column("system_call", S32, "number of the system call that it was in; -1: none"),
    Column("flags", U32, "a sum; see stall_flags"),
    Column("resource", U32, "the kernel side's id of the file that it waited for; 0: unknown"),
    Column("culprit_pid", PID, "process that had the CPU; 0: idle or unknown"),
    Column("culprit_tid", PID, "thread that had the CPU; 0: idle or unknown"),
    Column("culprit_comm", TEXT, "name of that thread"),
    Column("waker_pid", U32, "process that ended the wait; 0: none, or an interrupt"),
    Column("waker_tid", U32, "thread that ended the wait; 0: none, or an interrupt"),
    Column("waker_comm", TEXT, "name of that thread"),
    Column("child_pid", U32, "process id of the child"),
    Column("comm", TEXT, "name of the thread"),
    Column("state", U8, "state of the threads; see states", refers_to="states"),
    Column("context", U8, "context of the threads; see contexts", refers_to="contexts"),
    Column("asked_bytes", U64, "requested bytes", unit="bytes"),
    Column(
        "allocated_bytes",
        U64,
        "bytes in use then, by the allocator; of a call, the observed bytes",
        unit="bytes",
    ),
    Column("reserved_bytes", U64, "bytes taken from the device then", unit="bytes"),
    Column(
        "device_free_bytes",
        U64,
        "free bytes of the device, as the thread last queried them",
        unit="bytes",
    ),
    Column(
        "device_total_bytes",
        U64,
        "total bytes of the device; 0: the thread never queried them",
        unit="bytes",
    ),
    Column(
        "device_ktime_ns",
        U64,
        "time of that query, on CLOCK_MONOTONIC",
        unit="ns",
        clock=ColumnClock.MONOTONIC,
    ),
    Column(
        "source",
        U16,
        "of a failed request: 1 a framework, 2 a call; of a step: 1 the program, 2 the agent",
    ),
    Column("number", U64, "number of the step, from the program; of a detected step from 1"),
    Column(
        "loader_wait_ns",
        U64,
        "time waiting for the data loader, as the program reports it",
        unit="ns",
    ),
    Column("trace_id", SPAN_ID, "id of the application's own span; empty: none"),
    Column("span_id", SPAN_ID, "id of the application's own span; empty: none"),
    Column("parent_span_id", SPAN_ID, "id of its parent span; empty: none"),
    Column("start_tid", PID, "id of the thread that began it"),
    Column("range_kind", U8, "0: pushed, 1: started, 2: a mark"),
    Column("domain", TEXT, "NVTX domain; empty: the default one"),
    Column("trace_flags", U8, "flags of W3C Trace Context; 1: the span is sampled"),
    Column("confidence_percent", U8, "confidence that the step exists", unit="%"),
    Column("kind", U8, "0: unknown, 1: training, 2: evaluation, 3: prefill, 4: decode"),
    Column("text", TEXT, "KEY=VALUE, one in each line"),
    Column("name", TEXT, "name in the program"),
    Column("reported_by", TEXT, "kernel_log or nvml; NVML does not name the process"),
    Column("xid", U32, "NVIDIA's error number (XID)"),
    Column("bus_id", TEXT, "PCI address: domain, bus and device"),
    Column(
        "reported_pid",
        U32,
        "pid of the process whose work failed, from the driver; 0: not reported",
    ),
    Column("reported_name", TEXT, "name of that process, which it chose itself"),
    Column("times", U32, "number of equal messages of the driver within a second"),
    Column("message", TEXT, "rest of the driver's message"),
    Column(
        "reason",
        TEXT,
        "why they were blocked; see reasons. Empty: not blocked",
        refers_to="reasons",
    ),
)
_FIELDS: Mapping[str, Column] = {column.name: column for column in _COLUMNS}


def event_columns(event: Any) -> Iterator[Column]:  # noqa: ANN401 -- the class of any event
    """Yield the columns of a class of events, in the order of its fields."""
    for name in event._fields:
        if name in DIMENSIONS:
            for axis in "xyz":
                yield Column(f"{name}_{axis}", U32, f"of a launch: {name} size in {axis}")
        else:
            yield _FIELDS[name]


def who(name: str, meaning: str) -> tuple[Column, ...]:
    """Return the columns pid, tid and comm of a thread, with a prefix, all NULL where none is named."""
    kinds = {"pid": PID, "tid": PID, "comm": TEXT}
    return tuple(
        Column(f"{name}_{part}", kind, meaning, is_nullable=True) for part, kind in kinds.items()
    )


TIME_KEY = (
    *(_FIELDS[name] for name in ThreadTime._fields[1:4]),
    Column("wait", U64, "call and culprit; see waits. 0: unknown", refers_to="waits"),
)
"""Key columns of a thread time, beside its process."""
