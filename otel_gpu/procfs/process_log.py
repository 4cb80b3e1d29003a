"""
Rate-limited log lines about processes, with a share for each process and each user.

Lines that one program causes must not hide lines about others: a journal that gets too many lines drops
some of them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.limits.shares import EntryOwner, Shares, of_user
from otel_gpu.procfs.users import real_uid, user_name

MAX_LINES: Final = 128
"""Most lines about all processes together in one window."""
WINDOW_S: Final = 60.0


class ProcessLog:
    """
    Logs warnings about processes.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s = clock()
        self._shares = Shares(MAX_LINES)
        self._left_out: Counter[EntryOwner] = Counter()
        self._named: set[int] = set()

    def warning(self, logger: logging.Logger, pid: int, text: str, *arguments: object) -> None:
        """Log a warning about a process, if its share and its user's allow it in this window."""
        now_s = self._clock()
        if now_s - self._begun_s >= WINDOW_S:
            self._begun_s, self._shares = now_s, Shares(MAX_LINES)
            self._named.clear()
        holder = EntryOwner(pid, real_uid(pid))
        if self._shares.take(holder):
            logger.warning(text, *arguments)
            return
        self._left_out[holder] += 1
        if holder.uid not in self._named:
            self._named.add(holder.uid)
            logger.warning(
                "there are too many lines about process %d %s: more are left out for %.0f s",
                *(pid, of_user(user_name(holder.uid)), WINDOW_S),
            )

    def left_out(self) -> Mapping[EntryOwner, int]:
        """Return the lines left out about each process since the last call."""
        left_out, self._left_out = self._left_out, Counter()
        return left_out


PROCESS_LOG: Final = ProcessLog()
"""The log of this agent."""
