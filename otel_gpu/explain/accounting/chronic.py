"""
Chronic causes: what takes much of the launching threads' time in each window.

An effect is slow compared to its own past. A program that always waits has no such past, and no
effects. Time accounting still knows how long it waited, and what for.
"""

# Chronic and acute
# -----------------
#
# Both report the same time: a hog that delays some calls much and all calls a little is behind
# effects, and in the accounting. Each nanosecond counts once. Time that effects of a window
# attribute to a cause is subtracted first. Only a large remainder is chronic, or a cause with many
# effects: gaps before a copy have no median, and a short program has none. Then it is one incident:
# if an acute incident of the same process, kind and culprit is open, its effects are the examples
# of the chronic one. Effects also know more than accounting: that a CPU quota kept a thread from
# its CPU, or that it worked on a fork. Time that they attribute so is not reported under another
# kind.
#
# What is not lost
# ----------------
#
# A process that mostly waits for its device loses nothing by the host's work during that wait. The
# device is idle after a synchronize call, until the next launch. So it loses what keeps the thread
# from going on there, or from returning from that call. What the driver does inside other calls is
# its own affair, and the first call of an API is warm-up. The work of a process that mostly waits
# for requests delays no one.

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple, Protocol

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import ProcessKey, Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.accounting.causes import NO_CULPRIT, OWN, AccountCauses
from otel_gpu.explain.accounting.time_states import state_of
from otel_gpu.explain.accounting.time_tree import Resources, grow, knows_waits, resources_of
from otel_gpu.explain.accounting.verdicts import find_verdict
from otel_gpu.explain.chains import Cause
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.kinds import CauseKind, Severity, TimeClass, TimeState
from otel_gpu.explain.ranking import CauseSums, clear_resource, rank
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import fault_ns
from otel_gpu.state.capture_state import CaptureState, Figures, Mark
from otel_gpu.state.thread_names import ThreadNames
from otel_gpu.wire.probe_table import API_BY_NUMBER

_NS_PER_S = 1_000_000_000
_MAX_CAUSES = 256
_MAX_GONE = 256
_MAJORITY = 0.5
_DRIVERS = frozenset({TimeState.IO, TimeState.IPC, TimeState.SLEEP, TimeState.OTHER})


class Chronic(NamedTuple):
    """
    A cause that takes much of the time of a process's launching threads in a window.

    ``lost_ns`` is how much of ``launching_ns`` is lost; less than ``least_ns`` does not matter.
    ``most`` is the highest severity allowed. A program's own work is never high. It is low unless
    it is most of the time and nothing else keeps the program waiting. ``pids`` are all culprits
    that have a part in it.
    """

    process: Program
    start_unix_ns: int
    end_unix_ns: int
    cause: Cause
    lost_ns: int
    least_ns: int
    launching_ns: int
    most: Severity
    pids: frozenset[int]

    @property
    def culprit_pid(self) -> int:
        """The pid of the culprit, 0 if there is none or it is not known."""
        culprit = self.cause.culprit
        return culprit.pid if culprit else 0

    def without(self, time_ns: int) -> "Chronic":
        """Return the same cause with ``time_ns`` less time."""
        cause = self.cause
        left_ns = max(0, cause.time_ns - time_ns)
        share = cause.share * left_ns / max(1, cause.time_ns)
        return self._replace(
            cause=cause._replace(time_ns=left_ns, share=share),
            lost_ns=max(0, self.lost_ns - time_ns),
        )


class ChronicFinding(NamedTuple):
    """All chronic causes of one program in one window; can be empty."""

    process: Program
    end_unix_ns: int
    chronic: tuple[Chronic, ...]


FiguresOf = Callable[[ProcessKey], Figures | None]
"""Returns what a program did in a window; None: nothing."""


class FindLate(Protocol):
    """Finds the ranks that a program waited for in a window; False: none of them is known."""

    def __bool__(self) -> bool: ...

    def find(
        self, figures: Figures, figures_of: FiguresOf, start: int, end: int, /
    ) -> Iterable[Chronic]:
        """
        Yield chronic causes from ``start`` to ``end`` (Unix ns), by the figures of it and of
        others.
        """


FindMore = Callable[[Figures, int, int], Iterable[Chronic]]
"""Finds what else a program lost in a window, from and until a Unix time."""


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
        start_unix_ns: Start of the window.
        end_unix_ns: End of the window.
        settings: The limits.
        places: Where threads were.
        resources: What other processes wait for.
        names: Names of other processes.
    """
    verdict = find_verdict(figures, grow(figures.times, None, resources), settings)
    if verdict is None or verdict.time_tree is None or not knows_waits(figures.times):
        return
    launching_ns = verdict.time_tree.time_ns
    if launching_ns < settings.minimum_budget_ns:
        return
    start_unix_ns = max(start_unix_ns, figures.process.start_unix_ns)
    idle_share = verdict.shares[TimeClass.IDLE]
    is_gpu_bound = verdict.shares[TimeClass.GPU] > _MAJORITY * (1 - idle_share)
    times = [
        time
        for time in _after_warm_up(figures)
        if _may_be_lost(time, is_gpu_bound=is_gpu_bound, is_idle=idle_share > _MAJORITY)
    ]
    tree = grow(times, None, resources, most=None)
    sums = CauseSums(_MAX_CAUSES, settings.max_evidence)
    account = AccountCauses(
        process=figures.process,
        start_unix_ns=start_unix_ns,
        end_unix_ns=end_unix_ns,
        places=places,
        times=times,
        names=names,
    )
    least_ns = max(
        1,
        round(settings.chronic_share * launching_ns),
        # A program that lived shorter loses in proportion.
        settings.chronic_lost_ns * min(end_unix_ns - start_unix_ns, launching_ns) // _NS_PER_S,
    )
    # Hundreds of neighbours that had the CPU for a moment are causes, too, and too small to report.
    sums.add(account.causes(tree, least_ns) if tree else ())
    lost = [
        _Lost(cause, cause.time_ns if cause.kind in OWN else fault_ns(cause), _pids_of(cause))
        for cause in sums.causes(launching_ns)
    ]
    large = [one for one in lost if one.time_ns >= least_ns]
    small = [one for one in lost if one.time_ns < least_ns]
    found = large + [one for one in _together(small, settings) if one.time_ns >= least_ns]
    is_kept = any(one.cause.kind not in OWN for one in found)
    for cause, lost_ns, pids in found:
        most = Severity.HIGH
        if cause.kind in OWN:
            is_most = lost_ns >= settings.high_share * launching_ns
            most = Severity.MEDIUM if is_most and not is_kept else Severity.LOW
        yield Chronic(
            process=figures.process,
            start_unix_ns=start_unix_ns,
            end_unix_ns=end_unix_ns,
            cause=account.with_lines(cause, pids),
            lost_ns=lost_ns,
            least_ns=least_ns,
            launching_ns=launching_ns,
            most=most,
            pids=pids - {NO_CULPRIT},
        )


class _Lost(NamedTuple):
    cause: Cause
    time_ns: int
    pids: frozenset[int]


def _pids_of(cause: Cause) -> frozenset[int]:
    return frozenset({cause.culprit.pid if cause.culprit else NO_CULPRIT})


def _together(lost: Iterable[_Lost], settings: Settings) -> Iterator[_Lost]:
    # One for all of a kind: thirty workers that are each waited for a little.
    kinds: dict[CauseKind, list[_Lost]] = {}
    for one in lost:
        kinds.setdefault(one.cause.kind, []).append(one)
    for kind, alike in kinds.items():
        longest = max(alike, key=lambda one: one.time_ns).cause
        time_ns = sum(one.cause.time_ns for one in alike)
        # Workers do the same work. Of many processes that had the CPU, one does not stand for the
        # others.
        is_named = kind != CauseKind.RUN_QUEUE or longest.time_ns >= _MAJORITY * time_ns
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
        # In a gap, it is the call before the gap.
        api = API_BY_NUMBER.get(time.wait.api)
        is_device_done = api is not None and api.family == wire.FAMILY_SYNCHRONIZE
        return is_device_done and time.state != wire.STATE_ON_CPU and state != TimeState.SLEEP
    if is_idle and time.state == wire.STATE_ON_CPU:
        return False
    return not (time.context == wire.CONTEXT_CALL and state in _DRIVERS)


def _after_warm_up(figures: Figures) -> Iterator[ThreadTime]:
    # Without the first call of each API, if its time is known.
    left_ns = dict(figures.warm_up_ns)
    # What a first call was blocked on is not known, so any blocked time can be its own. A wait for
    # a CPU does not belong to warm-up.
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
    Finds chronic causes in windows of the stream's time.

    Args:
        state: Gets every reading after ``observe_reading`` was called for it.
        settings: The limits.
        more: Finds what else a program lost in a window.
        late: Finds the ranks that it waited for.

    Attributes:
        places: Where threads were, since the window began.
        names: Names of other processes.
    """

    def __init__(
        self,
        state: CaptureState,
        settings: Settings,
        more: FindMore | None = None,
        late: FindLate | None = None,
    ) -> None:
        self._state = state
        self._more = more
        self._late = late
        # Programs that ended in this window.
        self._gone: dict[ProcessKey, Figures] = {}
        self._settings = settings
        self.places = CodeLocations(settings.max_processes)
        self.names = ThreadNames()
        self._begin: Mark = {}
        self._begin_unix_ns: int | None = None
        self._read_unix_ns = 0
        self._found: deque[ChronicFinding] = deque()

    def begin(self, unix_ns: int) -> None:
        """Begin a capture: no window reaches from one into another."""
        self.close()
        self._begin_unix_ns = self._read_unix_ns = unix_ns

    def observe_reading(self, unix_ns: int) -> None:
        """Note a reading, before it is in the state."""
        if self._begin_unix_ns is None:
            self._begin_unix_ns = unix_ns
        # One reading can be several activities.
        if unix_ns != self._read_unix_ns:
            if self._read_unix_ns - self._begin_unix_ns >= self._settings.chronic_window_ns:
                self._end_window()
            self._read_unix_ns = unix_ns

    def forget(self, program: ProcessKey) -> None:
        """Examine a program that ended, before the state forgets it."""
        figures = self._state.figures_of(program, self._begin)
        if figures is not None and figures.times and self._begin_unix_ns is not None:
            self._find([figures], self._read_unix_ns)
            if len(self._gone) < _MAX_GONE:
                self._gone[program] = figures
        self.places.forget(program[0])

    def close(self) -> None:
        """End the last window."""
        if self._begin_unix_ns is not None and self._read_unix_ns > self._begin_unix_ns:
            self._end_window()

    def take(self, unix_ns: int | None) -> Iterator[ChronicFinding]:
        """Yield once what was found in windows that ended by ``unix_ns``; None: in all."""
        while self._found and (unix_ns is None or self._found[0].end_unix_ns <= unix_ns):
            yield self._found.popleft()

    def _end_window(self) -> None:
        self._find(self._state.figures(self._begin).values(), self._read_unix_ns)
        self._begin, self._begin_unix_ns = self._state.mark(), self._read_unix_ns
        self._gone.clear()
        self.places.age()

    def _find(self, figures: Iterable[Figures], end_unix_ns: int) -> None:
        figures = tuple(figures)
        resources = resources_of(figures)
        # Only of programs that are asked for: thousands can end, each in a window of its own.
        figures_of = cache(self._figures_of)
        assert self._begin_unix_ns is not None  # noqa: S101 -- a reading began it
        for one in figures:
            found = find_chronic(
                figures=one,
                start_unix_ns=self._begin_unix_ns,
                end_unix_ns=end_unix_ns,
                settings=self._settings,
                places=self.places,
                resources=resources,
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
        # Also of a program that ended in this window.
        figures = self._state.figures_of(program, self._begin)
        has_any = figures is not None and (figures.series or figures.times)
        return figures if has_any else self._gone.get(program)
