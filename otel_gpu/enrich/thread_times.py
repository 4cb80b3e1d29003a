"""Thread times: what the threads of a process spent their time on, and what kept them waiting."""

from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Program, Resource
from otel_gpu.enrich.waits.reasons import WaitReason


class Wait(NamedTuple):
    """
    What is known of a wait.

    Attributes:
        api: Number of the API of its outermost open call, or of the call before its gap; 0: none.
        who: The thread that had the CPU that it waited for, or ended its wait.
        end: The last one in a chain of threads that waited for each other; can be ``who`` itself.
        end_state: What that one did during the wait: an enumerator of ``thread_state``.
        end_reason: What it was blocked on; ``NONE``: it was not.
        resource: What the system call of the waiting thread was about.
    """

    api: int
    who: Culprit | None
    end: Culprit | None
    end_state: int
    end_reason: WaitReason
    resource: Resource | None

    def by_name(self) -> "Wait":
        """Return the same wait with names only, for processes that ended."""
        if not (self.who or self.end):
            return self
        return self._replace(who=_name_of(self.who), end=_name_of(self.end))


def _name_of(one: Culprit | None) -> Culprit | None:
    return one and one._replace(pid=0, tid=0)


NO_WAIT = Wait(
    api=0, who=None, end=None, end_state=wire.STATE_NONE, end_reason=WaitReason.NONE, resource=None
)
"""Nothing is known but the time."""


TimeKind = tuple[int, int, WaitReason, Wait]
"""What identifies thread times of a process: state, context, reason, and the wait."""


class ThreadTime(NamedTuple):
    """
    Time of the threads of one process, cumulative.

    ``state`` and ``context`` are enumerators of ``bpf/events.h``. ``reason`` is set where the state
    is blocked, and can be ``PREEMPTED`` in a run queue. ``time_ns`` grows while the time passes,
    when it is not known yet which thread will end a wait; ``ended_ns`` grows by the whole wait when
    it ends. So over all waits of one state, context and reason, ``time_ns`` is ahead by what has
    not ended yet.
    """

    process: Program
    state: int
    context: int
    reason: WaitReason
    time_ns: int
    count: int  # type: ignore[assignment] # as above
    ended_ns: int = 0
    wait: Wait = NO_WAIT

    @property
    def kind(self) -> TimeKind:
        """What identifies it within its process: all but the figures."""
        return self.state, self.context, self.reason, self.wait
