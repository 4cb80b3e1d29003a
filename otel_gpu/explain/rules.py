"""
The rules of explanation: what each measured state means where it was measured, and what to do.

All judgement is in the tables of this module; the other modules of the package measure.
"""

# Some facts about waiting inside CUDA calls
# ------------------------------------------
#
# A call that synchronizes has nothing to do but wait for the device, and the driver chooses how: it
# spins, sleeps between two queries, polls a file of its own, or lets the driver's interrupt wake
# it. None of that is the host's fault. The host can make the thread wait once more after the device
# was done: for a CPU, for a lock, for a page.
#
# A launch returns once the work is queued. One that takes long and used a CPU found the queue full:
# the device is behind, and more CPU would not help.

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.kinds import CauseKind


class FaultSide(StrEnum):
    """What is at fault. Only a fault of the host makes an incident more than low."""

    HOST = "host"
    CULPRIT = "culprit"
    """A fault if the waited-for thread is known; else it can have been input from outside."""
    NONE = "nobody"


class Place(StrEnum):
    """Where a thread is, for the meaning of its time."""

    GAP = "gap"
    SYNCHRONIZE = "synchronize"
    COPY = "copy"
    LAUNCH = "launch"
    FULL_QUEUE = "full queue"
    FIRST_CALL = "first call"
    CHURN = "churn"
    CALL = "call"


class CauseRule(NamedTuple):
    """What a kind of cause means: what is at fault, and what to do about it."""

    kind: CauseKind
    fault: FaultSide
    advice: str


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        CauseKind.PREEMPTION,
        FaultSide.HOST,
        "Another thread took the CPU away. Give the process CPUs of its own (cpuset, taskset), "
        "or lower the other's priority.",
    ),
    CauseRule(
        CauseKind.RUN_QUEUE,
        FaultSide.HOST,
        "The thread was ready and its CPU was busy. Move the other load off the CPUs of the "
        "threads that launch GPU work, or start fewer workers than there are CPUs.",
    ),
    CauseRule(
        CauseKind.CPU_QUOTA,
        FaultSide.HOST,
        "The cgroup's CPU quota was used up. Raise cpu.max (the container's CPU limit), or use "
        "fewer threads.",
    ),
    CauseRule(
        CauseKind.LOCK,
        FaultSide.CULPRIT,
        "The thread waited for another thread of its program. Shorten the holder's work under the lock, or share less.",
    ),
    CauseRule(
        CauseKind.GIL,
        FaultSide.HOST,
        "Another Python thread held the GIL. Move its work to another process, or to native code "
        "that releases the GIL.",
    ),
    CauseRule(
        CauseKind.IO,
        FaultSide.HOST,
        "The thread waited for a disk or file system. Prefetch, cache, or write in another thread.",
    ),
    CauseRule(
        CauseKind.IPC,
        FaultSide.CULPRIT,
        "The thread waited for data from another thread or process. Check what the sender did in that time; for a data loader, raise workers or prefetching.",
    ),
    CauseRule(
        CauseKind.NETWORK,
        FaultSide.HOST,
        "The thread waited for another host. Prefetch in other threads, keep copies on a local disk, "
        "or move the data closer; if segments are resent, check the network itself.",
    ),
    CauseRule(
        CauseKind.SLEEP,
        FaultSide.NONE,
        "The program slept. Find the sleep, or the polling loop around it.",
    ),
    CauseRule(
        CauseKind.PAGE_FAULT,
        FaultSide.HOST,
        "The thread waited for memory to be paged in. Pin or pre-touch buffers, and keep files "
        "that are mapped on fast storage.",
    ),
    CauseRule(
        CauseKind.RECLAIM,
        FaultSide.HOST,
        "The kernel freed memory on the thread's time. Raise the memory limit, or use less page "
        "cache.",
    ),
    CauseRule(
        CauseKind.MMAP_LOCK,
        FaultSide.HOST,
        "The thread waited for its address space, which another thread was changing. Map, unmap "
        "and allocate less in the others.",
    ),
    CauseRule(
        CauseKind.FORK,
        FaultSide.HOST,
        "A fork copied the page tables of a large process and stopped its threads while it did. "
        "Start children early, or from a small helper (spawn, forkserver).",
    ),
    CauseRule(
        CauseKind.STOPPED,
        FaultSide.HOST,
        "The process was stopped by a signal or a debugger. Find the sender of SIGSTOP.",
    ),
    CauseRule(
        CauseKind.FROZEN,
        FaultSide.HOST,
        "The cgroup of the process was frozen (cgroup.freeze, or freezer.state of version 1), and no signal "
        "stopped it. Find what freezes it: a paused container, a checkpoint, or a batch scheduler that "
        "suspends jobs.",
    ),
    CauseRule(
        CauseKind.CAPTURE,
        FaultSide.NONE,
        "otel-gpu stopped the process while it placed its probes in a library that was loaded. "
        "It does so once for each library: a service that is watched with --pid is not stopped.",
    ),
    CauseRule(
        CauseKind.GPU_WAIT,
        FaultSide.NONE,
        "The host waited for the device, as the program requested. Nothing on the host makes this faster: profile the kernels.",
    ),
    CauseRule(
        CauseKind.GPU_BACKPRESSURE,
        FaultSide.NONE,
        "The launch queue was full: the device is behind and the host waits for it. Profile the kernels; more CPU does not help.",
    ),
    CauseRule(
        CauseKind.FIRST_CALL,
        FaultSide.NONE,
        "First use: libraries and modules are loaded and contexts made. Warm up before it counts.",
    ),
    CauseRule(
        CauseKind.ALLOCATOR_CHURN,
        FaultSide.HOST,
        "Device allocations get slower from window to window. Allocate once, use a pool "
        "(cudaMallocAsync, a caching allocator), and look for fragmentation.",
    ),
    CauseRule(
        CauseKind.EMPTY_CACHE,
        FaultSide.HOST,
        "The allocator's cache is released repeatedly, and its memory is allocated again: each of these calls waits for the device. Do not call torch.cuda.empty_cache() in the loop.",
    ),
    CauseRule(
        CauseKind.ALLOCATION_RETRY,
        FaultSide.HOST,
        "The device had no free memory, so the allocator released its whole cache and tried again, repeatedly. Use less memory, or leave other processes less of the device.",
    ),
    CauseRule(
        CauseKind.ALLOCATOR_BYPASS,
        FaultSide.HOST,
        "Memory is allocated past the framework's allocator, which would have kept it: each of these "
        "calls waits for the device. Allocate it once, or from the framework's pool.",
    ),
    CauseRule(
        CauseKind.EXHAUSTED,
        FaultSide.HOST,
        "The program needs more memory than there is. Use a smaller batch, or activation checkpointing.",
    ),
    CauseRule(
        CauseKind.FITTING_HOLE,
        FaultSide.HOST,
        "A hole that fits was free, and was not used. Retry the request.",
    ),
    CauseRule(
        CauseKind.PRIVATE_POOL,
        FaultSide.HOST,
        "A private pool keeps enough free memory. Release CUDA graphs that are not replayed any more, or the torch.cuda.MemPool.",
    ),
    CauseRule(
        CauseKind.OTHER_STREAM,
        FaultSide.HOST,
        "Enough memory is free, for another stream. Allocate on one stream if the same memory is to be reused.",
    ),
    CauseRule(
        CauseKind.KEPT_CACHE,
        FaultSide.HOST,
        "The allocator did not release its free memory. Empty its cache before a CUDA graph is captured.",
    ),
    CauseRule(
        CauseKind.FRAGMENTATION,
        FaultSide.HOST,
        "Enough memory was free, in holes that were too small. Let segments grow (expandable_segments:True), or allocate large blocks before small ones.",
    ),
    CauseRule(
        CauseKind.OTHER_PROCESS,
        FaultSide.HOST,
        "Other processes hold much of the device. Find them, and limit each with torch.cuda.set_per_process_memory_fraction().",
    ),
    CauseRule(
        CauseKind.LEAK,
        FaultSide.HOST,
        "More and more memory is held from step to step. Release what the named line keeps.",
    ),
    CauseRule(CauseKind.UNEXPLAINED, FaultSide.NONE, "The cause of this time was not seen."),
    CauseRule(
        CauseKind.HOST_WORK,
        FaultSide.NONE,
        "The program's own work on the CPU, between CUDA calls. Profile it, or move it to another "
        "thread or process.",
    ),
    CauseRule(
        CauseKind.GPU_CLOCKS,
        FaultSide.HOST,
        "The clocks of the device were limited. By heat (sw_thermal, hw_thermal): check its cooling; by power (sw_power_cap, hw_power_brake): check its power limit (nvidia-smi -q -d POWER,PERFORMANCE) and the supply; by sync_boost: check the other devices of its group.",
    ),
    CauseRule(
        CauseKind.GPU_FAULT,
        FaultSide.HOST,
        "The device had an error. Check the kernel's log around that time, and nvidia-smi -q -d ECC.",
    ),
    CauseRule(
        CauseKind.COLLECTIVE_WAIT,
        FaultSide.CULPRIT,
        "A rank came late to a collective, and all others waited. Its causes are below: give it the CPU, data or device that it lacks, or divide the work evenly among the ranks.",
    ),
    CauseRule(
        CauseKind.COLLECTIVE_MISMATCH,
        FaultSide.HOST,
        "Ranks requested different operations in one collective, which cannot end. Check the calls of the rank that differs: all ranks have to make the same calls of a communicator in the same order.",
    ),
    CauseRule(
        CauseKind.COLLECTIVE_STUCK,
        FaultSide.HOST,
        "All watched ranks called the collective, and it does not end. Check for errors of the device and of the network (nvidia-smi, dmesg, counters of the adapters), and check the ranks on other hosts.",
    ),
)


RULE_BY_KIND: Mapping[str, CauseRule] = {rule.kind: rule for rule in RULES}
KINDS: tuple[CauseKind, ...] = tuple(rule.kind for rule in RULES)
RANK: Mapping[CauseKind, int] = {kind: rank for rank, kind in enumerate(KINDS)}

LAUNCH_FAMILIES = frozenset({wire.FAMILY_LAUNCH, wire.FAMILY_GRAPH_LAUNCH})
ALLOCATOR_FAMILIES = frozenset(
    {
        wire.FAMILY_ALLOCATE,
        wire.FAMILY_FREE,
        wire.FAMILY_HOST_ALLOCATE,
        wire.FAMILY_HOST_FREE,
    }
)
# Places where time counts as on a CPU only if it was observed there.
KNOWN_BY_CPU_TIME = frozenset({Place.GAP, Place.LAUNCH, Place.FULL_QUEUE})
_PLACE_BY_FAMILY: Mapping[int, Place] = {
    wire.FAMILY_SYNCHRONIZE: Place.SYNCHRONIZE,
    wire.FAMILY_COPY: Place.COPY,
    # A program does these once for each kernel, module or context.
    wire.FAMILY_PREPARE: Place.FIRST_CALL,
    wire.FAMILY_KERNEL: Place.FIRST_CALL,
    wire.FAMILY_KERNEL_ALIAS: Place.FIRST_CALL,
} | dict.fromkeys(LAUNCH_FAMILIES, Place.LAUNCH)

# By what a thread was blocked on (enrich/waits/reasons.py), in any place.
_BLOCKED: Mapping[WaitReason, CauseKind] = {
    WaitReason.LOCK: CauseKind.LOCK,
    WaitReason.GIL: CauseKind.GIL,
    WaitReason.IO: CauseKind.IO,
    WaitReason.IPC: CauseKind.IPC,
    # A data loader's, or any other: what makes the items is what is waited for.
    WaitReason.QUEUE: CauseKind.IPC,
    WaitReason.NETWORK: CauseKind.NETWORK,
    WaitReason.SLEEP: CauseKind.SLEEP,
    WaitReason.PAGE_FAULT: CauseKind.PAGE_FAULT,
    WaitReason.RECLAIM: CauseKind.RECLAIM,
    WaitReason.MMAP_LOCK: CauseKind.MMAP_LOCK,
    # The wait is for another process, whatever ends it.
    WaitReason.CHILD_WAIT: CauseKind.IPC,
    WaitReason.STOPPED: CauseKind.STOPPED,
    WaitReason.FROZEN: CauseKind.FROZEN,
    WaitReason.CAPTURE: CauseKind.CAPTURE,
    WaitReason.DRIVER: CauseKind.GPU_WAIT,
}
# Other meanings in some places.
_OF_DRIVER = (WaitReason.DRIVER, WaitReason.SLEEP)
_VAGUE = (*_OF_DRIVER, WaitReason.UNKNOWN, WaitReason.NONE)
_BLOCKED_AT: Mapping[Place, Mapping[WaitReason, CauseKind]] = {
    Place.SYNCHRONIZE: dict.fromkeys((*_VAGUE, WaitReason.IPC), CauseKind.GPU_WAIT),
    Place.COPY: dict.fromkeys((*_OF_DRIVER, WaitReason.IPC), CauseKind.GPU_WAIT),
    Place.LAUNCH: dict.fromkeys(_OF_DRIVER, CauseKind.GPU_BACKPRESSURE),
    Place.FULL_QUEUE: dict.fromkeys(_OF_DRIVER, CauseKind.GPU_BACKPRESSURE),
    Place.FIRST_CALL: dict.fromkeys(_VAGUE, CauseKind.FIRST_CALL),
    Place.CHURN: dict.fromkeys(_VAGUE, CauseKind.ALLOCATOR_CHURN),
}
_ON_CPU_AT: Mapping[Place, CauseKind] = {
    Place.GAP: CauseKind.HOST_WORK,
    Place.SYNCHRONIZE: CauseKind.GPU_WAIT,
    Place.FULL_QUEUE: CauseKind.GPU_BACKPRESSURE,
    Place.FIRST_CALL: CauseKind.FIRST_CALL,
    Place.CHURN: CauseKind.ALLOCATOR_CHURN,
}

# Waits that can be the fault of the thread that ended them, so that it is followed.
FOLLOWED_REASONS = frozenset(
    {
        WaitReason.IPC,
        WaitReason.QUEUE,
        WaitReason.LOCK,
        WaitReason.GIL,
        WaitReason.UNKNOWN,
        WaitReason.CHILD_WAIT,
    }
)
# Waits with a time limit end by their timer repeatedly. The last one's waker is the thread that was
# waited for all the time.
REPEATED_KINDS = frozenset({CauseKind.IPC, CauseKind.LOCK, CauseKind.GIL})
# A wait is not a fault while the waited-for thread was itself waiting for the device, used it for the
# first time, or waited for input from outside.
_EXCUSES = frozenset({CauseKind.GPU_WAIT, CauseKind.GPU_BACKPRESSURE, CauseKind.FIRST_CALL})
_EXCUSABLE_KINDS = frozenset({CauseKind.IPC, CauseKind.LOCK, CauseKind.COLLECTIVE_WAIT})


WARM_UP_KINDS = frozenset(
    {
        CauseKind.IO,
        CauseKind.IPC,
        CauseKind.NETWORK,
        CauseKind.PAGE_FAULT,
        CauseKind.RECLAIM,
        CauseKind.MMAP_LOCK,
        CauseKind.FORK,
    }
)
"""Parts of loading libraries and making contexts, so no fault in a first call."""


def place_of(family: int) -> Place:
    """Return the place of a thread inside a call of a family."""
    return _PLACE_BY_FAMILY.get(family, Place.CALL)


def blocked_kind(reason: WaitReason, place: Place | None) -> CauseKind:
    """Return the kind of cause of blocked time."""
    at_place = _BLOCKED_AT.get(place, {}) if place else {}
    return at_place.get(reason) or _BLOCKED.get(reason, CauseKind.UNEXPLAINED)


def on_cpu_kind(place: Place) -> CauseKind:
    """Return the kind of cause of time on a CPU."""
    return _ON_CPU_AT.get(place, CauseKind.UNEXPLAINED)


def can_excuse(kind: CauseKind, waited_for: CauseKind, *, has_culprit: bool) -> bool:
    """
    Return whether a wait is excused while the waited-for thread did something.

    Args:
        kind: The wait's kind.
        waited_for: The kind of what the other thread did.
        has_culprit: Whether it is known what that thread was waiting for in turn.
    """
    # Ranks do one job: what one of them waits for does not come from outside.
    is_input = waited_for == CauseKind.IPC and not has_culprit and kind != CauseKind.COLLECTIVE_WAIT
    is_excuse = waited_for in _EXCUSES or is_input
    return kind in _EXCUSABLE_KINDS and is_excuse
