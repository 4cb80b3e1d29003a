"""
The state of a capture: the latest reading of everything that is counted, and what a window added to
it.

    state = CaptureState(Window(start_unix_ns))
    for activity in activities:
        state.observe(activity)
    for figures in state.figures().values():
        print(figures.process.pid, figures.series, figures.times)
"""

# The kernel counts since a process began, and is read once a second. So what happened in a window
# is the difference of two readings: the last one before the window, and the first one at or after
# its end. The figures of a window cover up to a second more at each end, so that nothing in it is
# left out.
#
# A reading contains only what changed, as whole values: it replaces the one before, and never adds
# to it.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    ExitActivity,
    Series,
    TimesActivity,
)
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.percentiles import known_middles
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.differences import (
    aggregate_with,
    moved_by_name,
    series_since,
    time_since,
    time_with,
)
from otel_gpu.state.time_accounting import MAX_SERIES, Account, Accounts, compare
from otel_gpu.state.window import Window
from otel_gpu.wire.readings import Aggregate, SeriesKey

COUNTED = frozenset({wire.METRIC_CALL_DURATION, wire.METRIC_RUN_QUEUE, wire.METRIC_ELAPSED_TIME})
"""The metrics of series that figures contain."""

# Ended programs whose readings did not come yet: most processes that end counted nothing.
_MAX_EARLY = 1_024


class Figures(NamedTuple):
    """
    What one program added to its readings in an interval.

    ``warm_up_ns`` has the APIs that were first called in it: by number, the longest call.
    """

    process: Program
    series: tuple[Series, ...]
    times: tuple[ThreadTime, ...]
    warm_up_ns: Mapping[int, int] = {}

    @property
    def calls(self) -> Iterator[Series]:
        """The series of its calls, each once."""
        return (one for one in self.series if one.key.metric == wire.METRIC_CALL_DURATION)

    @property
    def elapsed_times(self) -> Iterator[Series]:
        """The series of times that it measured itself by CUDA events, one for each device."""
        return (one for one in self.series if one.key.metric == wire.METRIC_ELAPSED_TIME)


class SeriesDelta(NamedTuple):
    """
    What one reading of a series added to the one before in the same capture.

    It was added after ``since_unix_ns``: the reading before, or the start of the capture. None: the
    stream has neither.
    """

    series: Series
    before: Aggregate | None
    since_unix_ns: int | None
    unix_ns: int


Mark = Mapping[ProcessKey, Account]
"""The state at a time."""


class CaptureState:
    """
    The latest readings of all programs; bounded.

    Args:
        window: The window of ``figures`` and ``follow``.
        metrics: Series of other metrics are not kept.
        max_series: The most series.
        max_ended: The most series of ended programs.
        follow: Called with what each reading adds to a series.

    Attributes:
        window: As given.
        accounts: The latest readings.
        middles_ns: The value of each bucket of durations; empty: not known.
        start_unix_ns: When the series were last read before the window, in the same capture; None:
            never.
        end_unix_ns: When they were last read; None: not yet.
        readings: How often they were read in the window.
        read_ns: The time between these readings, and from the start of each capture to its first.
        is_accounted: Whether thread times were ever read.
        left_out: Readings that exceeded the limit.
        forgotten: Ended programs that were evicted.
    """

    def __init__(
        self,
        window: Window = Window(),  # noqa: B008 -- immutable
        *,
        metrics: AbstractSet[int] = COUNTED,
        max_series: int | None = None,
        max_ended: int | None = None,
        follow: Callable[[SeriesDelta], None] | None = None,
    ) -> None:
        self.window = window
        self._metrics = metrics
        self._follow = follow
        most = MAX_SERIES if max_series is None else max_series
        self.accounts = Accounts(
            Account,
            most=most,
            most_ended=most if max_ended is None else max_ended,
            give_up=self._give_up,
        )
        self._early: Fifo[ProcessKey, None] = Fifo(_MAX_EARLY)
        self._begin: dict[ProcessKey, Account] | None = {} if window.start_unix_ns is None else None
        # Of the capture that is read: its start, the latest reading of each kind, and the latest
        # two of the series; the start stands for the reading before the first.
        self._capture_unix_ns: int | None = None
        self._read_unix_ns: dict[type, int] = {}
        self._since_unix_ns: int | None = None
        self._now_unix_ns: int | None = None
        self.middles_ns: Sequence[float] = ()
        self.start_unix_ns: int | None = None
        self.end_unix_ns: int | None = None
        self.is_accounted = False
        self.readings = 0
        self.read_ns = 0
        self.left_out = 0
        self.forgotten = 0

    def observe(self, activity: Activity) -> None:
        """Add an activity; kinds without counts are ignored."""
        match activity:
            case AggregatesActivity():
                if self._is_in_window(AggregatesActivity, activity.unix_ns):
                    self._observe_series(activity)
            case TimesActivity():
                self.is_accounted = True
                if self._is_in_window(TimesActivity, activity.unix_ns):
                    self._observe_times(activity)
            case ExitActivity():
                self._observe_exit(key_of(activity.process))
            case CaptureActivity():
                self.middles_ns = known_middles(activity.info["layout"], "durations")
                self._capture_unix_ns = self._since_unix_ns = activity.unix_ns
                self._now_unix_ns = None
                self._read_unix_ns.clear()

    def mark(self) -> dict[ProcessKey, Account]:
        """Return the current state, for ``figures``."""
        return {program: _copy(account) for program, account in self.accounts.items()}

    def figures(self, since: Mark | None = None) -> dict[ProcessKey, Figures]:
        """
        Return what programs added since a mark, or in the window; only programs that added
        anything.
        """
        mark = self._begin if since is None else since
        if mark is None:
            return {}
        found = {
            program: _figures_of(account, mark.get(program), self.middles_ns)
            for program, account in sorted(self.accounts.items(), key=itemgetter(0))
        }
        return {program: one for program, one in found.items() if one.series or one.times}

    def figures_of(self, program: ProcessKey, since: Mark) -> Figures | None:
        """Return what one program added since a mark; None: nothing is known of it."""
        account = self.accounts.get(program)
        if account is None:
            return None
        return _figures_of(account, since.get(program), self.middles_ns)

    def callers(self) -> set[ProcessKey]:
        """Return the programs that made a CUDA call, before the window or in it."""
        return {
            program
            for program, account in self.accounts.items()
            if any(key.metric == wire.METRIC_CALL_DURATION for key in account.series)
        }

    def forget(self, program: ProcessKey) -> None:
        """Drop the account of a program."""
        self.accounts.forget(program)

    def sum_up(self, into: Mapping[ProcessKey, Program | None]) -> set[ProcessKey]:
        """
        Add the figures of ended programs to those of others; None: drop them.

        Sums keep only metric, API, nesting, and whether a call failed. Returns the programs that
        added anything in the window.
        """
        seen: set[ProcessKey] = set()
        for program in into:
            account, whole, begin = self.accounts.get(program), into[program], self._begin
            if account is None:
                continue
            self.forget(program)
            if whole is None or begin is None:
                continue
            found = _figures_of(account, begin.get(program), self.middles_ns)
            if found.series or any(time.time_ns for time in found.times):
                seen.add(program)
                self._add_to(self.accounts.find(whole), found)
        return seen

    def _add_to(self, whole: Account, figures: Figures) -> None:
        pid, program_ktime_ns = whole.process.pid, whole.process.program_ktime_ns
        for _, key, api, _, counted in figures.series:
            is_failed = int(key.status != 0)
            name = SeriesKey(
                program_ktime_ns, pid, is_failed, -1, key.metric, key.api, 0, key.nested
            )
            known = whole.series.get(name)
            if known is not None:
                counted = aggregate_with(known.aggregate, counted)  # noqa: PLW2901
            self.accounts.put(whole, Series(whole.process, name, api, None, counted))
        for time in figures.times:
            known_time = whole.times.get(time.kind)
            summed = time if known_time is None else time_with(time, known_time)
            self.accounts.put_time(whole, summed._replace(process=whole.process))

    def _is_in_window(self, kind: type, unix_ns: int) -> bool:
        # Note a reading; False: the window was over before it.
        if self._begin is None and unix_ns > (self.window.start_unix_ns or 0):
            self._begin = self.mark()
            self.start_unix_ns = self._now_unix_ns
        last, end = self._read_unix_ns.get(kind, self._capture_unix_ns), self.window.end_unix_ns
        # One reading can be several activities.
        if last is not None and end is not None and last >= end and last != unix_ns:
            return False
        self._read_unix_ns[kind] = unix_ns
        return True

    def _observe_series(self, activity: AggregatesActivity) -> None:
        unix_ns = activity.unix_ns
        is_counted = self._begin is not None and not self._is_before(unix_ns)
        # One reading can be several activities.
        if unix_ns != self._now_unix_ns:
            if self._now_unix_ns is not None:
                self._since_unix_ns = max(self._now_unix_ns, self._capture_unix_ns or 0)
            self._now_unix_ns = unix_ns
            self.end_unix_ns = max(unix_ns, self.end_unix_ns or 0)
            if is_counted:
                self.readings += 1
                self.read_ns += max(0, unix_ns - (self._since_unix_ns or unix_ns))
        follow = self._follow if is_counted else None
        account: Account | None = None
        for series in activity.series:
            key = series.key
            if key.metric not in self._metrics:
                continue
            # Series of one process come together.
            if account is None or account.process is not series.process:
                account = self._account(series.process)
            known = account.series.get(key)
            if not self.accounts.put(account, series):
                self.left_out += 1
                continue
            # Every call takes time, so an equal sum means that nothing was added.
            before = None if known is None else known.aggregate
            if follow and (before is None or before.sum != series.aggregate.sum):
                follow(SeriesDelta(series, before, self._since_unix_ns, unix_ns))
        self._leave_out(unix_ns, (series.process for series in activity.series))

    def _observe_times(self, activity: TimesActivity) -> None:
        # A reading is complete for each process in it.
        for process, times in groupby(activity.times, attrgetter("process")):
            account = self._account(process)
            now, changed, gone = compare(account.read, times)
            kinds = {time.kind for time in changed}
            for kind in {time.kind for time in gone} - kinds:
                self.accounts.forget_time(account, kind)
            for time in changed:
                if not self.accounts.put_time(account, time):
                    self.left_out += 1
                    # Still new in the next reading, when there can be space.
                    del now[id(time)]
            account.read = now
        self._leave_out(activity.unix_ns, (time.process for time in activity.times))

    def _is_before(self, unix_ns: int) -> bool:
        start_unix_ns = self.window.start_unix_ns
        return start_unix_ns is not None and unix_ns <= start_unix_ns

    def _leave_out(self, unix_ns: int, processes: Iterable[Program]) -> None:
        # If an earlier capture comes later: count for the window from this reading on.
        if self._begin is not None and self._is_before(unix_ns):
            for process in {key_of(process): process for process in processes}.values():
                self._begin[key_of(process)] = _copy(self._account(process))

    def _observe_exit(self, program: ProcessKey) -> None:
        if self.accounts.get(program):
            self.accounts.end(program)
            return
        self._early[program] = None

    def _account(self, process: Program) -> Account:
        account = self.accounts.find(process)
        if self._early and key_of(process) in self._early:
            del self._early[key_of(process)]
            self.accounts.end(key_of(process))
        return account

    def _give_up(self, account: Account, has_ended: bool) -> None:
        if has_ended:
            self.forgotten += 1
        else:
            self.left_out += len(account.series)


def _figures_of(account: Account, then: Account | None, middles_ns: Sequence[float]) -> Figures:
    warm_up_ns = _warm_up_ns(account, {key.api for key in then.series} if then else set())
    if then is None:
        series, times = tuple(account.series.values()), tuple(account.times.values())
        return Figures(account.process, series, times=times, warm_up_ns=warm_up_ns)
    times_then = moved_by_name(then.times, account.times)
    added = (
        series_since(series, then.series.get(key), middles_ns)
        for key, series in account.series.items()
    )
    return Figures(
        account.process,
        series=tuple(series for series in added if series is not None),
        times=tuple(time_since(time, times_then.get(kind)) for kind, time in account.times.items()),
        warm_up_ns=warm_up_ns,
    )


def _warm_up_ns(account: Account, known: AbstractSet[int]) -> dict[int, int]:
    longest_ns: dict[int, int] = {}
    for key, series in account.series.items():
        if key.metric == wire.METRIC_CALL_DURATION and key.api not in known:
            longest_ns[key.api] = max(longest_ns.get(key.api, 0), series.aggregate.max)
    return longest_ns


def _copy(account: Account) -> Account:
    return Account(account.process, dict(account.series), dict(account.times))
