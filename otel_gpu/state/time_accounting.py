"""Time accounting: the latest readings of each program, in bounded memory."""

from collections.abc import Callable, Collection, ItemsView, Iterable, Mapping, ValuesView
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.thread_times import ThreadTime, TimeKind
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.readings import SeriesKey

MAX_SERIES = 16_384
"""Series kept, also of ended processes; more than the kernel holds at a time."""
MAX_TIMES = 65_536
"""Entries of thread times kept."""

# One entry with what only it refers to.
_SERIES_BYTES, _TIME_BYTES = 2_000, 400


Reading = Mapping[int, ThreadTime]
"""A reading of thread times, by the identity of its entries."""


class Compared(NamedTuple):
    """A reading, the entries that changed since the one before, and those that are gone."""

    now: dict[int, ThreadTime]
    changed: list[ThreadTime]
    gone: list[ThreadTime]


def compare(before: Reading, times: Iterable[ThreadTime]) -> Compared:
    """
    Compare two readings of thread times.

    Of hundreds of entries few change between readings, and the others are the same objects. So
    identity is compared, and not values.
    """
    now = {id(time): time for time in times}
    changed = [time for key, time in now.items() if key not in before]
    gone = [time for key, time in before.items() if key not in now]
    return Compared(now, changed, gone)


@dataclass(slots=True, eq=False)
class Account:
    """
    The latest readings of one program.

    ``read`` is the latest reading of its thread times as it came, for ``compare``.
    """

    process: Program
    series: dict[SeriesKey, Series] = field(default_factory=dict)
    times: dict[TimeKind, ThreadTime] = field(default_factory=dict)
    read: Reading = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its size for the limit of series."""
        return max(1, len(self.series))


_A = TypeVar("_A", bound=Account)


class Accounts(Generic[_A]):
    """
    Keeps accounts; bounded by their series, and by entries of thread times.

    Beyond a limit, accounts of ended programs are evicted in the order of their ends, then those
    without readings for longest.

    Args:
        open_account: Makes an account.
        most: The most series; an account without any counts as one.
        most_ended: The most series of ended programs among them.
        give_up: Called with an evicted account, and whether it had ended.

    Attributes:
        size: How many series are kept; ``times``: how many entries of thread times.
        get: Returns the account of a program; None: there is none.
    """

    def __init__(
        self,
        open_account: Callable[[Program], _A],
        *,
        most: int,
        most_ended: int,
        give_up: Callable[[_A, bool], None],
    ) -> None:
        self._open_account = open_account
        self._most = most
        self._most_ended = most_ended
        self._give_up = give_up
        # In the order of their latest readings.
        self._accounts: dict[ProcessKey, _A] = {}
        # In the order of their ends.
        self._ended: dict[ProcessKey, None] = {}
        self._ended_size = 0
        self.size = self.times = 0
        # Called at every span: a method of this class would cost as much again.
        self.get: Callable[[ProcessKey], _A | None] = self._accounts.get
        CACHES.register("accounts", self, "_accounts", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        return _SERIES_BYTES * self.size + _TIME_BYTES * self.times

    def items(self) -> ItemsView[ProcessKey, _A]:
        """Return all accounts, those without readings for longest first."""
        return self._accounts.items()

    def values(self) -> ValuesView[_A]:
        """Return all accounts without their keys."""
        return self._accounts.values()

    @property
    def ended(self) -> Collection[ProcessKey]:
        """The programs that ended."""
        return self._ended.keys()

    def find(self, process: Program) -> _A:
        """Return the account of a program with a new reading; it is opened if needed."""
        program = key_of(process)
        account = self._accounts.pop(program, None)
        if account is None:
            self._evict_for(program)
            account = self._open_account(process)
            self.size += 1
        self._accounts[program] = account
        # The latest one has the best names.
        account.process = process
        return account

    def put(self, account: _A, series: Series) -> bool:
        """Add a reading of a series; False: it exceeds the limit."""
        known = account.series
        if series.key not in known and known:
            program = key_of(account.process)
            if not self._evict_for(program):
                return False
            self.size += 1
            self._ended_size += program in self._ended
        known[series.key] = series
        return True

    def put_time(self, account: _A, time: ThreadTime) -> bool:
        """Add a reading of an entry of thread times; False: it exceeds the limit."""
        known = account.times
        if time.kind not in known:
            if self.times >= MAX_TIMES:
                return False
            self.times += 1
        known[time.kind] = time
        return True

    def forget_time(self, account: _A, kind: TimeKind) -> None:
        """Forget an entry. Its time is in others since a stack is known."""
        if account.times.pop(kind, None) is not None:
            self.times -= 1

    def end(self, program: ProcessKey) -> None:
        """Note that a program ended."""
        account = self._accounts.get(program)
        if account is not None and program not in self._ended:
            self._ended[program] = None
            self._ended_size += account.size
            while self._ended_size > self._most_ended:
                self._drop(next(iter(self._ended)))

    def forget(self, program: ProcessKey) -> _A | None:
        """Remove an account, and return it."""
        account = self._accounts.pop(program, None)
        if account is not None:
            self.size -= account.size
            self.times -= len(account.times)
            if program in self._ended:
                del self._ended[program]
                self._ended_size -= account.size
        return account

    def _evict_for(self, program: ProcessKey) -> bool:
        # Evicts for one more series of a program; False: all space is its own.
        while True:
            if self.size >= self._most:
                others = chain(self._ended, self._accounts)
            elif program in self._ended and self._ended_size >= self._most_ended:
                others = chain(self._ended)
            else:
                return True
            other = next((one for one in others if one != program), None)
            if other is None:
                return False
            self._drop(other)

    def _drop(self, program: ProcessKey) -> None:
        has_ended = program in self._ended
        account = self.forget(program)
        if account is not None:
            self._give_up(account, has_ended)
