"""
Budgets of work that watched processes cause: one for each process, for each user and in total.

A process decides how large and how costly its mappings are to read. So the budget is checked before
such work, and its cost is charged afterwards. One task can exceed the budget by its own cost, which
its own bounds limit, and by no more.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from otel_gpu.limits.recent import Recent

_MAX_ACCOUNTS = 4096

_Holder = TypeVar("_Holder", bound=Hashable)


class Share(NamedTuple):
    """A token bucket: its capacity, and its refill per second."""

    at_once: float
    per_second: float


class _Account:
    def __init__(self, share: Share, now_s: float) -> None:
        self._share = share
        self._left = share.at_once
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        back = self._share.per_second * (now_s - self._at_s)
        self._left, self._at_s = min(self._share.at_once, self._left + back), now_s
        return self._left

    def pay(self, amount: float, now_s: float) -> None:
        self._left = self.left(now_s) - amount

    def is_whole(self, now_s: float) -> bool:
        return self.left(now_s) >= self._share.at_once


class WorkBudget:
    """
    What was spent: seconds, bytes, or another unit that all three shares have in common.

    Args:
        process: The share of each process.
        user: The share of all processes of a user.
        total: The share of all users.
        clock: A monotonic clock in seconds, which refills the shares.
    """

    def __init__(
        self,
        process: Share,
        user: Share,
        total: Share,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares = process, user
        self._clock = clock
        self._total = _Account(total, clock())
        # A process that pays nothing for long has all of its share again, as a new one has: it is forgotten.
        self._processes: Recent[Hashable, _Account] = Recent(_MAX_ACCOUNTS, cache="known_processes")
        self._users: Recent[int, _Account] = Recent(_MAX_ACCOUNTS, cache="known_processes")

    def allows(self, process: Hashable, uid: int) -> bool:
        """Whether something is left of all three shares."""
        now_s = self._clock()
        return min(self._total.left(now_s), *self.left(process, uid)) > 0

    def left(self, process: Hashable, uid: int) -> tuple[float, float]:
        """Return what is left for a user and for one of its processes; negative: overspent."""
        now_s = self._clock()
        of_process, of_user = self._accounts(process, uid)
        return of_user.left(now_s), of_process.left(now_s)

    def pay(self, process: Hashable, uid: int, amount: float) -> None:
        """Charge work for a process to all three shares."""
        now_s = self._clock()
        for account in (self._total, *self._accounts(process, uid)):
            account.pay(amount, now_s)

    @contextmanager
    def paying(self, process: Hashable, uid: int) -> Iterator[None]:
        """Charge the seconds that pass inside, also if it raises."""
        begun_s = self._clock()
        try:
            yield
        finally:
            self.pay(process, uid, self._clock() - begun_s)

    def _accounts(self, process: Hashable, uid: int) -> tuple[_Account, _Account]:
        of_process, of_user = self._shares
        return (
            self._account(self._processes, process, of_process),
            self._account(self._users, uid, of_user),
        )

    def _account(
        self, accounts: Recent[_Holder, _Account], holder: _Holder, share: Share
    ) -> _Account:
        found = accounts.use(holder)
        if found is None:
            now_s = self._clock()
            while accounts and accounts[accounts.oldest].is_whole(now_s):
                del accounts[accounts.oldest]
            found = accounts[holder] = _Account(share, now_s)
        return found
