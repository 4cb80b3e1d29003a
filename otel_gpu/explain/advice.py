"""The advice of the rules, and of what they say nothing about."""

from otel_gpu.enrich.known_work import ADVICE, Work
from otel_gpu.explain.rules import RULE_BY_KIND
from otel_gpu.explain.xids import meaning_of

# A failed call is a failure first: to what it waited for, advice would be beside the point.
FAILED_ADVICE = (
    "The calls failed. Look at what they returned (error.type of their spans), and where they were "
    "made, before anything else."
)


# What to do about a wait for a CPU that no thread had. It is a wait in a run queue all the
# same; a quota that is known to be behind it has its own kind.
IDLE_CPU_ADVICE = (
    "The thread was ready, no other thread had its CPU, and no CPU quota was used up. Likely the "
    "hypervisor had taken the CPU (see the steal time in /proc/stat), an interrupt kept it, or it "
    "had to wake from a deep idle state: use CPUs that are not shared with other machines, keep "
    "interrupts off them, and limit idle states."
)


# What to do where adapters counted something while the device was waited for.
COUNTED_ADVICE = (
    "Adapters of the host lost or resent packets, or were held back, while this process waited: see the "
    "counters that are named. Look at the port's link and cable, at the switch's counters for it, and, "
    "with RoCE, at priority flow control and congestion marking on the whole path. How much of the wait "
    "that is, the adapter does not say."
)


# What to do about what a network adapter said.
ADAPTER_ADVICE = (
    "A network adapter, a port or a queue of it failed, and transfers of this process with it. Look at the "
    "kernel's log and at the port's link and counters; a job that has lost a queue pair does not go on by "
    "itself, so restart it, and without that adapter if it fails again."
)


# What to do about a program's own work of which the lines are known, and not what they do.
LINES_ADVICE = (
    "The program's own work on the CPU, in the lines that are named. Make them faster, do less of it in "
    "the loop, or move it to another thread or process."
)


def advice_of(
    kind: str,
    *,
    is_cpu_idle: bool = False,
    has_lines: bool = False,
    work: str = "",
    xid: int = 0,
    is_counted: bool = False,
) -> str:
    """
    Return the advice for a kind of cause.

    Args:
        kind: The kind.
        is_cpu_idle: Whether no thread had the CPU that was waited for.
        has_lines: Whether it is known on which lines the program worked.
        work: What that work was, if that is known.
        xid: The number of the device's error, if there was one.
        is_counted: Whether counters say that it happened, and nothing says how long it took.
    """
    if xid:
        return meaning_of(xid).advice
    if kind == "network" and is_counted:
        return COUNTED_ADVICE
    if kind == "run_queue" and is_cpu_idle:
        return IDLE_CPU_ADVICE
    if kind == "host_work" and has_lines:
        return ADVICE[Work(work)] if work else LINES_ADVICE
    return RULE_BY_KIND[kind].advice
