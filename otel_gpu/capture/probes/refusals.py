"""
Entries that were refused to programs whose share is used up, so that reports can name the programs.

The losses themselves are counted where they happen, by reason. RECORD_STATUS has the programs and users.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from otel_gpu.limits.recent import Recent
from otel_gpu.limits.shares import EntryOwner, ShareBound, of_user
from otel_gpu.procfs.proc_files import process_name
from otel_gpu.procfs.users import user_name
from otel_gpu.wire.bodies import ShareFacts

MAX_NAMED: Final = 32
_MAX_REMEMBERED = 4096

_logger = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A bound, and the program to which entries were refused; pid 0: programs of a user."""

    bound: ShareBound
    holder: EntryOwner


class Refusals:
    """
    Counts refused entries by program and user.

    Attributes:
        named: The largest counts at the latest ``describe``, as in RECORD_STATUS.
        are_new: Whether there were refusals since then.
    """

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()
        self._names: Recent[int, str] = Recent(_MAX_REMEMBERED, cache="known_processes")
        self._logged: set[Refusal] = set()
        self.named: list[ShareFacts] = []
        self.are_new = False

    def add(self, bound: ShareBound, holder: EntryOwner, count: int = 1, *, name: str = "") -> None:
        """Count refused entries; ``name`` is the process's, if known."""
        self._counts[self._place(Refusal(bound, holder))] += count
        self._learn_name(holder.pid, name)
        self.are_new = True

    def add_at_least(self, bound: ShareBound, holder: EntryOwner, count: int) -> None:
        """Set the count to at least ``count``, for refusals that can repeat earlier ones."""
        refusal = self._place(Refusal(bound, holder))
        self._counts[refusal] = max(self._counts[refusal], count)
        self._learn_name(holder.pid, "")
        self.are_new = True

    def describe(self, others: Iterable[tuple[ShareBound, EntryOwner, int, str]]) -> None:
        """
        Update ``named``, and log each program or user the first time.

        Args:
            others: (bound, holder, count, name of the process) that are counted elsewhere.
        """
        self.are_new = False
        counts = self._counts.copy()
        for bound, holder, count, name in others:
            counts[self._place(Refusal(bound, holder))] += count
            self._learn_name(holder.pid, name)
        self.named = [
            {
                "bound": refusal.bound,
                "pid": refusal.holder.pid,
                "name": self._names.get(refusal.holder.pid, ""),
                "user": user_name(refusal.holder.uid),
                "count": count,
            }
            for refusal, count in counts.most_common(MAX_NAMED)
        ]
        for refusal, one in zip(dict(counts.most_common(MAX_NAMED)), self.named, strict=True):
            if refusal not in self._logged and len(self._logged) < _MAX_REMEMBERED:
                self._logged.add(refusal)
                who = f"{one['name'] or 'process'} ({one['pid']})" if one["pid"] else "all programs"
                _logger.warning(
                    "%s %s had the share of what all programs have together (%s): more is "
                    "refused, and counted",
                    *(who, of_user(one["user"]), one["bound"]),
                )

    def _place(self, refusal: Refusal) -> Refusal:
        # Beyond the limit, programs of a user are counted together.
        if refusal in self._counts or len(self._counts) < _MAX_REMEMBERED:
            return refusal
        return Refusal(refusal.bound, EntryOwner(0, refusal.holder.uid))

    def _learn_name(self, pid: int, name: str) -> None:
        if not pid or self._names.get(pid, ""):
            return
        if pid in self._names and not name:
            return  # It had ended when it was first seen.
        self._names[pid] = process_name(pid) or name
