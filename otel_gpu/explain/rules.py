"""
The rules of explanation: what each measured state means where it was measured, and what to do.

All judgement is in the tables of this module; the other modules of the package measure.
"""

# Some facts about waiting inside CUDA calls
#     ------------------------------------------
#
# A call that synchronizes has nothing to do but wait for the device, and the driver chooses how: it
# spins, sleeps between two queries, polls a file of its own, or lets the driver's interrupt wake
# it. None of that is the host's fault. The host can make the thread wait once more after the device
# was done: for a CPU, for a lock, for a page.
#
# A launch returns once the work is queued. One that takes long and used a CPU found the queue full:
# the device is behind, and more CPU would not help.

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu import wire

# What is at fault. Only a fault of the host makes an incident more than low.
FAULT = "host"
# A fault if the waited-for thread is known; else it can have been input from outside.
FAULT_OF_CULPRIT = "culprit"
NO_FAULT = "nobody"


class CauseRule(NamedTuple):
    """What a kind of cause means: what is at fault, and what to do about it."""

    kind: str
    fault: str
    advice: str


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        "preemption",
        FAULT,
        "Another thread took the CPU away. Give the process CPUs of its own (cpuset, taskset), "
        "or lower the other's priority.",
    ),
    CauseRule(
        "run_queue",
        FAULT,
        "The thread was ready and its CPU was busy. Move the other load off the CPUs of the "
        "threads that feed the GPU, or start fewer workers than there are CPUs.",
    ),
    CauseRule(
        "cpu_quota",
        FAULT,
        "The cgroup's CPU quota was used up. Raise cpu.max (the container's CPU limit), or use "
        "fewer threads.",
    ),
    CauseRule(
        "lock",
        FAULT_OF_CULPRIT,
        "The thread waited for another thread of its program. Shorten what the holder does "
        "meanwhile, or share less.",
    ),
    CauseRule(
        "gil",
        FAULT,
        "Another Python thread held the GIL. Move its work to another process, or to native code "
        "that releases the GIL.",
    ),
    CauseRule(
        "io",
        FAULT,
        "The thread waited for a disk or file system. Prefetch, cache, or write in another thread.",
    ),
    CauseRule(
        "ipc",
        FAULT_OF_CULPRIT,
        "The thread waited for data from another thread or process. See what the sender did "
        "meanwhile; for a data loader, raise workers or prefetching.",
    ),
    CauseRule(
        "network",
        FAULT,
        "The thread waited for another host. Prefetch in other threads, keep copies on a local disk, "
        "or move the data closer; where segments are sent again, look at the network itself.",
    ),
    CauseRule(
        "sleep", NO_FAULT, "The program slept. Find the sleep, or the polling loop around it."
    ),
    CauseRule(
        "page_fault",
        FAULT,
        "The thread waited for memory to be paged in. Pin or pre-touch buffers, and keep files "
        "that are mapped on fast storage.",
    ),
    CauseRule(
        "reclaim",
        FAULT,
        "The kernel freed memory on the thread's time. Raise the memory limit, or use less page "
        "cache.",
    ),
    CauseRule(
        "mmap_lock",
        FAULT,
        "The thread waited for its address space, which another thread was changing. Map, unmap "
        "and allocate less in the others.",
    ),
    CauseRule(
        "fork",
        FAULT,
        "A fork copied the page tables of a large process and stopped its threads meanwhile. "
        "Start children early, or from a small helper (spawn, forkserver).",
    ),
    CauseRule(
        "stopped",
        FAULT,
        "The process was stopped by a signal or a debugger. Find who sends SIGSTOP.",
    ),
    CauseRule(
        "frozen",
        FAULT,
        "The cgroup of the process was frozen (cgroup.freeze, or freezer.state of version 1), and no signal "
        "stopped it. Find what freezes it: a paused container, a checkpoint, or a batch scheduler that "
        "suspends jobs.",
    ),
    CauseRule(
        "capture",
        NO_FAULT,
        "otel-gpu stopped the process while it placed its probes in a library that was loaded. "
        "That is done once for a library: a service that is watched with --pid is not stopped.",
    ),
    CauseRule(
        "gpu_wait",
        NO_FAULT,
        "The host waited for the device, as it was told to. Nothing on the host would make this "
        "faster: profile the kernels.",
    ),
    CauseRule(
        "gpu_backpressure",
        NO_FAULT,
        "The launch queue was full: the device is behind and the host waits for it. Profile the "
        "kernels; more CPU would not help.",
    ),
    CauseRule(
        "first_call",
        NO_FAULT,
        "First use: libraries and modules are loaded and contexts made. Warm up before it counts.",
    ),
    CauseRule(
        "allocator_churn",
        FAULT,
        "Device allocations get slower from window to window. Allocate once, use a pool "
        "(cudaMallocAsync, a caching allocator), and look for fragmentation.",
    ),
    CauseRule(
        "empty_cache",
        FAULT,
        "The cache of the allocator is given back again and again, and what it held is allocated anew: "
        "each of these calls waits for the device. Do not call torch.cuda.empty_cache() in the loop.",
    ),
    CauseRule(
        "allocation_retry",
        FAULT,
        "The device had no more, so the allocator gave back its whole cache and tried again, over and "
        "over. Use less memory, or leave others less of the device.",
    ),
    CauseRule(
        "allocator_bypass",
        FAULT,
        "Memory is allocated past the framework's allocator, which would have kept it: each of these "
        "calls waits for the device. Allocate it once, or from the framework's pool.",
    ),
    CauseRule(
        "exhausted",
        FAULT,
        "The program needs more memory than there is. Use a smaller batch, or activation checkpointing.",
    ),
    CauseRule(
        "fitting_hole",
        FAULT,
        "A hole that fits was free, and was not used. Ask once more.",
    ),
    CauseRule(
        "private_pool",
        FAULT,
        "A private pool keeps enough free memory. Let go of CUDA graphs that are not replayed any more, or of the "
        "torch.cuda.MemPool.",
    ),
    CauseRule(
        "other_stream",
        FAULT,
        "Enough memory is free, for another stream. Allocate on one stream what is to use the same memory.",
    ),
    CauseRule(
        "kept_cache",
        FAULT,
        "The allocator did not give back what is free. Empty its cache before a CUDA graph is captured.",
    ),
    CauseRule(
        "fragmentation",
        FAULT,
        "Enough memory was free, in holes that were too small. Let segments grow "
        "(expandable_segments:True), or allocate what is large before what is small.",
    ),
    CauseRule(
        "other_process",
        FAULT,
        "Others hold much of the device. Look who uses it, and give each its share with "
        "torch.cuda.set_per_process_memory_fraction().",
    ),
    CauseRule(
        "leak",
        FAULT,
        "More and more memory is held from step to step. Let go of what the named line keeps.",
    ),
    CauseRule("unexplained", NO_FAULT, "What this time went to was not seen."),
    CauseRule(
        "host_work",
        NO_FAULT,
        "The program's own work on the CPU, between CUDA calls. Profile it, or move it to another "
        "thread or process.",
    ),
    CauseRule(
        "gpu_clocks",
        FAULT,
        "The clocks of the device were limited. By heat (sw_thermal, hw_thermal): look at its cooling; by "
        "power (sw_power_cap, hw_power_brake): at its power limit (nvidia-smi -q -d POWER,PERFORMANCE) and the "
        "supply; by sync_boost: at the other devices of its group.",
    ),
    CauseRule(
        "gpu_fault",
        FAULT,
        "The device had an error. Look at the kernel's log around that time, and at nvidia-smi -q -d ECC.",
    ),
    CauseRule(
        "collective_wait",
        FAULT_OF_CULPRIT,
        "A rank came late to a collective, and all others waited. What kept it is below: give it the CPU, "
        "data or device that it lacks, or divide the work evenly among the ranks.",
    ),
    CauseRule(
        "collective_mismatch",
        FAULT,
        "Ranks asked for different things in one collective, which cannot end. Look at the calls of the rank "
        "that differs: all have to make the same calls of a communicator in the same order.",
    ),
    CauseRule(
        "collective_stuck",
        FAULT,
        "All ranks that are seen called the collective, and it does not end. Look for errors of the device and "
        "of the network (nvidia-smi, dmesg, counters of the adapters), and at the ranks on other hosts.",
    ),
)


RULE_BY_KIND: Mapping[str, CauseRule] = {rule.kind: rule for rule in RULES}
KINDS: tuple[str, ...] = tuple(RULE_BY_KIND)
RANK: Mapping[str, int] = {kind: rank for rank, kind in enumerate(KINDS)}

# Where a thread is, for the meaning of its time.
GAP = "gap"
SYNCHRONIZE = "synchronize"
COPY = "copy"
LAUNCH = "launch"
FULL_QUEUE = "full queue"
FIRST_CALL = "first call"
CHURN = "churn"
CALL = "call"

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
KNOWN_BY_CPU_TIME = frozenset({GAP, LAUNCH, FULL_QUEUE})
_PLACE_BY_FAMILY: Mapping[int, str] = {
    wire.FAMILY_SYNCHRONIZE: SYNCHRONIZE,
    wire.FAMILY_COPY: COPY,
    # A program does these once for each kernel, module or context.
    wire.FAMILY_PREPARE: FIRST_CALL,
    wire.FAMILY_KERNEL: FIRST_CALL,
    wire.FAMILY_KERNEL_ALIAS: FIRST_CALL,
} | dict.fromkeys(LAUNCH_FAMILIES, LAUNCH)

# By what a thread was blocked on (enrich/waits/reasons.py), in any place.
_BLOCKED: Mapping[str, str] = {
    "lock": "lock",
    "gil": "gil",
    "io": "io",
    "ipc": "ipc",
    # A data loader's, or any other: what makes the items is what is waited for.
    "queue": "ipc",
    "network": "network",
    "sleep": "sleep",
    "page_fault": "page_fault",
    "reclaim": "reclaim",
    "mmap_lock": "mmap_lock",
    # The wait is for another process, whatever ends it.
    "child_wait": "ipc",
    "stopped": "stopped",
    "frozen": "frozen",
    "capture": "capture",
    "driver": "gpu_wait",
}
# Other meanings in some places.
_BLOCKED_AT: Mapping[str, Mapping[str, str]] = {
    SYNCHRONIZE: dict.fromkeys(("driver", "unknown", "", "sleep", "ipc"), "gpu_wait"),
    COPY: dict.fromkeys(("driver", "sleep", "ipc"), "gpu_wait"),
    LAUNCH: dict.fromkeys(("driver", "sleep"), "gpu_backpressure"),
    FULL_QUEUE: dict.fromkeys(("driver", "sleep"), "gpu_backpressure"),
    FIRST_CALL: dict.fromkeys(("driver", "unknown", "", "sleep"), "first_call"),
    CHURN: dict.fromkeys(("driver", "unknown", "", "sleep"), "allocator_churn"),
}
_ON_CPU_AT: Mapping[str, str] = {
    GAP: "host_work",
    SYNCHRONIZE: "gpu_wait",
    FULL_QUEUE: "gpu_backpressure",
    FIRST_CALL: "first_call",
    CHURN: "allocator_churn",
}

# Waits that can be the fault of the thread that ended them, so that it is followed.
FOLLOWED_REASONS = frozenset({"ipc", "queue", "lock", "gil", "unknown", "child_wait"})
# Waits with a time limit end by their timer repeatedly. The last one's waker is the thread that was
# waited for all the time.
REPEATED_KINDS = frozenset({"ipc", "lock", "gil"})
# A wait is not a fault while the waited-for thread was itself waiting for the device, used it for the
# first time, or waited for input from outside.
_EXCUSES = frozenset({"gpu_wait", "gpu_backpressure", "first_call"})
_EXCUSABLE_KINDS = frozenset({"ipc", "lock", "collective_wait"})


WARM_UP_KINDS = frozenset({"io", "ipc", "network", "page_fault", "reclaim", "mmap_lock", "fork"})
"""Parts of loading libraries and making contexts, so no fault in a first call."""


def place_of(family: int) -> str:
    """Return the place of a thread inside a call of a family."""
    return _PLACE_BY_FAMILY.get(family, CALL)


def blocked_kind(reason: str, place: str) -> str:
    """Return the kind of cause of blocked time."""
    at_place = _BLOCKED_AT.get(place, {})
    return at_place.get(reason) or _BLOCKED.get(reason, "unexplained")


def on_cpu_kind(place: str) -> str:
    """Return the kind of cause of time on a CPU."""
    return _ON_CPU_AT.get(place, "unexplained")


def can_excuse(kind: str, waited_for: str, *, has_culprit: bool) -> bool:
    """
    Return whether a wait is excused while the waited-for thread did something.

    Args:
        kind: The wait's kind.
        waited_for: The kind of what the other thread did.
        has_culprit: Whether it is known what that thread was waiting for in turn.
    """
    # Ranks do one job: what one of them waits for does not come from outside.
    is_input = waited_for == "ipc" and not has_culprit and kind != "collective_wait"
    is_excuse = waited_for in _EXCUSES or is_input
    return kind in _EXCUSABLE_KINDS and is_excuse
