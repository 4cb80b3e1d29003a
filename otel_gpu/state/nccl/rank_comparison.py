"""
Comparison of the ranks of one communicator.

The n-th collective that a rank calls is part of the n-th one of all ranks. So their numbers show
which ranks have not called yet, and as they are of one host, their common clock shows since when
the others wait. The latest calls of each rank are known one by one, and all of them are counted.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.state.nccl.rank_calls import Handle, Member
from otel_gpu.state.nccl.rank_positions import (
    RankState,
    Standing,
    absence,
    asked_by,
    disagreement,
    going_on,
)
from otel_gpu.wire.communicators import QueuedCollective

MAX_COMPARED: Final = 1_024
"""
Ranks of one communicator that are compared; no host has so many devices, but forged recordings can.
"""
HANG_NS: Final = 2_000_000_000
"""
A longer wait is a hang, which is reported by itself and does not count as a habit of the late rank.
"""
_CONTRADICTIONS = 3
"""
Contradicting readings in a row. Ranks are read one after the other, so one can occur normally.
"""
_FEW = 2


class RankGroup:
    """
    A communicator, as it is on this host.

    Attributes:
        id: The same on all ranks; 0: not known, and it has one member.
        members: By program and handle.
    """

    def __init__(self, identity: int) -> None:
        self.id = identity
        self.members: dict[tuple[ProcessKey, Handle], Member] = {}
        self._numbered: list[Member] | None = None
        # The last caller of a number, or the ranks that have not called it.
        self._lasts: dict[int, tuple[int | None, tuple[Member, ...]]] = {}
        self._standing: Standing | None = None
        self._has_job_ranks: bool | None = None
        self._contradictions = 0
        self._finished_ktime_ns = 0
        self._unfinished = 0

    @property
    def ranks(self) -> Sequence[Member]:
        """The members in the order of their ranks."""
        return sorted(self.members.values(), key=lambda one: (one.last.rank, key_of(one.process)))

    @property
    def name(self) -> str:
        """The program's name of it; empty: not known."""
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
        """Whether, by the last readings, a rank has completed what another one has not called."""
        least = min((one.last.called for one in self._members), default=0)
        return any(one.last.completed > least for one in self._members)

    @property
    def _members(self) -> list[Member]:
        # The members whose numbers can be compared: several, or none.
        if self._numbered is None:
            found = [one for one in self.members.values() if one.has_numbers]
            is_few = not self.id or not _FEW <= len(found) <= MAX_COMPARED
            self._numbered = [] if is_few or self._contradictions >= _CONTRADICTIONS else found
        return self._numbered

    def rank_of(self, member: Member) -> int:
        """
        Return the number of a rank, the same in all communicators of a job; -1: not known.

        If job numbers are not known of all members, it is the number in this communicator.
        """
        if self._has_job_ranks is None:
            found = [one.job_rank for one in self.members.values()]
            self._has_job_ranks = -1 not in found and len(set(found)) == len(found)
        return member.job_rank if self._has_job_ranks else member.last.rank

    def standing(self) -> Standing:
        """Return the positions of its ranks."""
        if self._standing is None:
            self._standing = self._compare()
        return self._standing

    def _compare(self) -> Standing:
        members = self._members
        if members and not self.is_contradictory:
            return disagreement(members) or absence(members) or self._queued()
        if len(self.members) > 1:
            return Standing(RankState.UNKNOWN)
        return self._queued()

    def _queued(self) -> Standing:
        members = list(self.members.values())
        waiting = tuple(one for one in going_on(members) if one.last.pending)
        number = max((one.last.completed for one in members), default=0) + 1
        if len(waiting) < len(members) or number > min(one.last.called for one in waiting):
            return Standing(RankState.RUNNING)
        since = max(one.called_at_most_ktime_ns(number) for one in waiting)
        return Standing(
            state=RankState.QUEUED,
            number=number,
            waiting=waiting,
            lacking=(),
            since_ktime_ns=since,
            signatures=asked_by(waiting, number),
        )

    def change(self) -> None:
        """Note that a member joined, left or ended."""
        self._numbered = self._standing = self._has_job_ranks = None
        self._lasts.clear()

    def take(self, member: Member, activity: CommunicatorActivity, ktime_ns: int) -> None:
        """Add a reading of one member from a time."""
        if self._unfinished not in (0, ktime_ns):
            self.finish_reading()
        self._unfinished = ktime_ns
        had_numbers = member.has_numbers
        member.take(activity, ktime_ns)
        self._standing = None
        self._lasts.clear()
        if member.has_numbers != had_numbers:
            self._numbered = None

    def finish_reading(self, until_ktime_ns: int = 0) -> None:
        """End the last reading, or note that nothing changed until a time."""
        self._unfinished = 0
        if not (members := self._members):
            return
        if self.is_contradictory:
            self._contradictions += 1
            if self._contradictions >= _CONTRADICTIONS:
                self._numbered = self._standing = None
            return
        self._contradictions = 0
        now = max(until_ktime_ns, *(one.read_ktime_ns for one in members))
        begin, self._finished_ktime_ns = self._finished_ktime_ns, now
        known_from = max(begin, *(one.known_from_ktime_ns for one in members))
        if known_from >= now:
            return
        # Only the last part of the time since the reading before can be known.
        factor = (now - begin) / (now - known_from) if begin else 1.0
        for member in members:
            for start, end, late, call in self.delays(member, known_from, now):
                self._count(member, late, round((end - start) * factor))
                if end < now:
                    self._close(member, last=late[0], call=call, end_ktime_ns=end)

    def _count(self, member: Member, late: tuple[Member, ...], time_ns: int) -> None:
        # The whole duration is known when the last rank comes.
        member.lag_ns += time_ns
        member.open_ns += time_ns
        for one in late:
            one.late_ns += time_ns

    def _close(
        self, member: Member, last: Member, call: QueuedCollective, end_ktime_ns: int
    ) -> None:
        time_ns, member.open_ns = member.open_ns, 0
        # Programs start at different times; that is not a habit either.
        if end_ktime_ns - call.called_ktime_ns >= HANG_NS or call.number == 1:
            return
        name = key_of(last.process), self.rank_of(last)
        if name in member.lag_by_ns or len(member.lag_by_ns) < MAX_COMPARED:
            member.lag_by_ns[name] = member.lag_by_ns.get(name, 0) + time_ns

    def delays(
        self, member: Member, start_ktime_ns: int, end_ktime_ns: int
    ) -> Iterator[tuple[int, int, tuple[Member, ...], QueuedCollective]]:
        """
        Yield when others had not called in a window what a member had, which ranks, and its call.

        In order, without overlaps. The named rank is the one that came last. If some have not
        called yet, those are named, and the end is the window's.
        """
        if member not in self._members:
            return
        cursor = start_ktime_ns
        for call in member.calls:
            begin = max(call.called_ktime_ns, cursor)
            if begin >= end_ktime_ns:
                return
            came_ktime_ns, late = self._last_of(call.number)
            end = end_ktime_ns if came_ktime_ns is None else min(came_ktime_ns, end_ktime_ns)
            if member not in late and end > begin:
                yield begin, end, late, call
                cursor = end

    def _last_of(self, number: int) -> tuple[int | None, tuple[Member, ...]]:
        # The last caller of a number, and a lower bound of its time; None: these have not called
        # yet.
        if number not in self._lasts:
            missing = [one for one in self._members if one.last.called < number]
            if missing:
                # The ranks that lack most hold up the others.
                least = min(one.last.called for one in missing)
                late = tuple(one for one in missing if one.last.called == least)
                self._lasts[number] = None, late
            else:
                last = max(self._members, key=lambda one: one.called_at_least_ktime_ns(number))
                self._lasts[number] = last.called_at_least_ktime_ns(number), (last,)
        return self._lasts[number]

    def begin(self) -> None:
        """Begin the window."""
        self.finish_reading()
        for member in self.members.values():
            member.before = member.last
            member.lag_ns = member.late_ns = 0
            member.lag_by_ns = {}
