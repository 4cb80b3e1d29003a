"""
Shares of a bound that all programs of a host have together.

A program can hold as many entries as are free, and all programs of one user ``USER_SHARE`` times as
many as are free. These limits fall while the entries fill up, so a single program ends at half of the
bound, a single user at three quarters, and each further user finds a quarter of what was free before
it came. Nothing has to be taken away again for a late comer. Switches divide packet buffers in the
same way (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998); so does
``bpf/core/shares.bpf.h`` for what the kernel side holds.
"""

from collections import Counter
from typing import NamedTuple

from otel_gpu.wire import UNKNOWN_USER, USER_SHARE


class EntryOwner(NamedTuple):
    """A program that holds entries: its process, and the process's real user (-1: not known)."""

    pid: int
    uid: int


class Shares:
    """
    Who holds how many entries of one bound.

    Args:
        bound: Most entries of all programs together.
    """

    def __init__(self, bound: int) -> None:
        self._free = bound
        self._of_programs: Counter[EntryOwner] = Counter()
        self._of_users: Counter[int] = Counter()

    def take(self, holder: EntryOwner) -> bool:
        """Charge one entry to a program; False: it, or its user, has its share already."""
        if (
            self._of_programs[holder] >= self._free
            or self._of_users[holder.uid] >= USER_SHARE * self._free
        ):
            return False
        self._free -= 1
        self._of_programs[holder] += 1
        self._of_users[holder.uid] += 1
        return True

    def give_back(self, holder: EntryOwner) -> None:
        """Free one entry that was charged to a program."""
        self._free += 1
        self._of_programs[holder] -= 1
        self._of_users[holder.uid] -= 1
        # An entry of each that ever held something would be a bound of its own.
        if self._of_programs[holder] <= 0:
            del self._of_programs[holder]
        if self._of_users[holder.uid] <= 0:
            del self._of_users[holder.uid]


def of_user(user: str | int) -> str:
    """Say whose a process is in texts, by the name or number of its user; empty or no number: not known."""
    is_known = bool(user) if isinstance(user, str) else 0 <= user < UNKNOWN_USER
    return f"of user {user}" if is_known else "of a user that is not known"
