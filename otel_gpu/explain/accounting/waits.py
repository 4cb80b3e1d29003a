"""
Waits of a process around an interval, from its time accounting.

Only the longest waits of a call or gap are sent one by one, and those of threads that make no calls
above a floor. Accounting has all of them, by what they were and which thread ended them, and is
read periodically. The difference between the last reading before a window and the first one after
it describes the waits that were not sent.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Resource
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain import rules
from otel_gpu.explain.accounting.recent_times import RecentTimes
from otel_gpu.explain.accounting.time_states import kind_of_end
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.wakers import waker_of

_IN_GAPS = frozenset({wire.CONTEXT_GAP})
_IN_CALLS = frozenset({wire.CONTEXT_CALL, wire.CONTEXT_SYNCHRONIZE})


class Waited(NamedTuple):
    """
    Time that a thread waited, or what the waited-for thread did then.

    Attributes:
        kind: A kind of cause.
        who: The culprit; None: not known.
        resource: What it waited for.
        time_ns: The time.
    """

    kind: CauseKind
    who: Culprit | None
    resource: Resource | None
    time_ns: int


class AccountWaits:
    """Finds waits that ended between the readings around a window."""

    def __init__(self, recent: RecentTimes) -> None:
        self._recent = recent

    def waits(
        self, pid: int, place: rules.Place | None, start_unix_ns: int, end_unix_ns: int
    ) -> list[Waited]:
        """
        Return what a process waited for around a window; can be more than the window.

        Args:
            pid: The process.
            place: Where its threads were; None: anywhere.
            start_unix_ns: Start of the window.
            end_unix_ns: End of the window.
        """
        sums: Counter[tuple[CauseKind, Culprit | None, Resource | None]] = Counter()
        for time in self._around(
            pid=pid, place=place, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns
        ):
            kind = rules.blocked_kind(time.reason, place)
            who = waker_of(time) if kind in rules.REPEATED_KINDS else None
            sums[kind, who, time.wait.resource] += time.ended_ns
        return [Waited(*key, time_ns) for key, time_ns in sums.most_common()]

    def during_waits(
        self,
        pid: int,
        place: rules.Place | None,
        who: Culprit,
        start_unix_ns: int,
        end_unix_ns: int,
    ) -> list[Waited]:
        """
        Return what was done while a process waited for a thread, around a window.

        It can be more than the window.

        Args:
            pid: The process that waited.
            place: Where; None: anywhere.
            who: The thread that it waited for, which can have waited for another one in turn.
            start_unix_ns: Start of the window.
            end_unix_ns: End of the window.
        """
        sums: Counter[tuple[CauseKind, Culprit]] = Counter()
        for time in self._around(
            pid=pid, place=place, start_unix_ns=start_unix_ns, end_unix_ns=end_unix_ns
        ):
            waker, wait = waker_of(time), time.wait
            if waker is not None and waker[:2] == who[:2]:
                sums[kind_of_end(wait), wait.end or who] += time.ended_ns
        return [Waited(*key, None, time_ns) for key, time_ns in sums.most_common()]

    def _around(
        self, pid: int, place: rules.Place | None, start_unix_ns: int, end_unix_ns: int
    ) -> Iterator[ThreadTime]:
        contexts = _IN_GAPS if place == rules.Place.GAP else _IN_CALLS
        for time in self._recent.around(pid, start_unix_ns, end_unix_ns):
            is_there = not place or time.context in contexts
            if is_there and time.state == wire.STATE_BLOCKED and time.ended_ns > 0:
                yield time
