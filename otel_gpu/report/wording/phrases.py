"""
The words for causes, verdicts, states and contexts, for all renderers.

``explain.rules`` decides what a cause means; this module only names it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.report.document import (
    Bound,
    CauseKind,
    Context,
    EffectKind,
    ThreadState,
    TimeClass,
    TimeState,
)

# All that concerns one resource has one colour.
GPU, CPU, LOCK, DATA, MEMORY, API, WORK, OTHER = (
    "gpu", "cpu", "lock", "data", "memory", "api", "work", "other"
)  # fmt: skip
WHO = "{who}"
IDLE_CPU = "idle_cpu"
"""A run queue wait in which no thread had the CPU."""
COUNTED = "counted"
"""Network losses counted by adapters; how long they took is not known."""


class Phrase(NamedTuple):
    """
    The words for a kind of cause; ``{who}`` stands for its culprit.

    The text after ``|`` is used if the culprit is not known.

    Attributes:
        tone: Its colour.
        name: A label of a word or two.
        because: A clause on what happened to the slow thread.
        which: A relative clause on another thread that was waited for.
        fault: The culprit.
    """

    tone: str
    name: str
    because: str
    which: str
    fault: str


PHRASES: Mapping[str, Phrase] = {
    CauseKind.PREEMPTION: Phrase(
        CPU,
        "preempted",
        because="{who} took its CPU away|Another thread took its CPU away",
        which="which {who} preempted|which was preempted",
        fault="{who}|another thread; which one was not seen",
    ),
    CauseKind.RUN_QUEUE: Phrase(
        CPU,
        "waited for a CPU",
        because="It was ready to run, and {who} had the CPU|It was ready to run, and no CPU was free",
        which="which {who} kept from running|which waited for a CPU",
        fault="{who}|the thread that had the CPU; which one was not seen",
    ),
    IDLE_CPU: Phrase(
        CPU,
        "waited for a CPU",
        because="It was ready to run, and no thread had its CPU",
        which="which was ready to run, and no thread had its CPU",
        fault="no thread's: the hypervisor, an interrupt, or a CPU that was slow to wake",
    ),
    CauseKind.CPU_QUOTA: Phrase(
        CPU,
        "CPU quota used up",
        because="Its cgroup had used up its CPU quota",
        which="whose cgroup had used up its CPU quota",
        fault="the CPU limit of its cgroup",
    ),
    CauseKind.LOCK: Phrase(
        LOCK,
        "waited for a lock",
        because="It waited for a lock of {who}|It waited for a lock",
        which="which waited for a lock of {who}|which waited for a lock",
        fault="{who}|not known: who held the lock was not seen",
    ),
    CauseKind.GIL: Phrase(
        LOCK,
        "waited for the GIL",
        because="It waited for Python's GIL, held by {who}|It waited for Python's GIL",
        which="which waited for the GIL, held by {who}|which waited for the GIL",
        fault="{who}|another Python thread; which one was not seen",
    ),
    CauseKind.IO: Phrase(
        DATA,
        "waited for a disk",
        because="It waited for a disk or file system",
        which="which waited for a disk or file system",
        fault="the disk or file system",
    ),
    CauseKind.IPC: Phrase(
        DATA,
        "waited for data",
        because="It waited for data from {who}|It waited for data from outside of what was watched",
        which="which waited for data from {who}|which waited for data from outside",
        fault="{who}|not known: the sender was not seen",
    ),
    CauseKind.NETWORK: Phrase(
        DATA,
        "waited for another host",
        because="It waited for another host",
        which="which waited for another host",
        fault="the network, or the host at its other end",
    ),
    COUNTED: Phrase(
        DATA,
        "network losses",
        because="The cause was not seen, and the host's adapters counted losses in this time",
        which="while the host's adapters counted losses",
        fault="not known; the network may have a part in it",
    ),
    CauseKind.SLEEP: Phrase(
        DATA,
        "slept",
        because="It slept",
        which="which slept",
        fault="{who}, which chose to sleep|the program, which chose to sleep",
    ),
    CauseKind.PAGE_FAULT: Phrase(
        MEMORY,
        "waited for a page",
        because="It waited for memory to be paged in",
        which="which waited for memory to be paged in",
        fault="the host: the memory was not in RAM",
    ),
    CauseKind.RECLAIM: Phrase(
        MEMORY,
        "reclaimed memory",
        because="Memory was short, and the kernel used its time to free some",
        which="whose time the kernel used to free memory",
        fault="a memory limit, or the host's want of memory",
    ),
    CauseKind.MMAP_LOCK: Phrase(
        MEMORY,
        "waited for its address space",
        because="It waited while another thread changed their address space",
        which="which waited while its address space was changed",
        fault="another thread of the same program",
    ),
    CauseKind.FORK: Phrase(
        MEMORY,
        "fork",
        because="{who} forked, which copied the page tables of a large process"
        "|A fork copied the page tables of a large process",
        which="whose process was forked",
        fault="{who}, which forks while it is large|the program, which forks while it is large",
    ),
    CauseKind.STOPPED: Phrase(
        OTHER,
        "stopped by a signal",
        because="It was stopped by a signal until {who} let it go on|It was stopped by a signal",
        which="which was stopped by a signal",
        fault="{who}, or the process that sent the signal|the process that sent the signal",
    ),
    CauseKind.FROZEN: Phrase(
        OTHER,
        "frozen by its cgroup",
        because="The freezer of its cgroup stopped it",
        which="which the freezer of its cgroup stopped",
        fault="what froze its cgroup; that was not seen",
    ),
    CauseKind.CAPTURE: Phrase(
        OTHER,
        "stopped for the capture",
        because="otel-gpu stopped it while it placed its probes",
        which="which otel-gpu stopped while it placed its probes",
        fault="otel-gpu, not the program: once for each library",
    ),
    CauseKind.GPU_WAIT: Phrase(
        GPU,
        "waited for the GPU",
        because="It waited for the GPU",
        which="which waited for the GPU",
        fault="no program on the host: the device was busy",
    ),
    CauseKind.GPU_BACKPRESSURE: Phrase(
        GPU,
        "launch queue full",
        because="The GPU's launch queue was full",
        which="which waited until the GPU's launch queue had space",
        fault="no program on the host: the device was behind",
    ),
    CauseKind.FIRST_CALL: Phrase(
        API,
        "first use",
        because="It was the first use of CUDA: libraries were loaded and contexts made",
        which="which used CUDA for the first time",
        fault="none: this is warm-up",
    ),
    CauseKind.ALLOCATOR_CHURN: Phrase(
        MEMORY,
        "allocator churn",
        because="Device memory was allocated and freed many times, ever slower",
        which="whose device allocations got ever slower",
        fault="the program's use of the device allocator",
    ),
    CauseKind.EMPTY_CACHE: Phrase(
        MEMORY,
        "cache released",
        because="The allocator released its cache to the device, and allocated it again",
        which="which released the allocator's cache",
        fault="the program, which empties the allocator's cache",
    ),
    CauseKind.ALLOCATION_RETRY: Phrase(
        MEMORY,
        "allocation retried",
        because="The device had no free memory until the allocator released its cache",
        which="which had to release the allocator's cache",
        fault="the program, which needs nearly all of the device",
    ),
    CauseKind.ALLOCATOR_BYPASS: Phrase(
        MEMORY,
        "allocated past the allocator",
        because="Device memory was allocated past the framework's allocator",
        which="which allocated past the framework's allocator",
        fault="the program, or a library of it, that allocates itself",
    ),
    CauseKind.EXHAUSTED: Phrase(
        MEMORY,
        "device exhausted",
        because="The program needed more memory than there is",
        which="which needed more memory than there is",
        fault="the program, which needs more than the device has",
    ),
    CauseKind.FITTING_HOLE: Phrase(
        MEMORY,
        "a hole that fits was not used",
        because="A hole that fits was free, and was not used",
        which="whose request would have fitted into a hole",
        fault="the allocator, which did not use a hole that fits",
    ),
    CauseKind.PRIVATE_POOL: Phrase(
        MEMORY,
        "private pool holds it",
        because="A private pool keeps enough free memory, and does not release it",
        which="whose memory a private pool kept",
        fault="the CUDA graphs or the MemPool that the pool belongs to",
    ),
    CauseKind.OTHER_STREAM: Phrase(
        MEMORY,
        "free for another stream",
        because="Enough memory was free, for another stream only",
        which="whose memory was free for another stream only",
        fault="the lines that allocate on another stream",
    ),
    CauseKind.KEPT_CACHE: Phrase(
        MEMORY,
        "cache not released",
        because="The allocator kept enough free memory, and did not release it",
        which="whose allocator kept its cache",
        fault="the allocator, which releases nothing while a graph is captured",
    ),
    CauseKind.FRAGMENTATION: Phrase(
        MEMORY,
        "fragmented memory",
        because="Enough memory was free, in holes that were too small",
        which="whose free memory was in holes",
        fault="the lines whose blocks keep the holes apart",
    ),
    CauseKind.OTHER_PROCESS: Phrase(
        MEMORY,
        "device held by others",
        because="Other processes held the memory of the device",
        which="whose device memory other processes held",
        fault="another process on the device, or memory outside of the allocator",
    ),
    CauseKind.LEAK: Phrase(
        MEMORY,
        "memory leak",
        because="More and more memory was held from step to step",
        which="which held more and more memory",
        fault="the line that keeps what it allocates",
    ),
    CauseKind.HOST_WORK: Phrase(
        WORK,
        "its own work",
        because="The program worked on the CPU",
        which="which was working on a CPU",
        fault="the work of {who}|the program's own work",
    ),
    CauseKind.GPU_CLOCKS: Phrase(
        GPU,
        "GPU clocks limited",
        because="The clocks of its GPU were limited",
        which="which waited for a GPU whose clocks were limited",
        fault="what limits the clocks of the device",
    ),
    CauseKind.GPU_FAULT: Phrase(
        GPU,
        "GPU error",
        because="Its GPU had an error",
        which="whose GPU had an error",
        fault="the device, or what the program made it do",
    ),
    CauseKind.COLLECTIVE_WAIT: Phrase(
        GPU,
        "waited for another rank",
        because="It waited in a collective for {who}|It waited in a collective for another rank",
        which="which waited in a collective for {who}|which waited in a collective for another rank",
        fault="{who}, which the others waited for|the rank that came last; which one was not seen",
    ),
    CauseKind.COLLECTIVE_MISMATCH: Phrase(
        GPU,
        "ranks disagree",
        because="It waited in a collective for which {who} asked for something else"
        "|It waited in a collective for which ranks asked for different things",
        which="which waited in a collective that ranks disagree about",
        fault="{who}, which asked for something else|the program, whose ranks disagree",
    ),
    CauseKind.COLLECTIVE_STUCK: Phrase(
        GPU,
        "collective stuck",
        because="It waited in a collective that does not end",
        which="which waited in a collective that does not end",
        fault="the device, the network, or a rank on another host",
    ),
    CauseKind.UNEXPLAINED: Phrase(
        OTHER,
        "unexplained",
        because="What it did was not seen",
        which="which did what was not seen",
        fault="not known",
    ),
}

ONE_EFFECT: Mapping[str, str] = {
    EffectKind.SLOW_CALL: "a slow ",
    EffectKind.SLOW_GAP: "a slow gap before ",
    EffectKind.HUNG_CALL: "a hanging ",
    EffectKind.FAILED_CALL: "a failed ",
    EffectKind.KILLED_CALL: "a death in ",
    EffectKind.OUT_OF_MEMORY: "a failed request for memory ",
    EffectKind.DEVICE_FAULT: "an error of its GPU",
    EffectKind.NETWORK_EVENT: "an event of a network adapter: ",
    EffectKind.HUNG_COLLECTIVE: "a hanging collective ",
    EffectKind.USUAL_CALL: "",
    EffectKind.USUAL_GAP: "a gap before ",
}
"""The words for a single effect, before the name of its call."""

CONTEXTS: Mapping[str, str] = {
    Context.GAP: "between calls",
    Context.SYNCHRONIZE: "waiting for the GPU",
    Context.CALL: "inside a call",
    Context.OTHER: "makes no calls",
}
"""Contexts in which a thread was off the CPU."""

THREAD_STATES: Mapping[str, str] = {
    ThreadState.RUN_QUEUE: "waited for a CPU",
    ThreadState.BLOCKED: "blocked",
}
OWN_STOP = "stopped by otel-gpu, while it placed its probes"
"""The words for ``BLOCKED`` when the capture itself is the reason."""
LOST_CPU = "waited for a CPU: its own was taken"
"""The words for ``RUN_QUEUE`` of a preempted thread."""

VERDICTS: Mapping[str, str] = {
    Bound.GPU: "Most of its time it waited for the GPU.",
    Bound.CPU: "Most of its time its own code ran on a CPU.",
    Bound.STARVED: "Most of its time it was ready to run and had no CPU: another thread had it, or its CPU "
    "quota was used up.",
    Bound.COMMUNICATION: "Most of its time it waited for other ranks, which came later to a collective.",
    Bound.DATA: "Most of its time it waited for data.",
    Bound.LOCK: "Most of its time it waited for locks that other threads held.",
    Bound.MEMORY: "Most of its time went to allocating, freeing or paging memory.",
    Bound.IDLE: "Most of its time it slept, because it chose to, or waited for requests.",
    Bound.STOPPED: "Most of its time it was stopped, by a signal, a debugger or the freezer of its cgroup.",
    Bound.MIXED: "No single thing took clearly most of its time.",
    Bound.UNKNOWN: "Too little was seen of launching threads.",
}

CLASSES: Mapping[str, tuple[str, str]] = {
    TimeClass.GPU: (GPU, "waiting for the GPU"),
    TimeClass.COMMUNICATION: (GPU, "waiting for other ranks"),
    TimeClass.CPU: (WORK, "its own work on a CPU"),
    TimeClass.STARVED: (CPU, "waiting for a CPU"),
    TimeClass.LOCK: (LOCK, "locks"),
    TimeClass.DATA: (DATA, "data: disks, other processes"),
    TimeClass.MEMORY: (MEMORY, "memory: allocating, paging"),
    TimeClass.API: (API, "inside CUDA calls"),
    TimeClass.SLEEP: (OTHER, "its own sleep"),
    TimeClass.IDLE: (OTHER, "idle: nothing was asked of it"),
    TimeClass.STOPPED: (OTHER, "stopped: by a signal, a debugger or its cgroup"),
    TimeClass.OTHER: (OTHER, "other"),
}
"""The classes that a verdict compares, with tone and words."""

STATES: Mapping[str, tuple[str, str]] = {
    TimeState.GPU_WAIT: (GPU, "waiting for the GPU"),
    TimeState.API: (API, "inside CUDA calls"),
    TimeState.HOST: (WORK, "its own work"),
    TimeState.RUN_QUEUE: (CPU, "waiting for a CPU"),
    TimeState.LOCK: (LOCK, "locks"),
    TimeState.GIL: (LOCK, "Python's GIL"),
    TimeState.IO: (DATA, "disks"),
    TimeState.IPC: (DATA, "data from others"),
    TimeState.SLEEP: (DATA, "sleep"),
    TimeState.PAGING: (MEMORY, "paging"),
    TimeState.STOPPED: (OTHER, "stopped: by a signal, a debugger or its cgroup"),
    TimeState.OTHER: (OTHER, "other"),
    TimeState.IDLE: (OTHER, "idle: nothing was asked of it"),
}
"""The states of the time budget, in fixed order, with tone and words."""


def tone_of(kind: str) -> str:
    """Return the colour of a kind of cause."""
    phrase = PHRASES.get(kind)
    return phrase.tone if phrase else OTHER
