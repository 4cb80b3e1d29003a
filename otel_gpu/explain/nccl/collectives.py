"""
Collectives: which rank another one waits for.

A device cannot finish a collective before its last rank has called it. So the time that a thread
waits for the device, after its rank called and before the last one did, is due to the last one. A
thread that stopped waiting before another rank called did not wait for that one.
"""

# Hangs are found from the ranks of this host alone
# -------------------------------------------------
#
# If a rank has not called what others have, it is missing. If all called and asked for different
# things, no rank's device can go on. If all called the same and none knows it to be done, the cause
# is the device, the network, or a rank on another host. That is reported later, as a device can
# have much to do before. And a thread has to ask for the end: a program that never asks whether a
# collective is done would seem to wait for ever. So it is a thread that hangs in a call, or one
# that queries events repeatedly.

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich import ids
from otel_gpu.enrich.activities import AggregatesActivity, CommunicatorActivity, OpenCallActivity
from otel_gpu.enrich.identity.identities import ProcessKey, Resource, key_of
from otel_gpu.explain.chains import Culprit, Effect, Evidence
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind
from otel_gpu.explain.nccl.collective_names import (
    late_name,
    operation_name,
    standing_text,
)
from otel_gpu.explain.settings import Settings
from otel_gpu.limits.recent import Fifo, Recent
from otel_gpu.state.nccl.communicators import CommunicatorStates
from otel_gpu.state.nccl.rank_calls import Member
from otel_gpu.state.nccl.rank_comparison import RankGroup
from otel_gpu.state.nccl.rank_positions import RankState, Standing
from otel_gpu.wire.bodies import ResourceKind

# The last rank can have queued its part some time before its call returned.
_SLACK_NS = 1_000_000
# How many times longer than its longest one a collective can take.
_LONGEST_FACTOR = 4
_MAX_ASKING = 4_096

_KIND_BY_STATE = {
    RankState.RANK_MISSING: CauseKind.COLLECTIVE_WAIT,
    RankState.RANKS_DISAGREE: CauseKind.COLLECTIVE_MISMATCH,
    RankState.QUEUED: CauseKind.COLLECTIVE_STUCK,
}


class Delay(NamedTuple):
    """An interval in which a rank waited, and for which ranks; times are ktime."""

    kind: CauseKind
    start_ktime_ns: int
    end_ktime_ns: int
    culprits: tuple[Culprit, ...]
    resource: Resource
    evidence: Evidence


class Hang(NamedTuple):
    """
    A rank that waits in a collective without a call that hangs; ``start_ktime_ns`` is its own call.
    """

    effect: Effect
    start_ktime_ns: int
    duration_ns: int
    group: RankGroup
    member: Member
    number: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Its key among calls that hang and other hangs."""
        return self.effect.process.pid, 0, self.start_ktime_ns

    @property
    def is_over(self) -> bool:
        """Whether its program knows by now that the collective is done."""
        return self.member.is_in and self.member.last.completed >= self.number


class Collectives:
    """
    Finds the ranks that other ranks wait for.

    Attributes:
        communicators: The progress of the ranks.
        has_no_calls: Whether calls that ask for the end of a collective are not recorded. Then all
            ranks
          that wait count.
    """

    def __init__(self, timeline: EventTimeline, settings: Settings) -> None:
        self.communicators = CommunicatorStates()
        self.has_no_calls = False
        self._timeline = timeline
        self._settings = settings
        # By rank: calls that query events so far, and when that number last grew.
        self._queries: Fifo[ProcessKey, tuple[int, int]] = Fifo(_MAX_ASKING)
        # When a call was last seen to hang.
        self._hanging: Recent[ProcessKey, int] = Recent(_MAX_ASKING)

    def observe(self, activity: CommunicatorActivity) -> None:
        """Add a reading of one rank."""
        self._timeline.know(activity.process)
        self.communicators.observe(activity)
        if not self._timeline.unix_offset_ns:
            self._timeline.unix_offset_ns = self.communicators.unix_offset_ns or 0

    def observe_aggregates(self, activity: AggregatesActivity) -> None:
        """Note which ranks query whether something is done."""
        if not self.communicators:
            return
        counts: dict[ProcessKey, int] = {}
        for series in activity.series:
            api = series.api
            if api is not None and api.family == wire.FAMILY_QUERY:
                program = key_of(series.process)
                if self.communicators.knows(program):
                    counts[program] = counts.get(program, 0) + series.aggregate.counted
        for program, count in counts.items():
            known, _ = self._queries.get(program, (count, 0))
            if count != known:
                self._queries[program] = count, activity.unix_ns
            else:
                self._queries.setdefault(program, (count, 0))

    def observe_open_call(self, activity: OpenCallActivity) -> None:
        """Note a call that hangs."""
        program = key_of(activity.process)
        self._hanging[program] = activity.seen_unix_ns

    def delays(
        self, program: ProcessKey, start_ktime_ns: int, end_ktime_ns: int, *, is_open: bool = False
    ) -> list[Delay]:
        """
        Return the intervals in which a rank waited for others in a window, in order; they do not
        overlap.

        Args:
            program: The program.
            start_ktime_ns: Start of the window.
            end_ktime_ns: End of the window.
            is_open: Whether the wait has not ended by then.
        """
        found: list[Delay] = []
        for group, member in self.communicators.of(program):
            found += self._delays_in(
                group=group, member=member, start=start_ktime_ns, end=end_ktime_ns, is_open=is_open
            )
        found.sort(key=lambda delay: delay.start_ktime_ns)
        kept: list[Delay] = []
        cursor = start_ktime_ns
        for delay in found:
            start = max(delay.start_ktime_ns, cursor)
            if delay.end_ktime_ns > start:
                kept.append(delay._replace(start_ktime_ns=start))
                cursor = delay.end_ktime_ns
        return kept

    def _delays_in(
        self, group: RankGroup, member: Member, start: int, end: int, *, is_open: bool
    ) -> Iterator[Delay]:
        standing = group.standing() if is_open else Standing(RankState.RUNNING)
        is_waiting = member in standing.waiting
        if is_waiting and standing.state != RankState.RANK_MISSING:
            kind = _KIND_BY_STATE[standing.state]
            since = max(start, standing.since_ktime_ns)
            if kind == CauseKind.COLLECTIVE_MISMATCH or end - since >= self._patience_ns(standing):
                if end > since:
                    name = standing_text(group, standing)
                    yield self._delay(
                        kind=kind,
                        window=(since, end),
                        late=standing.lacking,
                        name=name,
                        group=group,
                    )
                end = since
        slack_ns = 0 if is_open else _SLACK_NS
        for begin, came, late, call in group.delays(member, start, end + slack_ns):
            if not is_open and came >= end + slack_ns:
                # It went on before that rank came.
                return
            if is_waiting and came >= end and call.number >= standing.number:
                name = standing_text(group, standing)
            else:
                name = late_name(group.id, group.rank_of(late[0]))
            window = begin, min(came, end)
            yield self._delay(
                kind=CauseKind.COLLECTIVE_WAIT, window=window, late=late, name=name, group=group
            )

    def _delay(
        self,
        kind: CauseKind,
        window: tuple[int, int],
        late: Sequence[Member],
        name: str,
        group: RankGroup,
    ) -> Delay:
        pids = {one.process.pid: one.process.comm for one in late}
        culprits = tuple(
            Culprit(pid, self._timeline.busiest_thread(pid), comm) for pid, comm in pids.items()
        )
        start, end = window
        offset_ns = self._timeline.unix_offset_ns
        number = f"collective-{group.id:x}-{culprits[0].pid if culprits else 0}-{start}"
        times = start + offset_ns, end + offset_ns
        # Of several, none is more of a cause than the others.
        one = culprits[0] if len(culprits) == 1 else None
        evidence = Evidence(number, EvidenceKind.COLLECTIVE, *times, one)
        return Delay(
            kind=kind,
            start_ktime_ns=start,
            end_ktime_ns=end,
            culprits=culprits,
            resource=Resource(ResourceKind.COLLECTIVE, name),
            evidence=evidence,
        )

    def hangs(self, unix_ns: int) -> Iterator[Hang]:
        """Yield the ranks that wait in a collective at a time, and have no call that hangs."""
        now = self.communicators.ktime_of(unix_ns)
        for group in self.communicators.groups() if now else ():
            standing = group.standing()
            if standing.state not in _KIND_BY_STATE:
                continue
            if now - standing.since_ktime_ns < self._patience_ns(standing):
                continue
            for member in standing.waiting:
                if self._asks(key_of(member.process), unix_ns):
                    yield self._hang(group=group, standing=standing, member=member, now=now)

    def hangs_at(self, program: ProcessKey, unix_ns: int) -> bool:
        """Return whether a rank waits for the end of a collective, by its calls."""
        limit_ns = 2 * self._settings.collective_hang_ns
        is_seen = unix_ns - self._hanging.get(program, 0) <= limit_ns
        return is_seen or self._asks(program, unix_ns)

    def _asks(self, program: ProcessKey, unix_ns: int) -> bool:
        # Whether a rank queries repeatedly whether something is done, and does not hang in that.
        if self.has_no_calls:
            return True
        _, asked_unix_ns = self._queries.get(program, (0, 0))
        limit_ns = self._settings.collective_hang_ns
        # Calls that hang are read periodically.
        hangs_in_call = unix_ns - self._hanging.get(program, 0) <= 2 * limit_ns
        return unix_ns - asked_unix_ns <= limit_ns and not hangs_in_call

    def _patience_ns(self, standing: Standing) -> int:
        # Before the first one, programs are still on their way to it.
        if standing.state != RankState.QUEUED and standing.number > 1:
            return self._settings.collective_hang_ns
        longest_ns = max((one.longest_ns for one in standing.waiting), default=0)
        return max(self._settings.collective_stuck_ns, _LONGEST_FACTOR * longest_ns)

    def _hang(self, group: RankGroup, standing: Standing, member: Member, now: int) -> Hang:
        process, number = member.process, standing.number
        start = min(now, max(member.called_at_most_ktime_ns(number), standing.since_ktime_ns))
        asked = standing.signatures
        name = operation_name(asked[0][0].operation) if asked else "collective"
        key = f"collective-{group.id:x}-{number}-{process.pid}-{process.program_ktime_ns}"
        effect = Effect(
            EffectKind.HUNG_COLLECTIVE,
            process,
            name,
            process.pid,
            process.comm,
            start + (self.communicators.unix_offset_ns or 0),
            now - start,
            now - start,
            *ids.incident_ids(ids.NO_SEED, key),
            member.stack_of(number),
        )
        return Hang(
            effect=effect,
            start_ktime_ns=start,
            duration_ns=now - start,
            group=group,
            member=member,
            number=number,
        )
