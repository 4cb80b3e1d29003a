"""
Which of the agent and its neighbours has a CPU first: those that it watches.

The thread that captures runs with a higher nice value, but not while something waits for it: a
process that stands still until its probes are placed, or records that fill the ring buffer. On a busy
machine a lowered thread gets a tenth of a CPU or less, and the kernel drops what finds no room.
"""

import contextlib
import logging
import os
import resource
import threading
from typing import Final

NICE_CAPABILITIES: Final = frozenset({"SYS_NICE"})
"""What a thread needs to lower its nice value again where its limit does not allow that."""
_HIGHEST_NICE: Final = 19
# What RLIMIT_NICE counts from: 20 stands for nice 0.
_LIMIT_OF_NICE_0: Final = 20

_logger = logging.getLogger(__name__)


def allow_return() -> bool:
    """
    Let this process lower its nice value to what it is now without a capability; False: it needs one.

    To be called while it has its privileges. What it starts later inherits the limit.
    """
    wanted = _LIMIT_OF_NICE_0 - os.getpriority(os.PRIO_PROCESS, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return True
    try:
        resource.setrlimit(resource.RLIMIT_NICE, (wanted, max(wanted, hard)))
    except (ValueError, OSError):
        return False
    return True


class Priority:
    """
    The nice value of the thread that makes this and calls it.

    Args:
        lowered_by: How much higher it is while nothing waits for the thread; 0: it stays as it is.
    """

    def __init__(self, lowered_by: int) -> None:
        self._own = os.getpriority(os.PRIO_PROCESS, 0)
        self._low = min(_HIGHEST_NICE, self._own + lowered_by)
        self._now = self._own
        if self._low > self._own and not _can_return(self._own):
            _logger.info("the nice value stays %d: it could not be lowered again", self._own)
            self._low = self._own

    def adjust(self, *, is_urgent: bool) -> None:
        """Take in whether something waits for the thread."""
        wanted = self._own if is_urgent else self._low
        if wanted != self._now:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, wanted)
                self._now = wanted


def _can_return(nice: int) -> bool:
    """Try it on a thread of its own, as the nice value is a thread's: there may be no way back."""
    found: list[bool] = []

    def try_it() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice + 1)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            found.append(True)

    thread = threading.Thread(target=try_it, name="priority")
    thread.start()
    thread.join()
    return bool(found)
