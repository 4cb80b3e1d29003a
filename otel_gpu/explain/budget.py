"""
The budget of causal chains: each second keeps those that lost most time.

It is decided once, for all users of chains. The chains of a second wait until that second has
settled, so that the last of them has the same chance as the first. Rate-limited chains are counted
by reason. No clock is read, so a replay keeps what the capture kept.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from otel_gpu.enrich.identity.cut_programs import CutPrograms
from otel_gpu.explain.chains import Chain
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent


class ChainLimit(StrEnum):
    """Why a chain is rate-limited."""

    RATE = "rate"
    TRACE_FULL = "trace_full"


# One call has one effect, or two if it hung and returned. Calls that it made inside have their own.
CHAINS_PER_TRACE = 16
_MAX_TRACES = 4096
# Chains settle after three seconds; times of a broken record must not hold more.
_MAX_SECONDS = 8
_NS_PER_SECOND = 1_000_000_000


class Decision(NamedTuple):
    """A chain, and why it is rate-limited; None: it is kept."""

    chain: Chain
    limited: ChainLimit | None = None


class _Entry(NamedTuple):
    # The first one is dropped first; of equals, the last one. A request for memory that failed took
    # no time, and is worse than slow ones.
    is_failure: bool
    excess_ns: int
    minus_number: int
    chain: Chain


class ChainBudget:
    """
    Chooses the chains to keep.

    Attributes:
        due_unix_ns: ``advance`` decides nothing before this time.
        cut: Programs whose chains were dropped in favour of other users.

    Args:
        chains_per_second: How many are kept whose effects ended in one second.
        settle_ns: How long after its effect a chain can come.
    """

    def __init__(self, chains_per_second: int, settle_ns: int) -> None:
        self._per_second = chains_per_second
        self._settle_ns = settle_ns
        # Heaps: the next one to drop comes first.
        self._seconds: dict[int, list[_Entry]] = {}
        self._settled = 0
        self.due_unix_ns = 0
        self._traces: Recent[bytes, int] = Recent(
            _MAX_TRACES, cache="chains_of_traces", entry_bytes=200
        )
        self._number = 0
        self.cut = CutPrograms()
        CACHES.register("pending_chains", self, "_seconds")

    def add(self, chain: Chain) -> Iterator[Decision]:
        """Add a chain; yield what that decides."""
        effect = chain.effect
        # A late one belongs to what is decided next.
        second = max(self._settled, (effect.start_unix_ns + effect.duration_ns) // _NS_PER_SECOND)
        entries = self._seconds.setdefault(second, [])
        self._number += 1
        heapq.heappush(
            entries,
            _Entry(
                is_failure=chain.is_failure,
                excess_ns=effect.excess_ns,
                minus_number=-self._number,
                chain=chain,
            ),
        )
        self._traces[effect.trace_id] = self._traces.get(effect.trace_id, 0) + 1
        if any(effect.trace_id) and self._traces[effect.trace_id] > CHAINS_PER_TRACE:
            of_trace = (
                entry for entry in entries if entry.chain.effect.trace_id == effect.trace_id
            )
            yield self._give_up(entries, min(of_trace), ChainLimit.TRACE_FULL)
        elif len(entries) > self._per_second:
            yield self._give_up(entries, self._find_least(entries), ChainLimit.RATE)
        while len(self._seconds) > _MAX_SECONDS:
            yield from self._decide(min(self._seconds))

    def advance(self, unix_ns: int) -> Iterable[Decision]:
        """Return the chains that are kept at a time of the stream, in order."""
        settled = (unix_ns - self._settle_ns) // _NS_PER_SECOND
        if settled <= self._settled:
            return ()
        self._settled = settled
        self.due_unix_ns = (settled + 1) * _NS_PER_SECOND + self._settle_ns
        due = sorted(second for second in self._seconds if second < settled)
        return itertools.chain.from_iterable(map(self._decide, due))

    def close(self) -> Iterable[Decision]:
        """Decide all pending chains; nothing follows."""
        return itertools.chain.from_iterable(map(self._decide, sorted(self._seconds)))

    def _find_least(self, entries: list[_Entry]) -> _Entry:
        # Of the user with most of them.
        users = Counter(entry.chain.effect.process.user for entry in entries)
        if len(users) == 1:
            return entries[0]
        most = max(users.values())
        least = min(e for e in entries if users[e.chain.effect.process.user] == most)
        self.cut.add(least.chain.effect.process)
        return least

    def _decide(self, second: int) -> Iterator[Decision]:
        for entry in sorted(self._seconds.pop(second), key=_by_time):
            yield Decision(entry.chain)

    def _give_up(self, entries: list[_Entry], entry: _Entry, reason: ChainLimit) -> Decision:
        entries.remove(entry)
        heapq.heapify(entries)
        trace_id = entry.chain.effect.trace_id
        if trace_id in self._traces:
            self._traces[trace_id] -= 1
        return Decision(entry.chain, reason)


def _by_time(entry: _Entry) -> int:
    return -entry.minus_number
