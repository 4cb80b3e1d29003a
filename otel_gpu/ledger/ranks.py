"""
Ranks of one communicator side by side.

The n-th collective that a rank calls is part of the n-th one of all ranks. So their numbers say who
has not called yet, and as they are of one host, their clock says since when the others wait.
Of each rank the latest calls are known one by one, and all of them are counted.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.decode.communicators import Collective, Communicator, Signature
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.identities import CallStack, ImageKey, ProcessImage, key_of

MAX_CALLS: Final = 64
"""Of one rank, the latest: more than two readings have."""

MAX_COMPARED: Final = 1_024
"""Ranks of one communicator that are compared with each other; no host has so many devices, but dumps do."""
HANG_NS: Final = 2_000_000_000
"""Who waits for longer hangs, which is told by itself and is no habit of the late one."""
_CONTRADICTIONS = 3
"""Readings in a row that contradict each other. Ranks are read one after the other, so one may do."""
_OUT = wire.COMMUNICATOR_ABORTED | wire.COMMUNICATOR_DESTROYED
_FEW = 2

Handle = tuple[int, int]
"""An address, and how many communicators of the process had it before."""


class State(StrEnum):
    """How the ranks of a communicator stand to each other."""

    RUNNING = "running"
    RANK_MISSING = "rank_missing"
    RANKS_DISAGREE = "ranks_disagree"
    QUEUED = "queued"
    UNKNOWN = "unknown"


class Member:
    """
    One rank of a communicator that is on this host.

    Attributes:
        process: Whose it is.
        handle: Tells it from others of its process.
        last: What was read last.
        before: What had been read when the window began; None: it began later.
        read_ktime_ns: When that was.
        has_ended: Whether its process has.
        calls: The latest that are known one by one, in order.
        stacks: Where these were made, by their numbers, as far as is known.
        lag_ns: For how long others had not called what it had called, as far as was seen.
        lag_by_ns: The same by who came last, its process and its rank; without what hung.
        late_ns: For how long others waited for it, all of them together.
        open_ns: What of ``lag_ns`` goes on, and is not in ``lag_by_ns`` yet.
        longest_ns: The longest time that a collective of it took, until the program knew.
    """

    def __init__(self, process: ProcessImage, handle: Handle, first: Communicator) -> None:
        self.process, self.handle, self.last = process, handle, first
        self.before: Communicator | None = None
        self.read_ktime_ns = 0
        self.has_ended = False
        self.calls: list[Collective] = []
        self.stacks: dict[int, CallStack] = {}
        self.lag_ns = self.late_ns = 0
        self.lag_by_ns: dict[tuple[ImageKey, int], int] = {}
        self.open_ns = 0
        self.longest_ns = 0
        self.known_from_ktime_ns = 0

    @property
    def is_in(self) -> bool:
        """Whether it can still do something."""
        return not self.has_ended and not self.last.flags & _OUT

    @property
    def has_numbers(self) -> bool:
        """Whether its numbers are those of the others."""
        return not self.last.flags & wire.COMMUNICATOR_LATE

    def call_of(self, number: int) -> Collective | None:
        """Return the call with a number, if it is known."""
        index = bisect_right(self.calls, number, key=_number) - 1
        found = self.calls[index] if index >= 0 else None
        return found if found is not None and found.number == number else None

    def called_at_least_ktime_ns(self, number: int) -> int:
        """Return when it had not yet called a number for sure; 0: not known."""
        index = bisect_right(self.calls, number, key=_number) - 1
        return self.calls[index].called_ktime_ns if index >= 0 else 0

    def called_at_most_ktime_ns(self, number: int) -> int:
        """Return by when it had called a number that it has called."""
        index = bisect_right(self.calls, number - 1, key=_number)
        if index < len(self.calls):
            return self.calls[index].called_ktime_ns
        return self.read_ktime_ns

    def take(self, activity: CommunicatorActivity, ktime_ns: int) -> None:
        """Take in a reading that was made at a moment."""
        known, now = self.last, activity.communicator
        before_ktime_ns, self.read_ktime_ns = self.read_ktime_ns, ktime_ns
        newest = self.calls[-1].number if self.calls else 0
        fresh = [one for one in now.recent if one.number > newest]
        # Between two readings there may be more than are kept.
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
        """Return where a collective was called; of one that was not called, where the last one was."""
        return self.stacks.get(min(number, self.last.called))


class Standing(NamedTuple):
    """
    How the ranks of a communicator stand to each other by the last readings.

    Attributes:
        state: How.
        number: Of the collective that is not done; 0: none is.
        waiting: Those that called it and wait.
        lacking: Those that did not call it, or asked for something else than the most.
        since_ktime_ns: Since when the first of them waits.
        signatures: What was asked for, by how many of the ranks on this host.
    """

    state: State
    number: int = 0
    waiting: tuple[Member, ...] = ()
    lacking: tuple[Member, ...] = ()
    since_ktime_ns: int = 0
    signatures: tuple[tuple[Signature, int], ...] = ()


class Group:
    """
    A communicator, as far as it is on this host.

    Attributes:
        id: The same on all ranks; 0: not known, and it has one member.
        members: By process image and handle.
    """

    def __init__(self, identity: int) -> None:
        self.id = identity
        self.members: dict[tuple[ImageKey, Handle], Member] = {}
        self._numbered: list[Member] | None = None
        # Who called a number last.
        self._lasts: dict[int, tuple[int | None, Member]] = {}
        self._contradictions = 0
        self._finished_ktime_ns = 0
        self._unfinished = 0

    @property
    def ranks(self) -> Sequence[Member]:
        """The members in the order of their ranks."""
        return sorted(self.members.values(), key=lambda one: (one.last.rank, key_of(one.process)))

    @property
    def name(self) -> str:
        """What the program calls it; empty: not known."""
        return next((one.last.name for one in self.members.values() if one.last.name), "")

    @property
    def rank_count(self) -> int:
        """How many ranks it has, also on other hosts; 0: not known."""
        return max((one.last.rank_count for one in self.members.values()), default=0)

    @property
    def absent(self) -> int:
        """How many ranks are not on this host, or are not watched."""
        return max(0, self.rank_count - len(self.members))

    @property
    def is_contradictory(self) -> bool:
        """Whether a rank has done by the last readings what another one has not called."""
        least = min((one.last.called for one in self._members), default=0)
        return any(one.last.completed > least for one in self._members)

    @property
    def _members(self) -> list[Member]:
        """The members whose numbers can be compared: several, or none."""
        if self._numbered is None:
            found = [one for one in self.members.values() if one.has_numbers]
            is_few = not self.id or not _FEW <= len(found) <= MAX_COMPARED
            self._numbered = [] if is_few or self._contradictions >= _CONTRADICTIONS else found
        return self._numbered

    def standing(self) -> Standing:
        """Return how its ranks stand to each other."""
        members = self._members
        if members and not self.is_contradictory:
            return _disagreement(members) or _absence(members) or self._queued()
        if len(self.members) > 1:
            return Standing(State.UNKNOWN)
        return self._queued()

    def _queued(self) -> Standing:
        members = list(self.members.values())
        waiting = tuple(one for one in _going_on(members) if one.last.pending)
        number = max((one.last.completed for one in members), default=0) + 1
        if len(waiting) < len(members) or number > min(one.last.called for one in waiting):
            return Standing(State.RUNNING)
        since = max(one.called_at_most_ktime_ns(number) for one in waiting)
        return Standing(State.QUEUED, number, waiting, (), since, _asked(waiting, number))

    def change(self) -> None:
        """Take in that a member came or went."""
        self._numbered = None
        self._lasts.clear()

    def take(self, member: Member, activity: CommunicatorActivity, ktime_ns: int) -> None:
        """Take in a reading of one member that was made at a moment."""
        if self._unfinished not in (0, ktime_ns):
            self.finish_reading()
        self._unfinished = ktime_ns
        had_numbers = member.has_numbers
        member.take(activity, ktime_ns)
        self._lasts.clear()
        if member.has_numbers != had_numbers:
            self._numbered = None

    def finish_reading(self, until_ktime_ns: int = 0) -> None:
        """Take in that nothing more of the last reading follows, or that nothing changed until then."""
        self._unfinished = 0
        if not (members := self._members):
            return
        if self.is_contradictory:
            self._contradictions += 1
            if self._contradictions >= _CONTRADICTIONS:
                self._numbered = None
            return
        self._contradictions = 0
        now = max(until_ktime_ns, *(one.read_ktime_ns for one in members))
        begin, self._finished_ktime_ns = self._finished_ktime_ns, now
        known_from = max(begin, *(one.known_from_ktime_ns for one in members))
        if known_from >= now:
            return
        # Of what happened since the reading before, the last part may be all that is known.
        factor = (now - begin) / (now - known_from) if begin else 1.0
        for member in members:
            for start, end, late, call in self.delays(member, known_from, now):
                time_ns = round((end - start) * factor)
                member.lag_ns += time_ns
                late.late_ns += time_ns
                if end >= now:
                    # How long it will have been is not known yet.
                    member.open_ns += time_ns
                    continue
                time_ns, member.open_ns = time_ns + member.open_ns, 0
                # Programs begin at different moments, which is no habit either.
                if end - call.called_ktime_ns >= HANG_NS or call.number == 1:
                    continue
                name = key_of(late.process), late.last.rank
                if name in member.lag_by_ns or len(member.lag_by_ns) < MAX_COMPARED:
                    member.lag_by_ns[name] = member.lag_by_ns.get(name, 0) + time_ns

    def delays(
        self, member: Member, start_ktime_ns: int, end_ktime_ns: int
    ) -> Iterator[tuple[int, int, Member, Collective]]:
        """
        Yield when others had not called in a window what a member had, who came last, and its call.

        In order; no moment is in two of them. The end is the window's where they have not called yet.
        """
        if member not in self._members:
            return
        cursor = start_ktime_ns
        for call in member.calls:
            begin = max(call.called_ktime_ns, cursor)
            if begin >= end_ktime_ns:
                return
            came_ktime_ns, last = self._last_of(call.number)
            end = end_ktime_ns if came_ktime_ns is None else min(came_ktime_ns, end_ktime_ns)
            if last is not member and end > begin:
                yield begin, end, last, call
                cursor = end

    def _last_of(self, number: int) -> tuple[int | None, Member]:
        """Return who called a number last, and when that was at least; None: not yet."""
        if number not in self._lasts:
            last = min(self._members, key=lambda one: one.last.called)
            came_ktime_ns = None
            if last.last.called >= number:
                last = max(self._members, key=lambda one: one.called_at_least_ktime_ns(number))
                came_ktime_ns = last.called_at_least_ktime_ns(number)
            self._lasts[number] = came_ktime_ns, last
        return self._lasts[number]

    def begin(self) -> None:
        """Take in that the window begins."""
        self.finish_reading()
        for member in self.members.values():
            member.before = member.last
            member.lag_ns = member.late_ns = 0
            member.lag_by_ns = {}


def _going_on(members: Sequence[Member]) -> list[Member]:
    """Return those that can wait; when all processes have ended, those that did when they ended."""
    alive = [one for one in members if one.is_in]
    return alive or [one for one in members if not one.last.flags & _OUT]


def _disagreement(members: Sequence[Member]) -> Standing | None:
    """Return what ranks asked for that is not the same, of the first collective of which that is so."""
    least = min(one.last.called for one in members)
    done = max(one.last.completed for one in members)
    numbers = {call.number for one in members for call in one.calls}
    for number in sorted(one for one in numbers if done < one <= least):
        asked = _asked(members, number)
        if len(asked) > 1:
            usual = asked[0][0]
            calls = [(one, one.call_of(number)) for one in members]
            known = [(one, call) for one, call in calls if call is not None]
            odd = tuple(one for one, call in known if call.signature != usual)
            waiting = tuple(_going_on([one for one, _ in known]))
            if waiting:
                since = max(call.called_ktime_ns for _, call in known)
                return Standing(State.RANKS_DISAGREE, number, waiting, odd, since, asked)
    return None


def _absence(members: Sequence[Member]) -> Standing | None:
    """Return who did not call what others wait for."""
    number = min(one.last.called for one in members) + 1
    lacking = tuple(one for one in members if one.last.called < number)
    waiting = tuple(one for one in _going_on(members) if one.last.called >= number)
    if not waiting:
        return None
    since = min(one.called_at_most_ktime_ns(number) for one in waiting)
    return Standing(State.RANK_MISSING, number, waiting, lacking, since, _asked(waiting, number))


def _asked(members: Sequence[Member], number: int) -> tuple[tuple[Signature, int], ...]:
    calls = (one.call_of(number) for one in sorted(members, key=lambda one: one.last.rank))
    counts = Counter(call.signature for call in calls if call is not None)
    return tuple(counts.most_common())


_number = attrgetter("number")
