"""
Processes whose memory or files were not read, because that would have taken too long or could have blocked.

RECORD_STATUS names the first of them, once per process and kind of data.
"""

import logging
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.limits.shares import of_user
from otel_gpu.procfs.proc_files import process_name
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.wire.bodies import UnreadFacts

MAX_NAMED: Final = 32
_MAX_REMEMBERED: Final = 4096

_logger = logging.getLogger(__name__)


class Unread:
    """
    Names processes with unread data.

    Attributes:
        files: How many files were not read.
    """

    def __init__(self) -> None:
        self._known: Recent[tuple[int, str], None] = Recent(
            _MAX_REMEMBERED, cache="known_processes"
        )
        self._named: list[UnreadFacts] = []
        self.files = 0

    def add(self, pid: int, uid: int, what: str, reason: str) -> None:
        """
        Name a process with unread data, and log it once; ``what`` and ``reason`` appear in reports.
        """
        if (pid, what) in self._known:
            return
        self._known[pid, what] = None
        text = "%s of process %d %s is not read: %s"
        PROCESS_LOG.warning(_logger, pid, text, what, pid, of_user(uid), reason)
        if len(self._named) < MAX_NAMED:
            name = process_name(pid)
            named: UnreadFacts = {
                "pid": pid,
                "uid": uid,
                "name": name,
                "what": what,
                "reason": reason,
            }
            self._named.append(named)

    def add_file(self, pid: int, uid: int, path: str, reason: str) -> None:
        """Count a file of a process, or other data by its name, that was not read."""
        self.files += 1
        self.add(
            pid, uid, what="some of its files" if path.startswith("/") else path, reason=reason
        )

    @property
    def named(self) -> list[UnreadFacts]:
        """The first processes, as in RECORD_STATUS."""
        return list(self._named)
