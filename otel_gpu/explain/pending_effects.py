"""
Pending effects: chooses which calls and gaps of each second are explained, those that lost most.

Finding the causes of one takes a large part of a millisecond, and a program can wait thousands of
times a second. So the choice comes before the causes. An effect waits for three seconds anyway,
until all that belongs to it has arrived; by then its whole second has arrived, too. Within a series
the longest lost most, so only the longest of each series are kept until it is known what is usual.
Time that is not explained call by call is in time accounting, and chronic causes are found there.
"""

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity, GapActivity
from otel_gpu.enrich.identity.cut_programs import CutPrograms
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.baselines import Baseline
from otel_gpu.explain.budget import CHAINS_PER_TRACE, ChainLimit
from otel_gpu.explain.effects import Candidate, Effects, baseline_of
from otel_gpu.explain.settings import Settings
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.events import CudaCall
from otel_gpu.wire.probe_table import ASYNC_EVENT_API

_NS_PER_S: Final = 1_000_000_000
_NEVER: Final = 1 << 64
# Durations of one series and second that are kept to be counted; further ones count as effects.
_MAX_OTHERS: Final = 65_536


class _Key(NamedTuple):
    baseline: Baseline
    status: int
    is_slow: bool


class _Entry(NamedTuple):
    # The first one is dropped first; of equals, the last one.
    duration_ns: int
    minus_number: int
    candidate: Candidate


class _Series:
    __slots__ = ("longest", "others_ns", "traces")

    def __init__(self) -> None:
        self.longest: list[_Entry] = []  # a heap, the shortest first
        self.traces: Counter[bytes] = Counter()  # how many of these each trace has
        # Of the others, by the reason that they are not explained.
        self.others_ns: dict[ChainLimit, array[int]] = {}


class _Ranked(NamedTuple):
    # In the order in which they are explained: one of each user, then another one of each.
    user_rank: int
    comes_second: bool
    minus_lost_ns: int
    number: int
    candidate: Candidate


class PendingEffects:
    """
    Calls and gaps that can be effects, until they settle; bounded.

    Args:
        effects: Computes how much they lost.
        settings: How many are explained of one second, and how many can wait.

    Attributes:
        due_unix_ns: ``take`` yields nothing before this time.
        left_out: Effects that are not explained, by reason, until the caller clears it.
        cut: Programs whose effects are not explained in favour of other users.
    """

    def __init__(self, effects: Effects, settings: Settings) -> None:
        self._effects = effects
        self._limit = settings.effects_per_second
        self._max_pending = settings.max_pending
        self._seconds: dict[int, dict[_Key, _Series]] = {}
        # The first second without a choice yet.
        self._undecided = 0
        self._chosen: deque[Candidate] = deque()
        self._size = 0
        self._number = 0
        self.due_unix_ns = _NEVER
        self.left_out: Counter[ChainLimit] = Counter()
        self.cut = CutPrograms()
        CACHES.register("pending_effects", self, "_seconds")
        CACHES.register("pending_effects", self, "_chosen")

    def __len__(self) -> int:
        return self._size

    def add(
        self, activity: CallActivity | GapActivity, make: Callable[[], Candidate]
    ) -> Iterator[Candidate]:
        """
        Add a call or gap; yield those that exceed the limit, to be settled now.

        Args:
            activity: The call or gap.
            make: Makes the candidate, if it can be explained.
        """
        if not self._limit:
            self._chosen.append(make())
            self._size += 1
        else:
            self._put(activity, make)
        while self._size > self._max_pending:
            if not self._chosen:
                self._choose(min(self._seconds))
            if self._chosen:
                self._size -= 1
                yield self._chosen.popleft()
        self._find_due()

    def take(self, settled_unix_ns: int) -> Iterator[Candidate]:
        """Yield the chosen ones that ended by ``settled_unix_ns``."""
        while self._seconds and (second := min(self._seconds)) * _NS_PER_S <= settled_unix_ns:
            self._choose(second)
        while self._chosen and self._chosen[0].end_unix_ns <= settled_unix_ns:
            self._size -= 1
            yield self._chosen.popleft()
        self._find_due()

    def close(self) -> Iterator[Candidate]:
        """Yield all chosen ones; nothing follows."""
        for second in sorted(self._seconds):
            self._choose(second)
        self._size = 0
        while self._chosen:
            yield self._chosen.popleft()
        self._find_due()

    def _find_due(self) -> None:
        due_unix_ns = self._chosen[0].end_unix_ns if self._chosen else _NEVER
        if self._seconds:
            due_unix_ns = min(due_unix_ns, min(self._seconds) * _NS_PER_S)
        self.due_unix_ns = due_unix_ns

    def _put(self, activity: CallActivity | GapActivity, make: Callable[[], Candidate]) -> None:
        event, trace_id = activity.event, activity.trace_id
        status = event.status if isinstance(event, CudaCall) else 0
        key = _Key(baseline_of(event), status, bool(event.choices & wire.CHOICE_SLOW))
        # A late one belongs to what is decided next.
        second = max(self._undecided, activity.end_unix_ns // _NS_PER_S)
        series = self._seconds.setdefault(second, {}).setdefault(key, _Series())
        longest, duration_ns = series.longest, max(0, event.end_ktime_ns - event.start_ktime_ns)
        self._number += 1
        if any(trace_id) and series.traces[trace_id] >= CHAINS_PER_TRACE:
            rival = min(one for one in longest if one.candidate.activity.trace_id == trace_id)
            reason = ChainLimit.TRACE_FULL
        elif len(longest) >= self._limit:
            rival, reason = longest[0], ChainLimit.RATE
        else:
            heapq.heappush(longest, _Entry(duration_ns, -self._number, make()))
            series.traces[trace_id] += 1
            self._size += 1
            return
        if duration_ns > rival.duration_ns:
            longest[longest.index(rival)] = _Entry(duration_ns, -self._number, make())
            heapq.heapify(longest)
            series.traces[rival.candidate.activity.trace_id] -= 1
            series.traces[trace_id] += 1
            duration_ns = rival.duration_ns
        others_ns = series.others_ns.setdefault(reason, array("Q"))
        if len(others_ns) < _MAX_OTHERS:
            others_ns.append(duration_ns)
        else:
            self.left_out[reason] += 1

    def _choose(self, second: int) -> None:
        # Equal numbers for each user, failures first, then by loss. What a user does not need
        # others have. One of each kind of failed calls comes first, and all failures of network
        # adapters: they take no time and can be why calls fail.
        self._undecided = max(self._undecided, second + 1)
        chosen: list[tuple[int, Candidate]] = []
        ranked, others = self._rank(self._seconds.pop(second), chosen)
        ranked, are_several = _take_turns(ranked)
        traces: Counter[bytes] = Counter()
        explained = 0
        for _, _, _, number, candidate in ranked:
            trace_id = candidate.activity.trace_id
            if explained >= self._limit:
                self.left_out[ChainLimit.RATE] += 1
                others[candidate.activity.process] += 1
            elif any(trace_id) and traces[trace_id] >= CHAINS_PER_TRACE:
                self.left_out[ChainLimit.TRACE_FULL] += 1
            else:
                traces[trace_id] += 1
                explained += 1
                chosen.append((number, candidate))
        for process, effects in others.items() if are_several else ():
            self.cut.add(process, effects)
        chosen.sort()
        self._size += len(chosen)
        self._chosen.extend(candidate for _, candidate in chosen)

    def _rank(
        self, kinds: dict[_Key, _Series], chosen: list[tuple[int, Candidate]]
    ) -> tuple[list[_Ranked], Counter[Program]]:
        # Separates effects from what is usual, which is chosen as an example of that. Returns the
        # effects, and how many more each program has than can be explained at all.
        ranked: list[_Ranked] = []
        others: Counter[Program] = Counter()
        for key, series in kinds.items():
            self._size -= len(series.longest)
            worst = max(series.longest)
            for entry in series.longest:
                number, candidate = -entry.minus_number, entry.candidate
                lost_ns = self._lost_ns(key, entry.duration_ns)
                if lost_ns is None:
                    chosen.append((number, candidate))
                else:
                    is_event = key.baseline.api == ASYNC_EVENT_API
                    comes_first = key.status and (entry is worst or is_event)
                    ranked.append(
                        _Ranked(
                            user_rank=0,
                            comes_second=not comes_first,
                            minus_lost_ns=-lost_ns,
                            number=number,
                            candidate=candidate,
                        )
                    )
            for reason, others_ns in series.others_ns.items():
                effects = sum(self._lost_ns(key, one) is not None for one in others_ns)
                self.left_out[reason] += effects
                if effects and reason == ChainLimit.RATE:
                    others[worst.candidate.activity.process] += effects
        return ranked, others

    def _lost_ns(self, key: _Key, duration_ns: int) -> int | None:
        return self._effects.lost_ns(
            key.baseline, duration_ns, failed=bool(key.status), is_slow=key.is_slow
        )


def _take_turns(ranked: list[_Ranked]) -> tuple[list[_Ranked], bool]:
    # In the order in which they are explained, and whether they are of several users.
    ranks: Counter[str] = Counter()
    turns = []
    for one in sorted(ranked):
        user = one.candidate.activity.process.user
        turns.append(one._replace(user_rank=ranks[user]))
        ranks[user] += 1
    return sorted(turns) if len(ranks) > 1 else turns, len(ranks) > 1
