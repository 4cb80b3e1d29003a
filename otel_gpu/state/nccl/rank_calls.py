"""One rank of a communicator: its calls, as they were read."""

from bisect import bisect_right
from operator import attrgetter
from typing import Final

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.identity.identities import CallStack, ProcessKey, Program
from otel_gpu.procfs.jobs import RANK
from otel_gpu.wire.communicators import Communicator, QueuedCollective

MAX_CALLS: Final = 64
"""Of one rank, the latest: more than two readings have."""

OUT: Final = wire.COMMUNICATOR_ABORTED | wire.COMMUNICATOR_DESTROYED
"""Flags of a communicator in which a rank does nothing more."""

Handle = tuple[int, int]
"""An address, and how many communicators of the process had it before."""


class Member:
    """
    One rank of a communicator on this host.

    Attributes:
        process: Its process.
        job_rank: Its number in its job, from its launcher; -1: not known.
        handle: Unique within its process.
        last: The latest reading.
        before: The last reading before the window; None: it began later.
        read_ktime_ns: When the latest reading was.
        has_ended: Whether its process has ended.
        calls: The latest calls that are known one by one, in order.
        stacks: Their stacks by number, where known.
        lag_ns: How long others had not called what it had called, where observed.
        lag_by_ns: The same by the process and rank that came last; without hangs.
        late_ns: How long others waited for it, all of them together.
        open_ns: The part of ``lag_ns`` that still grows, and is not in ``lag_by_ns`` yet.
        longest_ns: The longest time from a call of a collective until the program knew its end.
    """

    def __init__(self, process: Program, handle: Handle, first: Communicator) -> None:
        self.process, self.handle, self.last = process, handle, first
        job_rank = process.attributes.get(RANK)
        self.job_rank = job_rank if isinstance(job_rank, int) else -1
        self.before: Communicator | None = None
        self.read_ktime_ns = 0
        self.has_ended = False
        self.calls: list[QueuedCollective] = []
        self.stacks: dict[int, CallStack] = {}
        self.lag_ns = self.late_ns = 0
        self.lag_by_ns: dict[tuple[ProcessKey, int], int] = {}
        self.open_ns = 0
        self.longest_ns = 0
        self.known_from_ktime_ns = 0

    @property
    def is_in(self) -> bool:
        """Whether it can still do something."""
        return not self.has_ended and not self.last.flags & OUT

    @property
    def has_numbers(self) -> bool:
        """Whether its numbers are those of the others."""
        return not self.last.flags & wire.COMMUNICATOR_LATE

    def call_of(self, number: int) -> QueuedCollective | None:
        """Return the call with a number, if it is known."""
        index = bisect_right(self.calls, number, key=_number) - 1
        found = self.calls[index] if index >= 0 else None
        return found if found is not None and found.number == number else None

    def called_at_least_ktime_ns(self, number: int) -> int:
        """Return a time before which it had certainly not called a number; 0: not known."""
        index = bisect_right(self.calls, number, key=_number) - 1
        return self.calls[index].called_ktime_ns if index >= 0 else 0

    def called_at_most_ktime_ns(self, number: int) -> int:
        """Return a time by which it had called a number that it has called."""
        index = bisect_right(self.calls, number - 1, key=_number)
        if index < len(self.calls):
            return self.calls[index].called_ktime_ns
        return self.read_ktime_ns

    def take(self, activity: CommunicatorActivity, ktime_ns: int) -> None:
        """Add a reading from a time."""
        known, now = self.last, activity.communicator
        before_ktime_ns, self.read_ktime_ns = self.read_ktime_ns, ktime_ns
        newest = self.calls[-1].number if self.calls else 0
        fresh = [one for one in now.recent if one.number > newest]
        # There can be more calls between two readings than are kept.
        called_before = known.called if before_ktime_ns else 0
        is_whole = now.called - called_before <= len(fresh)
        first_ktime_ns = fresh[0].called_ktime_ns if fresh else self.read_ktime_ns
        self.known_from_ktime_ns = before_ktime_ns if is_whole else first_ktime_ns
        self.calls += fresh
        del self.calls[:-MAX_CALLS]
        if activity.stacks:
            self._take_stacks(activity)
        if completions := now.completions - known.completions:
            mean_ns = (now.waited_ns - known.waited_ns) // completions
            self.longest_ns = max(self.longest_ns, mean_ns)
        self.last = now

    def _take_stacks(self, activity: CommunicatorActivity) -> None:
        recent = zip(activity.communicator.recent, activity.stacks, strict=True)
        known = self.stacks | {call.number: stack for call, stack in recent if stack is not None}
        kept = {call.number for call in self.calls}
        self.stacks = {number: stack for number, stack in known.items() if number in kept}

    def stack_of(self, number: int) -> CallStack | None:
        """
        Return the stack of a collective; of one that was not called, the stack of the last one.
        """
        return self.stacks.get(min(number, self.last.called))


_number = attrgetter("number")
