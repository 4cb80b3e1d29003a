"""Evidence: the measured intervals that causes rest on, each with its span's id."""

from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    CallActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
)
from otel_gpu.enrich.clock import clamp_unix_ns
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.explain.kinds import EvidenceKind
from otel_gpu.wire.events import CudaCall, Fork, Gap, OpenCall, Stall


def culprit_of(stall: StallActivity) -> Culprit | None:
    """Return the thread that had the CPU that a thread waited for; None: not known."""
    event = stall.event
    if not event.culprit_tid:
        return None
    return Culprit(event.culprit_pid, event.culprit_tid, event.culprit_comm)


def stack_of(activity: CallActivity | GapActivity | OpenCallActivity) -> CallStack | None:
    """
    Return where in the program a call was made; None: not known, or a gap, which has no one place.
    """
    return None if isinstance(activity, GapActivity) else activity.stack


def of_blocked(stall: StallActivity, waker: Culprit | None) -> Evidence:
    """
    Return the part of a stall in which the thread could not run, and the thread that ended it.
    """
    span = _interval(
        kind=EvidenceKind.BLOCKED,
        event=stall.event,
        start_unix_ns=stall.start_unix_ns,
        end_unix_ns=stall.runnable_unix_ns,
    )
    return span._replace(
        waker=waker,
        reason=stall.reason,
        functions=stall.functions,
        span_id=stall.span_id,
        stack=stall.stack,
        trace_id=stall.trace_id,
    )


def of_run_queue(stall: StallActivity) -> Evidence:
    """Return the part of a stall in which the thread waited for a CPU."""
    span = _interval(
        kind=EvidenceKind.RUN_QUEUE,
        event=stall.event,
        start_unix_ns=stall.runnable_unix_ns,
        end_unix_ns=stall.end_unix_ns,
    )
    return span._replace(
        culprit=culprit_of(stall),
        span_id=stall.run_queue_span_id,
        is_cpu_idle=bool(stall.event.flags & wire.STALL_IDLE_CPU),
        trace_id=stall.trace_id,
    )


def of_fork(fork: ForkActivity) -> Evidence:
    """Return the time that a thread was in a fork."""
    event = fork.event
    span = _interval(
        kind=EvidenceKind.FORK,
        event=event,
        start_unix_ns=fork.start_unix_ns,
        end_unix_ns=fork.end_unix_ns,
    )
    return span._replace(
        culprit=Culprit(event.pid, event.tid, event.comm),
        span_id=fork.span_id,
        trace_id=fork.trace_id,
    )


def of_whole(activity: CallActivity | GapActivity | OpenCallActivity, end_unix_ns: int) -> Evidence:
    """Return a whole call or gap, the interval of its totals."""
    kind = EvidenceKind.GAP if isinstance(activity, GapActivity) else EvidenceKind.CALL
    span = _interval(
        kind=kind,
        event=activity.event,
        start_unix_ns=activity.start_unix_ns,
        end_unix_ns=end_unix_ns,
    )
    return span._replace(
        span_id=activity.span_id, stack=stack_of(activity), trace_id=activity.trace_id
    )


def of_unseen(
    other: Culprit,
    start_ktime_ns: int,
    start_unix_ns: int,
    time_ns: int,
    kind: EvidenceKind = EvidenceKind.UNSEEN,
) -> Evidence:
    """
    Return a window of another thread that was observed in part or not at all.

    With a ``kind`` of ``account``, totals prove that the thread waited for a CPU or had one.
    """
    return Evidence(
        id=f"{kind}-{other.pid}-{other.tid}-{start_ktime_ns}",
        kind=kind,
        start_unix_ns=clamp_unix_ns(start_unix_ns),
        end_unix_ns=clamp_unix_ns(start_unix_ns + time_ns),
        culprit=other,
    )


def _interval(
    kind: EvidenceKind,
    event: CudaCall | Fork | Gap | OpenCall | Stall,
    start_unix_ns: int,
    end_unix_ns: int,
) -> Evidence:
    number = f"{kind}-{event.pid}-{event.tid}-{event.start_ktime_ns}"
    return Evidence(id=number, kind=kind, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns)


def keep_longest(evidence: Iterable[Evidence], limit: int) -> tuple[Evidence, ...]:
    """Return the longest of some evidence, each once, in the order of time."""
    each = {item.id: item for item in evidence}.values()
    longest = sorted(each, key=lambda item: (item.start_unix_ns - item.end_unix_ns, item.id))
    return tuple(sorted(longest[:limit], key=lambda item: (item.start_unix_ns, item.id)))
