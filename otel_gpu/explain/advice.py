"""Advice for causes: what to do, in which order."""

# The order of advice
# -------------------
#
# What is behind a cause is cured first: a data loader without a CPU is late however many workers it
# has. So the deepest cause of a path comes first, and of several behind one wait the largest. The
# wait at the top gets advice only for time that no fault behind it explains: the waited-for thread
# worked, or nothing is known of it. Causes of less than a fifth of the lost time get no advice,
# except the leading one.

from collections.abc import Iterable, Iterator, Sequence

from otel_gpu.enrich.known_work import ADVICE, WorkKind
from otel_gpu.explain.chains import Cause
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.explain.kinds import CauseKind, EvidenceKind
from otel_gpu.explain.ranking import Added
from otel_gpu.explain.rules import RULE_BY_KIND
from otel_gpu.explain.severity import fault_ns

_ADVISED_SHARE = 0.2

# A failed call is a failure first: advice on what it waited for would be beside the point.
FAILED_ADVICE = "The calls failed. First check what they returned (error.type of their spans), and where they were made."


# For a wait for a CPU that no thread had. It is still a wait in a run queue. A known quota behind
# it has its own kind.
IDLE_CPU_ADVICE = "The thread was ready, no other thread had its CPU, and no CPU quota was used up. Likely the hypervisor had taken the CPU (see the steal time in /proc/stat), an interrupt occupied it, or it woke from a deep idle state: use CPUs that are not shared with other machines, keep interrupts off them, and limit idle states."


# For adapters that counted something while the device was waited for.
COUNTED_ADVICE = "Adapters of the host lost or resent packets, or were throttled, while this process waited: see the named counters. Check the port's link and cable, the switch's counters for it, and, with RoCE, priority flow control and congestion marking on the whole path. The adapter does not report how much of the wait that explains."


# For a signal that ended a process in a call.
KILLED_ADVICE = "A signal ended the process inside this call. The stack shows where the process died. SIGKILL comes from outside, for example from the kernel when memory is short: check its log. For SIGSEGV, SIGABRT and SIGBUS keep a core file (ulimit -c unlimited); Python prints where it was with PYTHONFAULTHANDLER=1."

# For an event that a network adapter reported.
ADAPTER_ADVICE = "A network adapter, a port or a queue of it failed, and transfers of this process with it. Check the kernel's log and the port's link and counters. A job that has lost a queue pair does not recover by itself: restart it, and without that adapter if it fails again."


# For a program's own work whose lines are known, and not what they do.
LINES_ADVICE = (
    "The program's own work on the CPU, in the named lines. Make the lines faster, do less of it in "
    "the loop, or move it to another thread or process."
)


def advice_of(
    kind: CauseKind,
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
        has_lines: Whether the lines on which the program worked are known.
        work: What that work was, if known.
        xid: The number of the device's error, if there was one.
        is_counted: Whether counters prove that it happened, and its duration is unknown.
    """
    if xid:
        return meaning_of(xid).advice
    if kind == CauseKind.NETWORK and is_counted:
        return COUNTED_ADVICE
    if kind == CauseKind.RUN_QUEUE and is_cpu_idle:
        return IDLE_CPU_ADVICE
    if kind == CauseKind.HOST_WORK and has_lines:
        return ADVICE[WorkKind(work)] if work else LINES_ADVICE
    return RULE_BY_KIND[kind].advice


def advise(added: Sequence[Added], kind: CauseKind, lost_ns: int) -> tuple[str, ...]:
    """
    Return the advice for causes, each once, in the order in which to follow it.

    Args:
        added: The causes, the leading one first, and what each adds to what is usual.
        kind: The leading kind; can be none of theirs.
        lost_ns: The lost time.
    """
    leads = bool(added) and added[0].cause.kind == kind
    found = [] if leads else [advice_of(kind)]
    least_ns = _least_ns(lost_ns)
    for number, (time_ns, cause) in enumerate(added):
        is_leading = leads and not number
        if is_leading or time_ns >= least_ns:
            found += _advise_path(cause, least_ns)
        if is_leading and not found:
            found.append(advice_for(cause))
    return tuple(dict.fromkeys([*found, *_counted(added)]))


def advise_failed(added: Sequence[Added], _kind: str, lost_ns: int) -> tuple[str, ...]:
    """Return the advice for calls that all failed: their usual duration does not matter."""
    found = [FAILED_ADVICE]
    least_ns = _least_ns(lost_ns)
    for _time_ns, cause in added:
        if fault_ns(cause):
            found += _advise_path(cause, least_ns)
    return tuple(dict.fromkeys([*found, *_counted(added)]))


def _least_ns(lost_ns: int) -> int:
    return max(1, round(_ADVISED_SHARE * lost_ns))


def _counted(added: Iterable[Added]) -> Iterator[str]:
    return (advice_for(one.cause) for one in added if one.cause.is_counted)


def _advise_path(cause: Cause, least_ns: int) -> Iterator[str]:
    # For what is behind a cause, the deepest first, then for the cause itself.
    left_ns = cause.time_ns
    for via in sorted(cause.via, key=lambda via: -via.time_ns):
        if via.time_ns < least_ns:
            break
        if _says_no_more(cause, via):
            yield advice_for(cause)
        else:
            yield from _advise_path(via, least_ns)
            left_ns -= fault_ns(via)
    if left_ns >= least_ns and cause.kind != CauseKind.UNEXPLAINED:
        yield advice_for(cause)


def _says_no_more(cause: Cause, via: Cause) -> bool:
    # Work whose lines are not known, and work of a holder of the GIL: moving it to another thread
    # would not help.
    is_gil = cause.kind == CauseKind.GIL and not via.lines.work
    return via.kind == CauseKind.HOST_WORK and (is_gil or via.lines.first is None)


def advice_for(cause: Cause) -> str:
    """Return the advice for one cause, without those behind it."""
    idle_ns = busy_ns = 0
    for item in cause.evidence:
        length_ns = max(0, item.end_unix_ns - item.start_unix_ns)
        if item.is_cpu_idle:
            idle_ns += length_ns
        elif item.kind == EvidenceKind.RUN_QUEUE:
            busy_ns += length_ns
    lines = cause.lines
    return advice_of(
        cause.kind,
        is_cpu_idle=idle_ns > busy_ns,
        has_lines=lines.first is not None,
        work=lines.work,
        xid=cause.trouble.xid if cause.trouble else 0,
        is_counted=cause.is_counted,
    )
