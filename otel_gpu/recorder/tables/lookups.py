"""The lookup tables: meanings of numbers and words in other tables."""

from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.enrich.cuda_errors import DRIVER_ERRORS, NCCL_ERRORS, RUNTIME_ERRORS
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.rules import RULES
from otel_gpu.recorder.tables.columns import S32, TEXT, U8, U16, U32, Column, Table
from otel_gpu.wire.probe_table import APIS, ApiLayer

_STATES = {
    wire.STATE_ON_CPU: "running",
    wire.STATE_RUN_QUEUE: "ready to run, waiting for a CPU",
    wire.STATE_BLOCKED: "blocked; see reason",
}
_CONTEXTS = {
    wire.CONTEXT_GAP: "between CUDA calls, of a thread that makes some",
    wire.CONTEXT_SYNCHRONIZE: "inside a call that waits for the device",
    wire.CONTEXT_CALL: "inside another CUDA call",
    wire.CONTEXT_OTHER: "of a thread that made no CUDA call yet",
}
_CHOICES = {
    wire.CHOICE_FAILED: "it failed",
    wire.CHOICE_SLOW: "it was slow for its series",
    wire.CHOICE_SAMPLED: "it was sampled",
    wire.CHOICE_FULL: "every call of the process is recorded",
    wire.CHOICE_STALLED: "the scheduler kept it waiting",
    wire.CHOICE_PARENT: "a call inside it was recorded",
    wire.CHOICE_FIRST_USE: "first use of its kernel, so the call can include loading its code",
}
_METRICS = {
    wire.METRIC_CALL_DURATION: ("ns", "host time inside CUDA calls"),
    wire.METRIC_LAUNCH_GAP: ("ns", "time between two CUDA calls of a thread"),
    wire.METRIC_OFF_CPU: ("ns", "time that threads were off the CPU, blocked or waiting for one"),
    wire.METRIC_RUN_QUEUE: ("ns", "time that threads waited for a CPU"),
    wire.METRIC_COPY_SIZE: ("bytes", "sizes of copies"),
    wire.METRIC_FORK: ("", "forks; only the count has a meaning"),
    wire.METRIC_ELAPSED_TIME: ("ns", "device time, as the program measured it by events"),
    wire.METRIC_ASYNC_EVENT: ("", "events of network adapters; only the count has a meaning"),
}
_SWITCH_TYPES = {
    wire.SWITCH_VOLUNTARY: "it gave up its CPU to wait",
    wire.SWITCH_INVOLUNTARY: "it was preempted",
}
_STALL_FLAGS = {
    wire.STALL_GIL: "the thread waited for the Python interpreter's lock",
    wire.STALL_FAULT: "not in a system call: a page fault, or stopped",
    wire.STALL_IDLE_CPU: "its CPU was idle before or after the interval",
    wire.STALL_THROTTLED: "its cgroup's CPU quota took the CPU from it (known since Linux 6.18)",
    wire.STALL_STOPPED: "a signal or a debugger had stopped it",
    wire.STALL_FROZEN: "a freezer of cgroup version 2 wants it stopped; its stack shows whether it is",
    wire.STALL_AGENT: "otel-gpu woke it, after it had stopped it to place probes",
    wire.STALL_PREEMPTED: "it was running and was preempted",
}
_REASONS = {
    WaitReason.UNKNOWN: "not known",
    WaitReason.GIL: "the Python interpreter's lock",
    WaitReason.LOCK: "a lock of the program",
    WaitReason.QUEUE: "work: its queue was empty, or full",
    WaitReason.IO: "a disk or file system",
    WaitReason.IPC: "another thread or process: pipe, socket, event, queue",
    WaitReason.NETWORK: "another host, over a connection from this one",
    WaitReason.SLEEP: "a timer: the program slept",
    WaitReason.PAGE_FAULT: "a page fault: memory that had to be read or created",
    WaitReason.RECLAIM: "the kernel freeing memory",
    WaitReason.MMAP_LOCK: "the address space, which another thread was changing",
    WaitReason.CHILD_WAIT: "a child process",
    WaitReason.STOPPED: "a signal or a debugger that stopped it",
    WaitReason.FROZEN: "the freezer of its cgroup",
    WaitReason.CAPTURE: "otel-gpu, which stopped it while it placed its probes",
    WaitReason.DRIVER: "the GPU's driver",
}


def _names(enumerators: Mapping[int, str], prefix: str) -> dict[int, str]:
    return {number: name.removeprefix(prefix) for number, name in enumerators.items()}


_FAMILIES = _names(wire.API_FAMILY_NAMES, "family_")
_FAMILY_NUMBERS = {name: number for number, name in _FAMILIES.items()}


def family_name(number: int) -> str:
    """Return the name of a family of APIs; unknown numbers are ``other``."""
    return _FAMILIES.get(number, _FAMILIES[wire.FAMILY_OTHER])


def family_number(name: str) -> int:
    """Return the number of a family of APIs; unknown names are ``FAMILY_OTHER``."""
    return _FAMILY_NUMBERS.get(name, wire.FAMILY_OTHER)


def _words(
    name: str, meaning: str, key: Column, words: Mapping[int, str], meanings: Mapping[int, str]
) -> Table:
    columns = (key, Column("name", TEXT, "name"), Column("meaning", TEXT, "meaning"))
    rows = [(number, words[number], text) for number, text in meanings.items()]
    return Table(name, meaning, *columns, rows=rows)


LOOKUPS = (
    Table(
        "apis",
        "CUDA APIs.",
        Column("api", U16, "number of the API"),
        Column("name", TEXT, "its name"),
        Column(
            "layer",
            TEXT,
            "runtime (libcudart), driver (libcuda), nccl (libnccl) or verbs (libibverbs)",
        ),
        Column("family", TEXT, "kind of call: launch, synchronize, copy, …"),
        rows=[(api.number, api.name, api.layer_name, family_name(api.family)) for api in APIS],
    ),
    Table(
        "errors",
        "Results of CUDA calls.",
        Column("layer", TEXT, "as in apis"),
        Column("status", S32, "the number"),
        Column("name", TEXT, "its name"),
        key_length=2,
        rows=[
            *((ApiLayer.RUNTIME, status, name) for status, name in RUNTIME_ERRORS.items()),
            *((ApiLayer.DRIVER, status, name) for status, name in DRIVER_ERRORS.items()),
            *((ApiLayer.NCCL, status, name) for status, name in NCCL_ERRORS.items()),
        ],
    ),
    _words(
        name="states",
        meaning="States of threads.",
        key=Column("state", U8, "number of the state"),
        words=_names(wire.THREAD_STATE_NAMES, "state_"),
        meanings=_STATES,
    ),
    _words(
        name="contexts",
        meaning="Contexts of threads: inside or between CUDA calls.",
        key=Column("context", U8, "number of the context"),
        words=_names(wire.CALL_CONTEXT_NAMES, "context_"),
        meanings=_CONTEXTS,
    ),
    _words(
        name="choices",
        meaning="Reasons for recording a call or a gap. Its choices are a sum of these.",
        key=Column("choice", U32, "a power of two"),
        words=_names(wire.CHOICE_NAMES, "choice_"),
        meanings=_CHOICES,
    ),
    _words(
        name="stall_flags",
        meaning="Flags of stalls. The flags of a stall are a sum of these.",
        key=Column("flag", U32, "a power of two"),
        words=_names(wire.STALL_FLAG_NAMES, "stall_"),
        meanings=_STALL_FLAGS,
    ),
    _words(
        name="switch_types",
        meaning="Ways in which a thread leaves its CPU.",
        key=Column("switch_type", U8, "number of the type"),
        words=_names(wire.SWITCH_TYPE_NAMES, "switch_"),
        meanings=_SWITCH_TYPES,
    ),
    Table(
        "copy_kinds",
        "Directions of copies.",
        Column("copy_kind", U8, "number"),
        Column("name", TEXT, "name"),
        rows=_names(wire.COPY_KIND_NAMES, "copy_").items(),
    ),
    Table(
        "metrics",
        "Metrics of series.",
        Column("metric", U16, "number of the metric"),
        Column("name", TEXT, "name"),
        Column("unit", TEXT, "unit of sum, min, max and of the buckets"),
        Column("meaning", TEXT, "meaning"),
        rows=[
            (number, name, *_METRICS[number])
            for number, name in _names(wire.METRIC_NAMES, "metric_").items()
        ],
    ),
    Table(
        "reasons",
        "Reasons for which a thread can be blocked.",
        Column("reason", TEXT, "the word"),
        Column("meaning", TEXT, "meaning"),
        rows=_REASONS.items(),
    ),
    Table(
        "cause_kinds",
        "Kinds of causes.",
        Column("kind", TEXT, "the word"),
        Column("fault", TEXT, "responsible side: `host`, `culprit` (if one is known) or `nobody`"),
        Column("advice", TEXT, "what to do about it"),
        rows=[(rule.kind, rule.fault, rule.advice) for rule in RULES],
    ),
)
