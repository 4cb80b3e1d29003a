"""
Processes that the kernel side stopped, and that wait for the agent to let them go on.

Each is named by a record of the lifecycle ring. Whoever takes such a record out of the ring has to
let the process go on, whatever happens, also at the end.
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
"""What an agent's process is called."""
_MAX_ANCESTORS = 32
_MAX_NAME_BYTES = 64
_MAX_STATUS_BYTES = 1 << 16
# How long another agent may take to place its probes, and how often that is asked.
_OTHER_AGENT_S = 0.1
_POLL_S = 0.005


def let_go_on(pid: int) -> None:
    """Let a process go on, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def let_all_go_on(records: Iterable[bytes]) -> None:
    """Let go on whatever some records of the lifecycle ring say was stopped."""
    for record in records:
        header = header_of(record)
        if header.kind in _LAYOUTS and _LAYOUTS[header.kind].named(record)["stopped"]:
            let_go_on(header.pid)


class Hold:
    """
    What a process does between a stop for its probes and their being placed; a context manager.

    At its end the process goes on. Where another agent places probes as well, it is given time.

    Args:
        pid: The process.
        tid: Its thread that came to the stop.
        stopped: Whether it was stopped at all.
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
                # The other one has let it go on, and this is the next stop, of which a record comes.
                return
        let_go_on(self._pid)

    def lasts(self) -> bool:
        """Whether the process has stood still since. Any other agent or person may let it go on."""
        # Once more, as it can come to its stop between the first look and the second.
        stands = self._stands_still() or self._is_about_to() or self._stands_still()
        return stands and self._ran in {None, self._has_run()}

    def _stands_still(self) -> bool:
        return stat_fields(self._folder)[:1] == [b"T"]

    def _is_about_to(self) -> bool:
        """Whether the stop is still pending: where CPUs are scarce, we can be faster."""
        for line in read_file(f"{self._folder}/status", _MAX_STATUS_BYTES).splitlines():
            name, _, pending = line.partition(b":")
            if name == b"SigPnd":
                return bool(int(pending, 16) >> (signal.SIGSTOP - 1) & 1)
        return False

    def _has_run(self) -> bytes:
        """For how long, and how often."""
        return read_file(f"{self._folder}/schedstat", _MAX_NAME_BYTES)


def _has_other_agent(pid: int) -> bool:
    # A command under an agent under an agent.
    for _ in range(_MAX_ANCESTORS):
        fields = stat_fields(f"/proc/{pid}")
        if not fields:
            return False
        pid = int(fields[1])
        if pid == os.getpid() or process_name(pid) != AGENT_NAME:
            continue
        # Any program can have that name, and would have us wait for each of its stops.
        if real_uid(pid) in {0, os.getuid()}:
            return True
    return False
