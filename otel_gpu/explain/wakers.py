"""Wakers: who ended a wait, where that can be believed."""

# Some facts about wake-ups
# -------------------------
#
# The kernel records of a wake-up which thread had the CPU then. Who writes into a pipe wakes
# its reader in his own name. A timer, a disk or a network card wakes a sleeper too, from an
# interrupt, and then the name is that of whoever was interrupted: on a busy host that can be
# anybody. Whether it was an interrupt is not recorded, so what was waited on has to decide.
#
# Some things are done by threads only. Of what may as well be done by a device, a waker is
# believed if he is evidently related: of the same process, or of the same tree of watched
# processes, as a data loader is that answers over the loopback network.

import re
from collections.abc import Sequence

from otel_gpu import wire
from otel_gpu.enrich.activities import StallActivity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.chains import Culprit
from otel_gpu.explain.timeline import EventTimeline

# By what a thread was blocked on (enrich/reasons.py).
_BY_THREADS = frozenset({"lock", "gil", "child_wait", "stopped", "capture"})
# Who thaws a cgroup need not be who froze it.
_BY_DEVICES = frozenset({"sleep", "io", "network", "page_fault", "reclaim", "driver", "frozen"})

_LOCAL = frozenset({"pipe", "unix", "eventfd"})

# Waits for data are of one reason; who can end them is in their kernel functions.
_PIPES_AND_QUEUES = re.compile(
    r"(?:(anon_)?pipe_.*|fifo_open|wait_for_partner|_*unix_.*|eventfd_read"
    r"|do_msg(rcv|snd)|_*do_semtimedop|mqueue_.*|wq_sleep|do_mq_timed(send|receive))(?:\..*)?"
)
_NETWORK = re.compile(r"(?:_*(tcp|udp|inet6?|sk|skb|sock|netlink)_.*)(?:\..*)?")


class Wakers:
    """Says who ended a wait, with what the timeline knows of processes."""

    def __init__(self, timeline: EventTimeline) -> None:
        self._timeline = timeline

    def find(self, stall: StallActivity) -> Culprit | None:
        """Return who ended the blocked part of a stall, if that was a thread's doing."""
        event, reason = stall.event, stall.reason
        if not event.waker_tid or event.waker_tid == event.tid or reason in _BY_DEVICES:
            return None
        if event.waker_pid != event.pid and (
            # The GIL is of one process; there, an interrupt is the only other way.
            reason == "gil"
            or not (
                is_ended_by_threads(reason, stall.functions)
                or self._timeline.are_related(event.pid, event.waker_pid)
            )
        ):
            return None
        return Culprit(event.waker_pid, event.waker_tid, event.waker_comm)


def waker_of(time: ThreadTime) -> Culprit | None:
    """Return who kept a thread from going on, as an account says, if that was a thread's doing."""
    wait, pid = time.wait, time.process.pid
    who = wait.who
    if who is None or time.state == wire.STATE_RUN_QUEUE:
        return who
    if time.reason in _BY_DEVICES or (time.reason == "gil" and who.pid != pid):
        return None
    resource = wait.resource
    # Of processes that are not watched no thread is named, and of those no relation is known.
    is_known = who.tid != 0 and not (resource and resource.is_network)
    is_local = resource is not None and resource.kind in _LOCAL
    return who if is_known or is_local or time.reason in _BY_THREADS else None


def is_ended_by_threads(reason: str, functions: Sequence[str]) -> bool:
    """
    Say whether a wait can be ended by threads only.

    Args:
        reason: What was waited for.
        functions: The kernel stack; may be empty.
    """
    return reason in _BY_THREADS or any(map(_PIPES_AND_QUEUES.fullmatch, functions))


def is_for_network(functions: Sequence[str]) -> bool:
    """Say whether a wait was for what comes over a network, as far as its stack tells."""
    return any(map(_NETWORK.fullmatch, functions)) and not any(
        map(_PIPES_AND_QUEUES.fullmatch, functions)
    )
