"""
Continues processes that the kernel side stopped.

Each has a record in the lifecycle ring. Code that takes such a record out of the ring has to continue the
process in any case, also at the end of the capture.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Self

from otel_gpu import wire
from otel_gpu.capture.record_headers import header_of
from otel_gpu.procfs import kernel_clock
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
# How long to wait for another agent's probes: as many times longer than this one took, because it runs on
# the same machine, between these bounds; and how often to check.
_OTHER_AGENT_TIMES = 4
_OTHER_AGENT_S = 0.1
_MAX_OTHER_AGENT_S = 1.0
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
        ktime_ns: When it hit the probe; None: now.
        has_stopped_again: Whether that thread has come to a later stop, so that it is in this one no more.
    """

    def __init__(
        self,
        pid: int,
        tid: int,
        *,
        stopped: bool,
        ktime_ns: int | None = None,
        has_stopped_again: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stopped = stopped
        self._pid = pid
        self._folder = f"/proc/{pid}/task/{tid}"
        self._begun_ktime_ns = kernel_clock.ktime_ns() if ktime_ns is None else ktime_ns
        self._has_stopped_again = has_stopped_again
        # How much it had run when it stood still; None: it has not come to its stop yet.
        self._ran = self._run_at_rest() if stopped else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stopped:
            return
        if _has_other_agent(self._pid):
            taken_s = (kernel_clock.ktime_ns() - self._begun_ktime_ns) / 1e9
            wait_s = min(max(_OTHER_AGENT_TIMES * taken_s, _OTHER_AGENT_S), _MAX_OTHER_AGENT_S)
            until_s = time.monotonic() + wait_s
            while self.lasts() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            if self._ran is not None and self._stands_still() and not self.lasts():
                # The other agent has continued it, and this is the next stop, which has its own record.
                return
        if not self._has_stopped_again():
            let_go_on(self._pid)

    def lasts(self) -> bool:
        """Whether the process has been stopped all the time; others can have continued it."""
        ran = self._run_at_rest()
        if self._ran is None:
            # It can stop between the first check and the second.
            stands = ran is not None or self._is_about_to() or self._stands_still()
            self._ran = ran
        else:
            stands = self._ran == ran
        return stands and not self._has_stopped_again()

    def _stands_still(self) -> bool:
        return stat_fields(self._folder)[:1] == [b"T"]

    def _run_at_rest(self) -> bytes | None:
        ran = self._has_run()
        return ran if self._stands_still() and self._has_run() == ran else None

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
