"""
Account waits: what the time account says of the waits of a process around a moment.

Only the longest waits of a call or gap are sent one by one, and those of threads that make no calls
from a floor on. The account has all of them, by what they were and by who ended them, and is read now
and then. What it added from the last reading before a window to the first one after it is what is known of
the others.
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
from otel_gpu.explain.wakers import waker_of

_IN_GAPS = frozenset({wire.CONTEXT_GAP})
_IN_CALLS = frozenset({wire.CONTEXT_CALL, wire.CONTEXT_SYNCHRONIZE})


class Waited(NamedTuple):
    """
    For what a thread waited for so long, or what the one did that it waited for.

    Attributes:
        kind: A kind of cause.
        who: Whose doing it was; None: that is not known.
        resource: What it was about.
        time_ns: How long it was.
    """

    kind: str
    who: Culprit | None
    resource: Resource | None
    time_ns: int


class AccountWaits:
    """Asks the readings of the accounts for the waits that ended between those around a window."""

    def __init__(self, recent: RecentTimes) -> None:
        self._recent = recent

    def waits(self, pid: int, place: str, start_unix_ns: int, end_unix_ns: int) -> list[Waited]:
        """
        Return for what a process waited around a window; it may be more than the window.

        Args:
            pid: Of the process.
            place: Where its threads were: one of ``rules``' places.
            start_unix_ns: When the window began.
            end_unix_ns: When it ended.
        """
        sums: Counter[tuple[str, Culprit | None, Resource | None]] = Counter()
        for time in self._around(pid, place, start_unix_ns, end_unix_ns):
            kind = rules.blocked_kind(time.reason, place)
            who = waker_of(time) if kind in rules.REPEATED_KINDS else None
            sums[kind, who, time.wait.resource] += time.ended_ns
        return [Waited(*key, time_ns) for key, time_ns in sums.most_common()]

    def meanwhile(
        self, pid: int, place: str, who: Culprit, start_unix_ns: int, end_unix_ns: int
    ) -> list[Waited]:
        """
        Return what was done while a process waited for a thread, around a window.

        It may be more than the window.

        Args:
            pid: Who waited.
            place: Where; empty: anywhere.
            who: Whom it waited for; that one may have waited for another one in turn.
            start_unix_ns: When the window began.
            end_unix_ns: When it ended.
        """
        sums: Counter[tuple[str, Culprit]] = Counter()
        for time in self._around(pid, place, start_unix_ns, end_unix_ns):
            waker, wait = waker_of(time), time.wait
            if waker is not None and waker[:2] == who[:2]:
                sums[kind_of_end(wait), wait.end or who] += time.ended_ns
        return [Waited(*key, None, time_ns) for key, time_ns in sums.most_common()]

    def _around(
        self, pid: int, place: str, start_unix_ns: int, end_unix_ns: int
    ) -> Iterator[ThreadTime]:
        contexts = _IN_GAPS if place == rules.GAP else _IN_CALLS
        for time in self._recent.around(pid, start_unix_ns, end_unix_ns):
            is_there = not place or time.context in contexts
            if is_there and time.state == wire.STATE_BLOCKED and time.ended_ns > 0:
                yield time
