"""
The nice value of the capturing thread, so that the watched programs get CPUs first.

The thread runs with a higher nice value, except while something waits for it: a process that is
stopped until its probes are placed, or a ring buffer that fills up. On a busy machine a thread with a
high nice value gets a tenth of a CPU or less, and the kernel drops records when the ring is full.
"""

import contextlib
import logging
import os
import resource
import threading
from typing import Final

NICE_CAPABILITIES: Final = frozenset({"SYS_NICE"})
"""Capabilities for lowering the nice value again where RLIMIT_NICE does not allow it."""
_HIGHEST_NICE: Final = 19
# RLIMIT_NICE is 20 minus the nice value.
_LIMIT_OF_NICE_0: Final = 20

_logger = logging.getLogger(__name__)


def allow_return() -> bool:
    """
    Raise RLIMIT_NICE so that the present nice value can be restored without a capability.

    Call it while the process has its privileges; children inherit the limit. Returns False if the
    limit could not be raised.
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
    Switches the nice value of the calling thread.

    Args:
        lowered_by: How much to raise the nice value while nothing waits for the thread; 0: never.
    """

    def __init__(self, lowered_by: int) -> None:
        self._own = os.getpriority(os.PRIO_PROCESS, 0)
        self._low = min(_HIGHEST_NICE, self._own + lowered_by)
        self._now = self._own
        if self._low > self._own and not _can_return(self._own):
            _logger.info("the nice value stays %d: it could not be lowered again", self._own)
            self._low = self._own

    def adjust(self, *, is_urgent: bool) -> None:
        """Set the nice value by whether something waits for the thread."""
        wanted = self._own if is_urgent else self._low
        if wanted != self._now:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, wanted)
                self._now = wanted


def _can_return(nice: int) -> bool:
    # Tried on a thread of its own, because it may be impossible to undo.
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
