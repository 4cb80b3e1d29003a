"""
Chronic causes: what takes much of the feeder threads' time in every stretch of it.

An effect is slow by its own past. A program that always waits has no such past, and no effects; the
account of its threads' time says all the same how long it waited, and for whom.
"""

# Chronic and acute
# -----------------
#
# Both are told of the same time: a hog that holds up some calls much and all calls a little is behind
# effects, and in the account. Each nanosecond counts once. What the effects of a stretch say of a cause
# is taken off what the account says of it, and only if much is left is the cause chronic; or if there are
# many of them: gaps before a copy have no median, and neither do those of a short program. Then it is
# one incident: where an acute one of the same process, kind and culprit is open, its effects are the
# examples of the chronic one. Effects also know better than the account: that a CPU quota kept a
# thread from its CPU, or that it worked on a fork. What they claim is not told again by another name.
#
# What is not lost
# ----------------
#
# A process that mostly waits for its device loses nothing by what the host does meanwhile. The device
# has nothing to do after a synchronize call, until the next launch, and so has lost what keeps the
# thread from going on there, or from returning from that call. What the driver does inside of other
# calls is its own affair, and the first call of an API is warm-up. The work of a process that mostly
# waits for requests keeps nobody from anything.

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple, Protocol

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import ProcessKey, Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.accounting.causes import NOBODY, OWN, AccountCauses
from otel_gpu.explain.accounting.time_states import state_of
from otel_gpu.explain.accounting.time_tree import IDLE, Resources, grow, knows_waits, resources_of
from otel_gpu.explain.accounting.verdicts import GPU, find_verdict
from otel_gpu.explain.chains import Cause
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.ranking import CauseSums, clear_resource, rank
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import HIGH, LOW, MEDIUM, fault_ns
from otel_gpu.state.capture_state import CaptureState, Figures, Mark
from otel_gpu.state.thread_names import ThreadNames
from otel_gpu.wire.probe_table import API_BY_NUMBER

_NS_PER_S = 1_000_000_000
_MAX_CAUSES = 256
_MAX_GONE = 256
_MAJORITY = 0.5
_DRIVERS = frozenset({"io", "ipc", "sleep", "other"})


class Chronic(NamedTuple):
    """
    A cause that takes much of the time of a process's feeder threads in a stretch of it.

    ``lost_ns`` is how much of it is lost, of ``feeders_ns``; less than ``least_ns`` does not matter.
    ``most`` is the worst that it can be: what the program does itself is never high, and low as long
    as it is not most of its time or somebody keeps it from going on as well. ``pids`` are of all who
    have a part in it.
    """

    process: Program
    start_unix_ns: int
    end_unix_ns: int
    cause: Cause
    lost_ns: int
    least_ns: int
    feeders_ns: int
    most: str
    pids: frozenset[int]

    @property
    def culprit_pid(self) -> int:
        """The pid of who is to blame, 0: nobody, or not known."""
        culprit = self.cause.culprit
        return culprit.pid if culprit else 0

    def without(self, time_ns: int) -> "Chronic":
        """Return the same with less time."""
        cause = self.cause
        left_ns = max(0, cause.time_ns - time_ns)
        share = cause.share * left_ns / max(1, cause.time_ns)
        return self._replace(
            cause=cause._replace(time_ns=left_ns, share=share),
            lost_ns=max(0, self.lost_ns - time_ns),
        )


class ChronicFinding(NamedTuple):
    """All chronic causes of one program in one stretch of time; there may be none."""

    process: Program
    end_unix_ns: int
    chronic: tuple[Chronic, ...]


FiguresOf = Callable[[ProcessKey], Figures | None]
"""Returns what a program did in a stretch of time; None: nothing."""


class FindLate(Protocol):
    """Finds for whom a program waited in a stretch of time; False: nobody does."""

    def __bool__(self) -> bool: ...

    def find(
        self, figures: Figures, figures_of: FiguresOf, start: int, end: int, /
    ) -> Iterable[Chronic]:
        """Yield for whom, by its figures and those of others, from begin to end."""


FindMore = Callable[[Figures, int, int], Iterable[Chronic]]
"""Finds what else a program lost in a stretch of time."""


def find_chronic(
    figures: Figures,
    start_unix_ns: int,
    end_unix_ns: int,
    settings: Settings,
    places: CodeLocations | None = None,
    resources: Resources | None = None,
    names: ThreadNames | None = None,
) -> Iterator[Chronic]:
    """
    Yield the chronic causes of a process in a window.

    Args:
        figures: What was counted in the window.
        start_unix_ns: When it began.
        end_unix_ns: When it ended.
        settings: What matters.
        places: Where threads were.
        resources: What other processes wait for.
        names: What others are called.
    """
    verdict = find_verdict(figures, grow(figures.times, None, resources), settings)
    if verdict is None or verdict.time_tree is None or not knows_waits(figures.times):
        return
    feeders_ns = verdict.time_tree.time_ns
    if feeders_ns < settings.minimum_budget_ns:
        return
    start_unix_ns = max(start_unix_ns, figures.process.start_unix_ns)
    idle_share = verdict.shares[IDLE]
    is_gpu_bound = verdict.shares[GPU] > _MAJORITY * (1 - idle_share)
    times = [
        time
        for time in _after_warm_up(figures)
        if _may_be_lost(time, is_gpu_bound=is_gpu_bound, is_idle=idle_share > _MAJORITY)
    ]
    tree = grow(times, None, resources, most=None)
    sums = CauseSums(_MAX_CAUSES, settings.max_evidence)
    account = AccountCauses(figures.process, start_unix_ns, end_unix_ns, places, times, names)
    least_ns = max(
        1,
        round(settings.chronic_share * feeders_ns),
        # Of one that lived shorter, as long as it did.
        settings.chronic_lost_ns * min(end_unix_ns - start_unix_ns, feeders_ns) // _NS_PER_S,
    )
    # Hundreds of neighbours that had the CPU for a moment are causes, too, and matter to nobody.
    sums.add(account.causes(tree, least_ns) if tree else ())
    lost = [
        _Lost(cause, cause.time_ns if cause.kind in OWN else fault_ns(cause), _pids_of(cause))
        for cause in sums.causes(feeders_ns)
    ]
    large = [one for one in lost if one.time_ns >= least_ns]
    small = [one for one in lost if one.time_ns < least_ns]
    found = large + [one for one in _together(small, settings) if one.time_ns >= least_ns]
    is_kept = any(one.cause.kind not in OWN for one in found)
    for cause, lost_ns, pids in found:
        most = HIGH
        if cause.kind in OWN:
            is_most = lost_ns >= settings.high_share * feeders_ns
            most = MEDIUM if is_most and not is_kept else LOW
        yield Chronic(
            figures.process,
            start_unix_ns,
            end_unix_ns,
            account.with_lines(cause, pids),
            lost_ns,
            least_ns,
            feeders_ns,
            most,
            pids - {NOBODY},
        )


class _Lost(NamedTuple):
    cause: Cause
    time_ns: int
    pids: frozenset[int]


def _pids_of(cause: Cause) -> frozenset[int]:
    return frozenset({cause.culprit.pid if cause.culprit else NOBODY})


def _together(lost: Iterable[_Lost], settings: Settings) -> Iterator[_Lost]:
    """Yield one for all of a kind: thirty workers that are each waited for a little."""
    kinds: dict[str, list[_Lost]] = {}
    for one in lost:
        kinds.setdefault(one.cause.kind, []).append(one)
    for kind, alike in kinds.items():
        longest = max(alike, key=lambda one: one.time_ns).cause
        time_ns = sum(one.cause.time_ns for one in alike)
        # Workers stand for each other; one of many who had the CPU is not to blame for the others.
        is_named = kind != "run_queue" or longest.time_ns >= _MAJORITY * time_ns
        via = CauseSums(_MAX_CAUSES, settings.max_evidence)
        for one in alike:
            via.add(one.cause.via)
        cause = longest._replace(
            time_ns=time_ns,
            share=sum(one.cause.share for one in alike),
            culprit=longest.culprit if is_named else None,
            via=rank(via.causes(round(time_ns / max(1e-9, sum(o.cause.share for o in alike)))), 0),
            resource=clear_resource((one.cause.resource, one.cause.time_ns) for one in alike),
        )
        pids = frozenset().union(*(one.pids for one in alike))
        yield _Lost(cause, sum(one.time_ns for one in alike), pids)


def _may_be_lost(time: ThreadTime, *, is_gpu_bound: bool, is_idle: bool) -> bool:
    state = state_of(time.state, time.context, time.reason)
    if is_gpu_bound:
        # In a gap, it is the call before that.
        api = API_BY_NUMBER.get(time.wait.api)
        is_device_done = api is not None and api.family == wire.FAMILY_SYNCHRONIZE
        return is_device_done and time.state != wire.STATE_ON_CPU and state != "sleep"
    if is_idle and time.state == wire.STATE_ON_CPU:
        return False
    return not (time.context == wire.CONTEXT_CALL and state in _DRIVERS)


def _after_warm_up(figures: Figures) -> Iterator[ThreadTime]:
    """Yield times without those of the first call of each API, as far as these can be told apart."""
    left_ns = dict(figures.warm_up_ns)
    # What it was blocked on is not known: all may have been what would be blamed. That it had to wait
    # for a CPU is no part of warming up.
    for time in sorted(figures.times, key=lambda time: -time.time_ns):
        first_ns = left_ns.get(time.wait.api, 0)
        is_blocked = time.state == wire.STATE_BLOCKED and time.context != wire.CONTEXT_GAP
        if not first_ns or not is_blocked:
            yield time
            continue
        taken_ns = min(first_ns, max(time.time_ns, time.ended_ns))
        left_ns[time.wait.api] -= taken_ns
        yield time._replace(
            time_ns=max(0, time.time_ns - taken_ns), ended_ns=max(0, time.ended_ns - taken_ns)
        )


class ChronicCauses:
    """
    Looks for chronic causes in stretches of the stream's time.

    Args:
        ledger: Is to be told of every reading after ``observe`` was.
        settings: The limits.
        more: Says what else a program lost in a stretch, by its figures, its begin and its end.
        late: Says for whom it waited.

    Attributes:
        places: Where threads were, since the stretch began.
        names: What others are called.
    """

    def __init__(
        self,
        ledger: CaptureState,
        settings: Settings,
        more: FindMore | None = None,
        late: FindLate | None = None,
    ) -> None:
        self._ledger = ledger
        self._more = more
        self._late = late
        # Of programs that ended in this stretch.
        self._gone: dict[ProcessKey, Figures] = {}
        self._settings = settings
        self.places = CodeLocations(settings.max_processes)
        self.names = ThreadNames()
        self._begin: Mark = {}
        self._begin_unix_ns: int | None = None
        self._read_unix_ns = 0
        self._found: deque[ChronicFinding] = deque()

    def begin(self, unix_ns: int) -> None:
        """Take in that a capture begins: no stretch reaches from one into another."""
        self.close()
        self._begin_unix_ns = self._read_unix_ns = unix_ns

    def observe_reading(self, unix_ns: int) -> None:
        """Take in that the account is read, before that reading is in the ledger."""
        if self._begin_unix_ns is None:
            self._begin_unix_ns = unix_ns
        # What was read at one moment can be several activities.
        if unix_ns != self._read_unix_ns:
            if self._read_unix_ns - self._begin_unix_ns >= self._settings.chronic_window_ns:
                self._end_stretch()
            self._read_unix_ns = unix_ns

    def forget(self, program: ProcessKey) -> None:
        """Look at what a program did that ended, before the ledger forgets it."""
        figures = self._ledger.figures_of(program, self._begin)
        if figures is not None and figures.times and self._begin_unix_ns is not None:
            self._look([figures], self._read_unix_ns)
            if len(self._gone) < _MAX_GONE:
                self._gone[program] = figures
        self.places.forget(program[0])

    def close(self) -> None:
        """Look at what came since the last stretch ended: nothing follows."""
        if self._begin_unix_ns is not None and self._read_unix_ns > self._begin_unix_ns:
            self._end_stretch()

    def take(self, unix_ns: int | None) -> Iterator[ChronicFinding]:
        """Yield what was found in the stretches that ended by then, each once; None: in all."""
        while self._found and (unix_ns is None or self._found[0].end_unix_ns <= unix_ns):
            yield self._found.popleft()

    def _end_stretch(self) -> None:
        self._look(self._ledger.figures(self._begin).values(), self._read_unix_ns)
        self._begin, self._begin_unix_ns = self._ledger.mark(), self._read_unix_ns
        self._gone.clear()
        self.places.age()

    def _look(self, figures: Iterable[Figures], end_unix_ns: int) -> None:
        figures = tuple(figures)
        resources = resources_of(figures)
        # Of those only that are asked for: programs may end by the thousand, each with a look of its own.
        figures_of = cache(self._figures_of)
        assert self._begin_unix_ns is not None  # noqa: S101 -- a reading began it
        for one in figures:
            found = find_chronic(
                *(one, self._begin_unix_ns, end_unix_ns, self._settings, self.places, resources),
                names=self.names,
            )
            chronic = tuple(found)
            if self._more is not None:
                chronic += tuple(self._more(one, self._begin_unix_ns, end_unix_ns))
            if self._late:
                chronic += tuple(self._late.find(one, figures_of, self._begin_unix_ns, end_unix_ns))
            if one.times or chronic:
                self._found.append(ChronicFinding(one.process, end_unix_ns, chronic))

    def _figures_of(self, program: ProcessKey) -> Figures | None:
        """Return what a program did in this stretch, also of one that ended in it."""
        figures = self._ledger.figures_of(program, self._begin)
        has_any = figures is not None and (figures.series or figures.times)
        return figures if has_any else self._gone.get(program)
