"""
Causes, verdicts and states in words that need no glossary, and the tone each is drawn in.

What a cause means is judged in ``explain.rules``; this is how a reader is told.
"""

from collections.abc import Mapping
from typing import NamedTuple

# One colour for all that is of one kind, in every drawing of a page.
GPU, CPU, LOCK, DATA, MEMORY, API, WORK, OTHER = (
    "gpu", "cpu", "lock", "data", "memory", "api", "work", "other"
)  # fmt: skip
WHO = "{who}"


class Phrase(NamedTuple):
    """
    How a kind of cause is told; ``{who}`` stands for its culprit.

    Each of the last three is told without a culprit where that is not known.

    Attributes:
        tone: What it is drawn in.
        name: A word or two, for labels.
        because: A clause that says what happened to the thread that was slow.
        which: A relative clause, of another thread that was waited for.
        fault: Whose fault it is.
    """

    tone: str
    name: str
    because: tuple[str, str]
    which: tuple[str, str]
    fault: tuple[str, str]


def _phrase(
    tone: str, name: str, because: str, which: str, fault: str, without: tuple[str, ...] = ()
) -> Phrase:
    others = without or (because, which, fault)
    told = ((because, others[0]), (which, others[1]), (fault, others[2]))
    return Phrase(tone, name, *told)


PHRASES: Mapping[str, Phrase] = {
    "preemption": _phrase(
        CPU,
        "preempted",
        "{who} took its CPU away",
        "which {who} preempted",
        "{who}",
        (
            "Another thread took its CPU away",
            "which was preempted",
            "another thread; which one was not seen",
        ),
    ),
    "run_queue": _phrase(
        CPU,
        "waited for a CPU",
        "It was ready to run, and {who} had the CPU",
        "which {who} kept from running",
        "{who}",
        (
            "It was ready to run, and no CPU was free",
            "which waited for a CPU",
            "whoever had the CPU; that was not seen",
        ),
    ),
    "idle_cpu": _phrase(
        CPU,
        "waited for a CPU",
        "It was ready to run, and no thread had its CPU",
        "which was ready to run, and no thread had its CPU",
        "no thread's: the hypervisor, an interrupt, or a CPU that was slow to wake",
    ),
    "cpu_quota": _phrase(
        CPU,
        "CPU quota used up",
        "Its cgroup had used up its CPU quota",
        "whose cgroup had used up its CPU quota",
        "the CPU limit of its cgroup",
    ),
    "lock": _phrase(
        LOCK,
        "waited for a lock",
        "It waited for a lock of {who}",
        "which waited for a lock of {who}",
        "{who}",
        (
            "It waited for a lock",
            "which waited for a lock",
            "not known: who held the lock was not seen",
        ),
    ),
    "gil": _phrase(
        LOCK,
        "waited for the GIL",
        "It waited for Python's GIL, held by {who}",
        "which waited for the GIL, held by {who}",
        "{who}",
        (
            "It waited for Python's GIL",
            "which waited for the GIL",
            "another Python thread; which one was not seen",
        ),
    ),
    "io": _phrase(
        DATA,
        "waited for a disk",
        "It waited for a disk or file system",
        "which waited for a disk or file system",
        "the disk or file system",
    ),
    "ipc": _phrase(
        DATA,
        "waited for data",
        "It waited for data from {who}",
        "which waited for data from {who}",
        "{who}",
        (
            "It waited for data from outside of what was watched",
            "which waited for data from outside",
            "not known: the sender was not seen",
        ),
    ),
    "sleep": _phrase(
        DATA,
        "slept",
        "It slept",
        "which slept",
        "{who}, which chose to sleep",
        ("It slept", "which slept", "the program, which chose to sleep"),
    ),
    "page_fault": _phrase(
        MEMORY,
        "waited for a page",
        "It waited for memory to be paged in",
        "which waited for memory to be paged in",
        "the host: the memory was not in RAM",
    ),
    "reclaim": _phrase(
        MEMORY,
        "reclaimed memory",
        "Memory was short, and the kernel used its time to free some",
        "whose time the kernel used to free memory",
        "a memory limit, or the host's want of memory",
    ),
    "mmap_lock": _phrase(
        MEMORY,
        "waited for its address space",
        "It waited while another thread changed their address space",
        "which waited while its address space was changed",
        "another thread of the same program",
    ),
    "fork": _phrase(
        MEMORY,
        "fork",
        "{who} forked, which copied the page tables of a large process",
        "whose process was forked",
        "{who}, which forks while it is large",
        (
            "A fork copied the page tables of a large process",
            "whose process was forked",
            "the program, which forks while it is large",
        ),
    ),
    "stopped": _phrase(
        OTHER,
        "stopped by a signal",
        "It was stopped by a signal until {who} let it go on",
        "which was stopped by a signal",
        "{who}, or who else sent the signal",
        (
            "It was stopped by a signal",
            "which was stopped by a signal",
            "whoever sent the signal",
        ),
    ),
    "capture": _phrase(
        OTHER,
        "stopped for the capture",
        "otel-gpu stopped it while it placed its probes",
        "which otel-gpu stopped while it placed its probes",
        "nobody in the program: the capture did it, once for a library",
    ),
    "gpu_wait": _phrase(
        GPU,
        "waited for the GPU",
        "It waited for the GPU",
        "which waited for the GPU",
        "nobody on the host: the device was busy",
    ),
    "gpu_backpressure": _phrase(
        GPU,
        "launch queue full",
        "The GPU's launch queue was full",
        "which waited for room in the GPU's launch queue",
        "nobody on the host: the device was behind",
    ),
    "first_call": _phrase(
        API,
        "first use",
        "It was the first use of CUDA: libraries were loaded and contexts made",
        "which used CUDA for the first time",
        "nobody: this is warm-up",
    ),
    "allocator_churn": _phrase(
        MEMORY,
        "allocator churn",
        "Device memory was allocated and freed again and again, ever slower",
        "whose device allocations got ever slower",
        "the program's use of the device allocator",
    ),
    "host_work": _phrase(
        WORK,
        "its own work",
        "The program worked on the CPU",
        "which was working on a CPU",
        "the work of {who}",
        (
            "The program worked on the CPU",
            "which was working on a CPU",
            "the program's own work",
        ),
    ),
    "off_cpu": _phrase(
        OTHER,
        "off the CPU",
        "It was off the CPU; for what was not captured",
        "which was off the CPU",
        "not known: the capture does not say what it waited for",
    ),
    "unexplained": _phrase(
        OTHER,
        "unexplained",
        "What it did was not seen",
        "which did what was not seen",
        "not known",
    ),
}

VERDICTS: Mapping[str, str] = {
    "gpu-bound": "More than half of its time it waited for the GPU.",
    "cpu-bound": "More than half of its time it worked on a CPU, or waited for one.",
    "data-bound": "More than half of its time it waited for data, or slept.",
    "lock-bound": "More than half of its time it waited for locks that other threads held.",
    "memory-bound": "More than half of its time went to allocating, freeing or paging memory.",
    "mixed": "Nothing took more than half of its time.",
    "unknown": "Too little was seen of threads that feed the GPU.",
}
UNKNOWN_VERDICT = "unknown"

CLASSES: Mapping[str, tuple[str, str]] = {
    "gpu": (GPU, "waiting for the GPU"),
    "cpu": (CPU, "CPU: working or waiting for one"),
    "lock": (LOCK, "locks"),
    "data": (DATA, "data: disks, other processes, sleep"),
    "memory": (MEMORY, "memory: allocating, paging"),
    "api": (API, "inside CUDA calls"),
    "other": (OTHER, "other"),
}

STATES: Mapping[str, tuple[str, str]] = {
    "gpu_wait": (GPU, "waiting for the GPU"),
    "api": (API, "inside CUDA calls"),
    "host": (WORK, "its own work"),
    "run_queue": (CPU, "waiting for a CPU"),
    "lock": (LOCK, "locks"),
    "gil": (LOCK, "Python's GIL"),
    "io": (DATA, "disks"),
    "ipc": (DATA, "data from others"),
    "sleep": (DATA, "sleep"),
    "paging": (MEMORY, "paging"),
    "other": (OTHER, "other"),
}
