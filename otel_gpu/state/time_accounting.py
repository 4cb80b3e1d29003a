"""Accounts: the latest readings of each program, in bounded memory."""

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
"""Series kept, also of processes that ended; more than the kernel holds at a time."""
MAX_TIMES = 65_536
"""Entries of time accounts kept."""

# Of one with what only it refers to.
_SERIES_BYTES, _TIME_BYTES = 2_000, 400


Reading = Mapping[int, ThreadTime]
"""A reading of a time account, by the identity of its entries."""


class Compared(NamedTuple):
    """A reading, what in it is not as it was in the one before, and what is not in it any more."""

    now: dict[int, ThreadTime]
    changed: list[ThreadTime]
    gone: list[ThreadTime]


def compare(before: Reading, times: Iterable[ThreadTime]) -> Compared:
    """
    Compare two readings of a time account.

    Of hundreds of entries a few change from one to the next, and the others are the same objects: they
    are told apart without a look into them.
    """
    now = {id(time): time for time in times}
    changed = [time for key, time in now.items() if key not in before]
    gone = [time for key, time in before.items() if key not in now]
    return Compared(now, changed, gone)


@dataclass(slots=True, eq=False)
class Account:
    """
    The latest readings of one program.

    ``read`` is the latest reading of the time account as it came, for ``compare``.
    """

    process: Program
    series: dict[SeriesKey, Series] = field(default_factory=dict)
    times: dict[TimeKind, ThreadTime] = field(default_factory=dict)
    read: Reading = field(default_factory=dict)

    @property
    def size(self) -> int:
        """What it counts for where room is made."""
        return max(1, len(self.series))


_A = TypeVar("_A", bound=Account)


class Accounts(Generic[_A]):
    """
    Keeps accounts; bounded by their series, and by the entries of time accounts.

    Beyond a bound, those that ended are given up in the order of their ends, then those
    that were silent for longest.

    Args:
        open_account: Makes an account.
        most: Series at a time; an account without any counts as one.
        most_ended: Of these, series of programs that ended.
        give_up: Is called with an account that found no room any more, and whether it had ended.

    Attributes:
        size: How many series are kept; ``times``: how many entries of time accounts.
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
        # Asked at every span: a method of ours would cost as much again.
        self.get: Callable[[ProcessKey], _A | None] = self._accounts.get
        CACHES.register("accounts", self, "_accounts", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        return _SERIES_BYTES * self.size + _TIME_BYTES * self.times

    def items(self) -> ItemsView[ProcessKey, _A]:
        """Return all accounts, those first that were silent for longest."""
        return self._accounts.items()

    def values(self) -> ValuesView[_A]:
        """Return them without their programs."""
        return self._accounts.values()

    @property
    def ended(self) -> Collection[ProcessKey]:
        """The programs that ended."""
        return self._ended.keys()

    def find(self, process: Program) -> _A:
        """Return the account of a program that something is read of; it is opened."""
        program = key_of(process)
        account = self._accounts.pop(program, None)
        if account is None:
            self._has_room(program)
            account = self._open_account(process)
            self.size += 1
        self._accounts[program] = account
        # The latest knows its names best.
        account.process = process
        return account

    def put(self, account: _A, series: Series) -> bool:
        """Take in a reading of a series; False: there is no room for it."""
        known = account.series
        if series.key not in known and known:
            program = key_of(account.process)
            if not self._has_room(program):
                return False
            self.size += 1
            self._ended_size += program in self._ended
        known[series.key] = series
        return True

    def put_time(self, account: _A, time: ThreadTime) -> bool:
        """Take in a reading of an entry of the time account; False: there is no room for it."""
        known = account.times
        if time.kind not in known:
            if self.times >= MAX_TIMES:
                return False
            self.times += 1
        known[time.kind] = time
        return True

    def forget_time(self, account: _A, kind: TimeKind) -> None:
        """Forget an entry: what was in it is in others since a stack is known."""
        if account.times.pop(kind, None) is not None:
            self.times -= 1

    def end(self, program: ProcessKey) -> None:
        """Take in that a program ended."""
        account = self._accounts.get(program)
        if account is not None and program not in self._ended:
            self._ended[program] = None
            self._ended_size += account.size
            while self._ended_size > self._most_ended:
                self._drop(next(iter(self._ended)))

    def forget(self, program: ProcessKey) -> _A | None:
        """Let go of an account, and return it."""
        account = self._accounts.pop(program, None)
        if account is not None:
            self.size -= account.size
            self.times -= len(account.times)
            if program in self._ended:
                del self._ended[program]
                self._ended_size -= account.size
        return account

    def _has_room(self, program: ProcessKey) -> bool:
        """Make room for one more series of a program; False: all of it is its own."""
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
