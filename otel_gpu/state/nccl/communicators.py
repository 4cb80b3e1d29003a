"""The communicators of NCCL on this host, and how long their ranks wait for others."""

from typing import Final

from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.limits.recent import Recent
from otel_gpu.state.nccl.rank_calls import Handle, Member
from otel_gpu.state.nccl.rank_comparison import RankGroup
from otel_gpu.state.window import Window

MAX_MEMBERS: Final = 4_096
"""Ranks of all communicators, the latest ones."""
Lags = dict[ProcessKey, dict[tuple[ProcessKey, int, int], int]]
"""
How long, in ns, each process waited for each other one, by communicator and rank (as of
``RankGroup.rank_of``).
"""


class CommunicatorStates:
    """
    The communicators of this host; bounded.

    Args:
        window: What is counted. Of readings before it, only the positions of ranks count.

    Attributes:
        left_out: Ranks that were evicted.
        unix_offset_ns: From ktime to Unix time; None: nothing was called yet.
    """

    def __init__(self, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self._window = window
        self._groups: dict[tuple[int, ProcessKey | None, Handle | None], RankGroup] = {}
        # In the order in which they were read.
        self._members: Recent[tuple[ProcessKey, Handle], tuple[RankGroup, Member]] = Recent(
            MAX_MEMBERS, evict=self._evict
        )
        self._of: dict[ProcessKey, dict[Handle, None]] = {}
        self._programs: dict[int, ProcessKey] = {}
        self._has_begun = window.start_unix_ns is None
        self.unix_offset_ns: int | None = None
        self.left_out = 0

    def __bool__(self) -> bool:
        return bool(self._members)

    def observe(self, activity: CommunicatorActivity) -> None:
        """Add a reading of one rank."""
        if self._window.end_unix_ns is not None and activity.unix_ns > self._window.end_unix_ns:
            return
        if not self._has_begun and activity.unix_ns >= (self._window.start_unix_ns or 0):
            self._has_begun = True
            for group in self.groups():
                group.begin()
        program = key_of(activity.process)
        name = (program, activity.handle)
        found = self._members.get(name)
        if found is not None and found[0].id != activity.communicator.id:
            self._detach(name, self._members.pop(name)[0])
            found = None
        if found is None:
            found = self._join(name, activity)
        self._members.move_to_end(name)
        group, member = found
        group.take(member, activity, self._ktime_of(activity))

    def _ktime_of(self, activity: CommunicatorActivity) -> int:
        reading = activity.communicator
        # A rank without any call does not show the offset of the clocks.
        if reading.recent:
            called_unix_ns = activity.recent_unix_ns[-1]
            self.unix_offset_ns = called_unix_ns - reading.recent[-1].called_ktime_ns
        elif reading.completed_ktime_ns:
            self.unix_offset_ns = activity.completed_unix_ns - reading.completed_ktime_ns
        return self.ktime_of(activity.unix_ns)

    def _join(
        self, name: tuple[ProcessKey, Handle], activity: CommunicatorActivity
    ) -> tuple[RankGroup, Member]:
        program, handle = name
        identity = activity.communicator.id
        key = (identity, None, None) if identity else (0, program, handle)
        group = self._groups.setdefault(key, RankGroup(identity))
        member = Member(activity.process, handle, activity.communicator)
        group.members[name] = member
        group.change()
        self._of.setdefault(program, {})[handle] = None
        self._programs[program[0]] = program
        found = self._members[name] = group, member
        return found

    def _evict(self, name: tuple[ProcessKey, Handle], rank: tuple[RankGroup, Member]) -> None:
        self.left_out += 1
        self._detach(name, rank[0])

    def _detach(self, name: tuple[ProcessKey, Handle], group: RankGroup) -> None:
        program, handle = name
        del group.members[name]
        group.change()
        if not group.members:
            key = (group.id, None, None) if group.id else (0, program, handle)
            del self._groups[key]
        handles = self._of[program]
        del handles[handle]
        if not handles:
            del self._of[program]
            if self._programs.get(program[0]) == program:
                del self._programs[program[0]]

    def end(self, process: Program) -> None:
        """Note that a process ended: it calls nothing more, and the others can wait for it."""
        for group, member in self.of(key_of(process)):
            member.has_ended = True
            group.change()

    def ktime_of(self, unix_ns: int) -> int:
        """Return a Unix time as ktime; 0: not known."""
        return 0 if self.unix_offset_ns is None else max(0, unix_ns - self.unix_offset_ns)

    def program_of(self, pid: int) -> ProcessKey | None:
        """Return the latest program of a process that is a rank; None: it is none."""
        return self._programs.get(pid)

    def knows(self, program: ProcessKey) -> bool:
        """Return whether a process is a rank of any communicator."""
        return program in self._of

    def groups(self) -> list[RankGroup]:
        """Return all communicators."""
        return list(self._groups.values())

    def of(self, program: ProcessKey) -> list[tuple[RankGroup, Member]]:
        """Return the communicators of a process, with its rank in each."""
        return [self._members[program, handle] for handle in self._of.get(program, ())]

    def lags(self, unix_ns: int) -> dict[ProcessKey, int]:
        """
        Return how long other ranks came later than each process until now, in nanoseconds.

        For a process with several communicators it is the longest.
        """
        self.finish(unix_ns)
        return {
            program: max(self._members[program, handle][1].lag_ns for handle in handles)
            for program, handles in self._of.items()
        }

    def lags_by(self, unix_ns: int) -> Lags:
        """
        Return how long each process waited for which ranks until now, in the communicator with the
        longest waits.
        """
        self.finish(unix_ns)
        found: Lags = {}
        for program, handles in self._of.items():
            ranked = [self._members[program, handle] for handle in handles]
            group, member = max(ranked, key=lambda one: one[1].lag_ns)
            if member.lag_ns:
                found[program] = {
                    (late, group.id, rank): time_ns
                    for (late, rank), time_ns in member.lag_by_ns.items()
                }
        return found

    def finish(self, unix_ns: int) -> None:
        """Note that nothing changed since the last reading until now."""
        for group in self.groups():
            group.finish_reading(self.ktime_of(unix_ns))
