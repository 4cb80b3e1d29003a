"""Evidence: the measured intervals that causes rest on, each with its span's id."""

from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.decode.events import CudaCall, Gap, OpenCall
from otel_gpu.enrich.activities import (
    CallActivity,
    CallStack,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
)
from otel_gpu.explain.chains import Culprit, Evidence


def culprit_of(stall: StallActivity) -> Culprit | None:
    """Return who had the CPU that a thread waited for, if that is known."""
    event = stall.event
    if not event.culprit_tid:
        return None
    return Culprit(event.culprit_pid, event.culprit_tid, event.culprit_comm)


def stack_of(activity: CallActivity | GapActivity | OpenCallActivity) -> CallStack | None:
    """Return where in the program a call was made, if that is known; a gap has no one place."""
    return None if isinstance(activity, GapActivity) else activity.stack


def of_blocked(stall: StallActivity, waker: Culprit | None) -> Evidence:
    """Return the part of a stall in which the thread could not run, and who ended it."""
    event = stall.event
    return Evidence(
        f"blocked-{event.pid}-{event.tid}-{event.start_ktime_ns}",
        "blocked",
        stall.start_unix_ns,
        stall.runnable_unix_ns,
        None,
        waker,
        stall.reason,
        stall.functions,
        stall.span_id,
        stall.stack,
    )


def of_run_queue(stall: StallActivity) -> Evidence:
    """Return the part of a stall in which the thread waited for a CPU."""
    event = stall.event
    return Evidence(
        f"run_queue-{event.pid}-{event.tid}-{event.start_ktime_ns}",
        "run_queue",
        stall.runnable_unix_ns,
        stall.end_unix_ns,
        culprit_of(stall),
        None,
        "",
        (),
        stall.run_queue_span_id,
        is_cpu_idle=bool(event.flags & wire.STALL_IDLE_CPU),
    )


def of_off_cpu(stall: StallActivity) -> Evidence:
    """Return a stall of which it is not known whether the thread was blocked or could run."""
    event = stall.event
    return Evidence(
        f"off_cpu-{event.pid}-{event.tid}-{event.start_ktime_ns}",
        "off_cpu",
        stall.start_unix_ns,
        stall.end_unix_ns,
        None,
        None,
        "",
        (),
        stall.span_id,
    )


def of_fork(fork: ForkActivity) -> Evidence:
    """Return the time that a thread was in a fork."""
    event = fork.event
    return Evidence(
        f"fork-{event.pid}-{event.tid}-{event.start_ktime_ns}",
        "fork",
        fork.start_unix_ns,
        fork.end_unix_ns,
        Culprit(event.pid, event.tid, event.comm),
        None,
        "",
        (),
        fork.span_id,
    )


def of_whole(activity: CallActivity | GapActivity | OpenCallActivity, end_unix_ns: int) -> Evidence:
    """Return a whole call or gap: what its totals are of."""
    event: CudaCall | Gap | OpenCall = activity.event
    kind = "gap" if isinstance(event, Gap) else "call"
    return Evidence(
        f"{kind}-{event.pid}-{event.tid}-{event.start_ktime_ns}",
        kind,
        activity.start_unix_ns,
        end_unix_ns,
        None,
        None,
        "",
        (),
        activity.span_id,
        stack_of(activity),
    )


def of_unseen(other: Culprit, start_ktime_ns: int, start_unix_ns: int, time_ns: int) -> Evidence:
    """Return a window in which nothing, or not all, was seen of another thread."""
    return Evidence(
        f"unseen-{other.pid}-{other.tid}-{start_ktime_ns}",
        "unseen",
        start_unix_ns,
        start_unix_ns + time_ns,
        other,
        None,
        "",
        (),
        b"",
    )


def of_account(other: Culprit, start_ktime_ns: int, start_unix_ns: int, time_ns: int) -> Evidence:
    """Return a window in which another thread waited for a CPU, as its process's totals say."""
    span = of_unseen(other, start_ktime_ns, start_unix_ns, time_ns)
    return span._replace(id=f"account-{other.pid}-{other.tid}-{start_ktime_ns}", kind="account")


def keep_longest(evidence: Iterable[Evidence], limit: int) -> tuple[Evidence, ...]:
    """Return the longest of some evidence, each once, in the order of time."""
    each = {item.id: item for item in evidence}.values()
    longest = sorted(each, key=lambda item: (item.start_unix_ns - item.end_unix_ns, item.id))
    return tuple(sorted(longest[:limit], key=lambda item: (item.start_unix_ns, item.id)))
