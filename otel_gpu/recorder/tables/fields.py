"""
The columns that tables share, and the fields of events as columns.

A table of events has the fields of its event in their order, so that a row is read back
as it is. Dimensions, which are three numbers, are three columns.
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
    ColumnKind,
)

SEQ = Column("seq", U64, "number of the row over all tables, in the order of what was seen")
UNIX = Column("unix_ns", U64, "when it was read, in Unix time", "ns")
END = Column("end_unix_ns", U64, "when it ended, in Unix time", "ns")
PROCESS = Column("process", U64, "whose it is; see processes")
DEVICE = Column("cuda_device", U64, "which device; see devices. NULL: unknown")
STACK = Column("program_stack", U64, "where in the program it was; see stacks. NULL: unknown")
START = Column("start_unix_ns", U64, "when it began, in Unix time", "ns")
WAITED_FOR = Column(
    "waited_for",
    JSON,
    "what its system call was about, as a JSON object: kind, name, file_system, mount, is_remote, "
    "is_incoming, peers, source. NULL: not known",
)
INFO = Column("info", JSON, "all that was read, as a JSON object")

DIMENSIONS = ("grid", "block")

# By name; a name means the same wherever it is.
_FIELDS: Mapping[str, tuple[ColumnKind, str, str]] = {
    "end_ktime_ns": (U64, "when it ended, on CLOCK_MONOTONIC", "ns"),
    "ktime_ns": (U64, "when it was looked at, on CLOCK_MONOTONIC", "ns"),
    "image_ktime_ns": (U64, "with pid, the key of the process image", "ns"),
    "pid": (PID, "process id, in the agent's pid namespace", ""),
    "tid": (PID, "thread id", ""),
    "start_ktime_ns": (U64, "when it began, on CLOCK_MONOTONIC", "ns"),
    "parent_start_ktime_ns": (U64, "start of the CUDA call around it; 0: in none", "ns"),
    "root_start_ktime_ns": (
        U64,
        "start of the outermost CUDA call around it, or of the gap that a stall is in; 0: in none",
        "ns",
    ),
    "call_start_ktime_ns": (U64, "start of the innermost CUDA call around it; 0: in none", "ns"),
    "runnable_ktime_ns": (U64, "when it could run again; the start if it never stopped", "ns"),
    "child_image_ktime_ns": (U64, "with child_pid, the key of the new process image", "ns"),
    "blocked_ns": (U64, "time inside it that the thread waited for something", "ns"),
    "run_queue_ns": (U64, "time inside it that the thread was ready and had no CPU", "ns"),
    "size_bytes": (WORD, "bytes copied, allocated or freed", "bytes"),
    "address": (WORD, "what was allocated, freed or copied to; a signed 64-bit number", ""),
    "stream": (WORD, "stream handle, 0: the default one; a signed 64-bit number", ""),
    "function": (WORD, "of a launch: address or handle of the kernel; signed 64 bits", ""),
    "argument": (WORD, "first argument of the system call; a signed 64-bit number", ""),
    "user_stack": (WORD, "id of the user stack, 0: none; a signed 64-bit number", ""),
    "status": (S32, "what the call returned; 0: success, else see errors", ""),
    "device": (S32, "device index as the process sees it; -1: unknown", ""),
    "weight_ns": (U64, "time on CPUs that it stands for", "ns"),
    "weight": (U32, "how many calls a sampled one stands for; else 1", "{call}"),
    "voluntary_switches": (U32, "how often the thread gave up its CPU", "{switch}"),
    "involuntary_switches": (U32, "how often its CPU was taken away", "{switch}"),
    "cpu": (U32, "CPU that it ran on at the end", ""),
    "api": (U16, "which CUDA API; see apis", ""),
    "call_api": (U16, "CUDA API of the innermost call around it, 0: none; see apis", ""),
    "previous_api": (U16, "CUDA API of the call before; see apis", ""),
    "next_api": (U16, "CUDA API of the call after; see apis", ""),
    "variant": (U16, "which exported spelling of the symbol", ""),
    "copy_kind": (U8, "direction of a copy; see copy_kinds", ""),
    "choices": (U32, "why it was chosen to be kept, as a sum; see choices", ""),
    "depth": (U8, "how many CUDA calls are around it", ""),
    "call_depth": (U8, "how deep the innermost call around it lies", ""),
    "switch_type": (U8, "how it left the CPU; see switch_types", ""),
    "kernel_stack": (S32, "the kernel side's id of the stack; negative: none", ""),
    "system_call": (S32, "number of the system call that it was in; -1: none", ""),
    "flags": (U32, "a sum; see stall_flags", ""),
    "resource": (U32, "the kernel side's id of what it waited for; 0: not known", ""),
    "culprit_pid": (PID, "process that had the CPU; 0: idle or unknown", ""),
    "culprit_tid": (PID, "thread that had the CPU; 0: idle or unknown", ""),
    "culprit_comm": (TEXT, "name of that thread", ""),
    "waker_pid": (U32, "process that ended the wait; 0: none, or an interrupt", ""),
    "waker_tid": (U32, "thread that ended the wait; 0: none, or an interrupt", ""),
    "waker_comm": (TEXT, "name of that thread", ""),
    "child_pid": (U32, "process id of the child", ""),
    "comm": (TEXT, "name of the thread", ""),
    "state": (U8, "what the threads did; see states", ""),
    "context": (U8, "where in their work they were; see contexts", ""),
    "asked_bytes": (U64, "what was asked for", "bytes"),
    "allocated_bytes": (U64, "in use then, by the allocator; of a call: what was seen", "bytes"),
    "reserved_bytes": (U64, "taken from the device then", "bytes"),
    "device_free_bytes": (U64, "what the device had free, as the thread was last told", "bytes"),
    "device_total_bytes": (U64, "what the device has; 0: the thread never asked", "bytes"),
    "device_ktime_ns": (U64, "when it was told that, on CLOCK_MONOTONIC", "ns"),
    "source": (
        U16,
        "who said so: a framework (1) or a call (2); the program (1) or the agent (2)",
        "",
    ),
    "number": (U64, "which one it is, as the program counts; of one that was found, from 1", ""),
    "loader_wait_ns": (U64, "time of it for the data loader, as the program says", "ns"),
    "trace_id": (SPAN_ID, "of the application's own span; empty: it has none", ""),
    "span_id": (SPAN_ID, "of the application's own span; empty: it has none", ""),
    "parent_span_id": (SPAN_ID, "of the span that it is in; empty: it is in none", ""),
    "start_tid": (PID, "thread id of where it began", ""),
    "range_kind": (U8, "0: pushed, 1: started, 2: a mark", ""),
    "domain": (TEXT, "of NVTX; empty: the default one", ""),
    "trace_flags": (U8, "of W3C Trace Context: 1: the span is sampled", ""),
    "confidence_percent": (U8, "how sure it is that there are steps", "%"),
    "kind": (U8, "0: unknown, 1: training, 2: evaluation, 3: prefill, 4: decode", ""),
    "text": (TEXT, "KEY=VALUE, one in each line", ""),
    "name": (TEXT, "what the program calls it", ""),
    "told_by": (TEXT, "kernel_log or nvml, which does not say whose work it was", ""),
    "xid": (U32, "NVIDIA's number of the kind of error", ""),
    "bus_id": (TEXT, "where the device is: domain, bus and device of PCI", ""),
    "said_pid": (U32, "whose work it was, as the driver knows it; 0: not said", ""),
    "said_name": (TEXT, "name of that process, which it chose itself", ""),
    "times": (U32, "how often the driver said the same within a second", ""),
    "message": (TEXT, "what else the driver said", ""),
    "reason": (TEXT, "what they were blocked on; see reasons. Empty: not blocked", ""),
}


def event_columns(event: Any) -> Iterator[Column]:  # noqa: ANN401 -- the class of any event
    """Yield the columns of a kind of event, in the order of its fields."""
    for name in event._fields:
        if name in DIMENSIONS:
            for axis in "xyz":
                yield Column(f"{name}_{axis}", U32, f"of a launch: {name} size in {axis}")
        else:
            yield Column(name, *_FIELDS[name])


def who(name: str, meaning: str) -> tuple[Column, ...]:
    """Return the columns that name a thread."""
    kinds = {"pid": PID, "tid": PID, "comm": TEXT}
    return tuple(Column(f"{name}_{part}", kind, meaning) for part, kind in kinds.items())


TIME_KEY = (
    *(Column(name, *_FIELDS[name]) for name in ThreadTime._fields[1:4]),
    Column("wait", U64, "who kept them from going on, and in what; see waits. 0: not known"),
)
"""What an entry of the time account is about, beside its process."""
