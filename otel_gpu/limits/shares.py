"""
Shares of a bound that all programs of a host have in common.

One program can hold as many entries as are free, and all programs of one user ``USER_SHARE`` times
that. These limits fall while the entries fill up. So one program ends at half of the bound, one user
at three quarters, and each further user finds a quarter of what was free before it started. No entry
has to be revoked for a user that comes later. Switches divide packet buffers in the same way
(Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998), and so does
``bpf/core/shares.bpf.h`` for the maps of the kernel side.
"""

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from otel_gpu.wire import UNKNOWN_USER, USER_SHARE


class ShareBound(StrEnum):
    """A bound that programs share, and that was reached."""

    FILES = "files"
    SERIES = "series"
    TIMES = "times"
    FOLDED_TIMES = "folded_times"
    PROCESSES = "processes"
    THREADS = "threads"
    KERNEL_STACKS = "kernel_stacks"
    LIFECYCLE_RING = "lifecycle_ring"
    RING = "ring"
    SPANS = "spans"
    BLOCK_STACKS = "block_stacks"
    CHAINS = "chains"
    EXPORT_QUEUE = "export_queue"
    LOG_LINES = "log_lines"


class EntryOwner(NamedTuple):
    """A program that holds entries: its process, and the process's real user (-1: not known)."""

    pid: int
    uid: int


class Shares:
    """
    The entries that each program and each user holds of one bound.

    Args:
        bound: Most entries of all programs together.
    """

    def __init__(self, bound: int) -> None:
        self._free = bound
        self._of_programs: Counter[EntryOwner] = Counter()
        self._of_users: Counter[int] = Counter()

    def take(self, holder: EntryOwner) -> bool:
        """Charge one entry to a program; False: the program or its user has its whole share."""
        if (
            self._of_programs[holder] >= self._free
            or self._of_users[holder.uid] >= USER_SHARE * self._free
        ):
            return False
        self._free -= 1
        self._of_programs[holder] += 1
        self._of_users[holder.uid] += 1
        return True

    def release(self, holder: EntryOwner) -> None:
        """Free one entry that was charged to a program."""
        self._free += 1
        self._of_programs[holder] -= 1
        self._of_users[holder.uid] -= 1
        # Counters of zero would accumulate: one for each program that ever held an entry.
        if self._of_programs[holder] <= 0:
            del self._of_programs[holder]
        if self._of_users[holder.uid] <= 0:
            del self._of_users[holder.uid]


def of_user(user: str | int) -> str:
    """Return "of user NAME" for a text; an empty name or an invalid number is an unknown user."""
    is_known = bool(user) if isinstance(user, str) else 0 <= user < UNKNOWN_USER
    return f"of user {user}" if is_known else "of a user that is not known"
