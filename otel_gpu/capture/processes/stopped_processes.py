"""
Continues processes that the kernel side stopped.

Each has a record in the lifecycle ring. Code that takes such a record out of the ring has to continue the
process in any case, also at the end of the capture.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Self

from otel_gpu import wire
from otel_gpu.capture.record_headers import header_of
from otel_gpu.procfs.proc_files import process_name, read_file, stat_fields
from otel_gpu.procfs.users import real_uid

_LAYOUTS = {
    wire.RECORD_EXEC: wire.EXEC_RECORD,
    wire.RECORD_LIBRARY: wire.LIBRARY_RECORD,
    wire.RECORD_PRELOAD: wire.PRELOAD_RECORD,
}

AGENT_NAME = "otel-gpu"
"""The name of an agent's process."""
_MAX_ANCESTORS = 32
_MAX_NAME_BYTES = 64
_MAX_STATUS_BYTES = 1 << 16
# How long to wait for another agent's probes, and how often to check.
_OTHER_AGENT_S = 0.1
_POLL_S = 0.005


def let_go_on(pid: int) -> None:
    """Continue a process, if it exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def let_all_go_on(records: Iterable[bytes]) -> None:
    """Continue all processes that records of the lifecycle ring report as stopped."""
    for record in records:
        header = header_of(record)
        if header.kind in _LAYOUTS and _LAYOUTS[header.kind].named(record)["stopped"]:
            let_go_on(header.pid)


class Hold:
    """
    A stop of a process while its probes are placed; a context manager that continues it at the end.

    If another agent places probes as well, it gets some time first.

    Args:
        pid: The process.
        tid: Its thread that hit the probe.
        stopped: Whether the process was stopped.
    """

    def __init__(self, pid: int, tid: int, *, stopped: bool) -> None:
        self.stopped = stopped
        self._pid = pid
        self._folder = f"/proc/{pid}/task/{tid}"
        self._ran = self._has_run() if stopped and self._stands_still() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stopped:
            return
        if _has_other_agent(self._pid):
            until_s = time.monotonic() + _OTHER_AGENT_S
            while self.lasts() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            if self._ran is not None and self._stands_still() and not self.lasts():
                # The other agent has continued it, and this is the next stop, which has its own record.
                return
        let_go_on(self._pid)

    def lasts(self) -> bool:
        """Whether the process has been stopped all the time; others can have continued it."""
        # Checked twice, because it can stop between the first check and the second.
        stands = self._stands_still() or self._is_about_to() or self._stands_still()
        return stands and self._ran in {None, self._has_run()}

    def _stands_still(self) -> bool:
        return stat_fields(self._folder)[:1] == [b"T"]

    def _is_about_to(self) -> bool:
        # Whether SIGSTOP is still pending, which happens on a busy machine.
        for line in read_file(f"{self._folder}/status", _MAX_STATUS_BYTES).splitlines():
            name, _, pending = line.partition(b":")
            if name == b"SigPnd":
                return bool(int(pending, 16) >> (signal.SIGSTOP - 1) & 1)
        return False

    def _has_run(self) -> bytes:
        # CPU time and number of time slices.
        return read_file(f"{self._folder}/schedstat", _MAX_NAME_BYTES)


def _has_other_agent(pid: int) -> bool:
    # Another agent can be an ancestor, also below or above this one.
    for _ in range(_MAX_ANCESTORS):
        fields = stat_fields(f"/proc/{pid}")
        if not fields:
            return False
        pid = int(fields[1])
        if pid == os.getpid() or process_name(pid) != AGENT_NAME:
            continue
        # Any program can use that name to delay us, so its user has to be root or ours.
        if real_uid(pid) in {0, os.getuid()}:
            return True
    return False
