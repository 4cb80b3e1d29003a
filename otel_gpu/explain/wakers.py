"""Wakers: which thread ended a wait, where the record can be trusted."""

# Some facts about wake-ups
# -------------------------
#
# For a wake-up the kernel records which thread had the CPU then. A thread that writes into a pipe
# wakes the reader itself. A timer, a disk or a network card wakes a sleeper too, from an interrupt,
# and then the record names the interrupted thread: on a busy host that can be any thread. Whether
# it was an interrupt is not recorded, so what was waited on has to decide.
#
# Some things are done by threads only. For what a device can do as well, a waker counts if it is
# related: of the same process, or of the same tree of watched processes, like a data loader that
# answers over the loopback network.

import re
from collections.abc import Sequence

from otel_gpu import wire
from otel_gpu.enrich.activities import StallActivity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.chains import Culprit
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.wire.bodies import ResourceKind

# By what a thread was blocked on (enrich/waits/reasons.py).
_BY_THREADS = frozenset(
    {WaitReason.LOCK, WaitReason.GIL, WaitReason.CHILD_WAIT, WaitReason.STOPPED, WaitReason.CAPTURE}
)
# The process that thaws a cgroup need not be the one that froze it.
_BY_DEVICES = frozenset(
    {
        WaitReason.SLEEP,
        WaitReason.IO,
        WaitReason.NETWORK,
        WaitReason.PAGE_FAULT,
        WaitReason.RECLAIM,
        WaitReason.DRIVER,
        WaitReason.FROZEN,
    }
)

_LOCAL = frozenset({ResourceKind.PIPE, ResourceKind.UNIX, ResourceKind.EVENTFD})

# Waits for data share one reason; their kernel functions show what can end them.
_PIPES_AND_QUEUES = re.compile(
    r"(?:(anon_)?pipe_.*|fifo_open|wait_for_partner|_*unix_.*|eventfd_read"
    r"|do_msg(rcv|snd)|_*do_semtimedop|mqueue_.*|wq_sleep|do_mq_timed(send|receive))(?:\..*)?"
)
_NETWORK = re.compile(r"(?:_*(tcp|udp|inet6?|sk|skb|sock|netlink)_.*)(?:\..*)?")


class Wakers:
    """Finds the thread that ended a wait, with the timeline's relations of processes."""

    def __init__(self, timeline: EventTimeline) -> None:
        self._timeline = timeline

    def find(self, stall: StallActivity) -> Culprit | None:
        """
        Return the thread that ended the blocked part of a stall; None: not a thread, or not known.
        """
        event, reason = stall.event, stall.reason
        if not event.waker_tid or event.waker_tid == event.tid or reason in _BY_DEVICES:
            return None
        if event.waker_pid != event.pid and (
            # The GIL is of one process; there, an interrupt is the only other way.
            reason == WaitReason.GIL
            or not (
                is_ended_by_threads(reason, stall.functions)
                or self._timeline.are_related(event.pid, event.waker_pid)
            )
        ):
            return None
        return Culprit(event.waker_pid, event.waker_tid, event.waker_comm)


def waker_of(time: ThreadTime) -> Culprit | None:
    """Return the thread that kept one waiting, from its times; None: not a thread, or not known."""
    wait, pid = time.wait, time.process.pid
    who = wait.who
    if who is None or time.state == wire.STATE_RUN_QUEUE:
        return who
    if time.reason in _BY_DEVICES or (time.reason == WaitReason.GIL and who.pid != pid):
        return None
    resource = wait.resource
    # Unwatched processes have no named threads, and no known relations.
    is_known = who.tid != 0 and not (resource and resource.is_network)
    is_local = resource is not None and resource.kind in _LOCAL
    return who if is_known or is_local or time.reason in _BY_THREADS else None


def is_ended_by_threads(reason: WaitReason, functions: Sequence[str]) -> bool:
    """
    Return whether only threads can end a wait.

    Args:
        reason: What was waited for.
        functions: The kernel stack; can be empty.
    """
    return reason in _BY_THREADS or any(map(_PIPES_AND_QUEUES.fullmatch, functions))


def is_for_network(functions: Sequence[str]) -> bool:
    """Return whether the stack of a wait shows that it was for data from a network."""
    return any(map(_NETWORK.fullmatch, functions)) and not any(
        map(_PIPES_AND_QUEUES.fullmatch, functions)
    )
