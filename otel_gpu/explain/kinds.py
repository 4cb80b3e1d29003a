"""Enums of the explanation: effects, causes, evidence, states of time, verdicts, severities."""

from enum import StrEnum

from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.wire.thread_states import ThreadState


class Severity(StrEnum):
    """How bad an effect or an incident is, the worst first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


SEVERITY_RANK = {severity: rank for rank, severity in enumerate(Severity)}
"""The worst has the smallest number."""


class EffectKind(StrEnum):
    """What can go wrong."""

    SLOW_CALL = "slow_call"
    SLOW_GAP = "slow_gap"
    HUNG_CALL = "hung_call"
    FAILED_CALL = "failed_call"
    KILLED_CALL = "killed_call"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_FAULT = "device_fault"
    NETWORK_EVENT = "network_event"
    HUNG_COLLECTIVE = "hung_collective"
    # Nothing went wrong in these: they are examples of what always takes time.
    USUAL_CALL = "usual_call"
    USUAL_GAP = "usual_gap"


class CauseKind(StrEnum):
    """What an effect's time can be due to."""

    PREEMPTION = "preemption"
    RUN_QUEUE = ThreadState.RUN_QUEUE
    CPU_QUOTA = "cpu_quota"
    LOCK = WaitReason.LOCK
    GIL = WaitReason.GIL
    IO = WaitReason.IO
    IPC = WaitReason.IPC
    NETWORK = WaitReason.NETWORK
    SLEEP = WaitReason.SLEEP
    PAGE_FAULT = WaitReason.PAGE_FAULT
    RECLAIM = WaitReason.RECLAIM
    MMAP_LOCK = WaitReason.MMAP_LOCK
    FORK = "fork"
    STOPPED = WaitReason.STOPPED
    FROZEN = WaitReason.FROZEN
    CAPTURE = WaitReason.CAPTURE
    GPU_WAIT = "gpu_wait"
    GPU_BACKPRESSURE = "gpu_backpressure"
    FIRST_CALL = "first_call"
    ALLOCATOR_CHURN = "allocator_churn"
    EMPTY_CACHE = "empty_cache"
    ALLOCATION_RETRY = "allocation_retry"
    ALLOCATOR_BYPASS = "allocator_bypass"
    EXHAUSTED = "exhausted"
    FITTING_HOLE = "fitting_hole"
    PRIVATE_POOL = "private_pool"
    OTHER_STREAM = "other_stream"
    KEPT_CACHE = "kept_cache"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"
    LEAK = "leak"
    UNEXPLAINED = "unexplained"
    HOST_WORK = "host_work"
    GPU_CLOCKS = "gpu_clocks"
    GPU_FAULT = "gpu_fault"
    COLLECTIVE_WAIT = "collective_wait"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    COLLECTIVE_STUCK = "collective_stuck"


FAILED_REQUESTS = (
    CauseKind.EXHAUSTED,
    CauseKind.FITTING_HOLE,
    CauseKind.PRIVATE_POOL,
    CauseKind.OTHER_STREAM,
    CauseKind.KEPT_CACHE,
    CauseKind.FRAGMENTATION,
    CauseKind.OTHER_PROCESS,
    CauseKind.LEAK,
)
"""Why a request for memory can fail."""


class EvidenceKind(StrEnum):
    """The source of a measured interval."""

    RUN_QUEUE = ThreadState.RUN_QUEUE
    BLOCKED = ThreadState.BLOCKED
    # The effect itself stands for its totals: the state of that time is known, and its intervals are not.
    CALL = "call"
    GAP = "gap"
    FORK = CauseKind.FORK
    UNSEEN = "unseen"
    """A window of another thread that was observed in part."""
    ACCOUNT = "account"
    """A window that only totals describe."""
    DEVICE = "device"
    """A state that a device reported."""
    COUNTERS = "counters"
    """A window in which counters of the host rose; how long that took is not known."""
    COLLECTIVE = "collective"
    """The part of a collective in which a rank waited for others."""
    REQUEST = "request"
    """A request for memory."""
    # In lists of events of a window; no cause has them.
    OPEN_CALL = "open_call"
    EXIT = "exit"


class TimeState(StrEnum):
    """The states of a launching thread; it is in one at a time."""

    GPU_WAIT = CauseKind.GPU_WAIT
    API = "api"
    HOST = "host"
    RUN_QUEUE = ThreadState.RUN_QUEUE
    LOCK = CauseKind.LOCK
    GIL = CauseKind.GIL
    IO = CauseKind.IO
    IPC = CauseKind.IPC
    SLEEP = CauseKind.SLEEP
    PAGING = "paging"
    STOPPED = CauseKind.STOPPED
    OTHER = "other"
    IDLE = "idle"
    """In time trees only: in a budget it is IPC."""


class NodeKind(StrEnum):
    """Kinds of nodes of a time tree that are neither a state nor a cause."""

    ALL = "all"
    OTHER = TimeState.OTHER
    """The sum of the smaller ones."""
    UNKNOWN = WaitReason.UNKNOWN
    LINE = "line"


class TimeClass(StrEnum):
    """A class of time that a verdict compares."""

    GPU = "gpu"
    COMMUNICATION = "communication"
    DATA = "data"
    CPU = "cpu"
    STARVED = "starved"
    LOCK = TimeState.LOCK
    MEMORY = "memory"
    API = TimeState.API
    SLEEP = TimeState.SLEEP
    IDLE = TimeState.IDLE
    STOPPED = TimeState.STOPPED
    OTHER = TimeState.OTHER


class Bound(StrEnum):
    """What a program is bound by: the verdict about it."""

    GPU = "gpu-bound"
    COMMUNICATION = "communication-bound"
    DATA = "data-bound"
    CPU = "cpu-bound"
    STARVED = "cpu-starved"
    LOCK = "lock-bound"
    MEMORY = "allocation-bound"
    COPIES = "copy-bound"
    """Of traces of a device only."""
    IDLE = TimeClass.IDLE
    STOPPED = TimeClass.STOPPED
    MIXED = "mixed"
    UNKNOWN = WaitReason.UNKNOWN
