"""
Names of generated code, from perf maps.

A program that compiles code (a JIT) can write /tmp/perf-PID.map for profilers, a line for
each function: start, size (both hexadecimal), name. CPython does so with ``-X perf``, Node with
``--perf-basic-prof``. All users can write into /tmp. So a file counts only if the process's user or
root owns it, the process's user can read it, and it was written after the start of the process, as pids
are reused.
"""

import contextlib
import os
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable

from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.proc_files import close_file
from otel_gpu.procfs.process_facts import read_ids, start_boot_ns
from otel_gpu.procfs.process_root import ServedError, open_in_root
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.read_budget import FileWork, NotReadError

_LINE = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,16}) +(?:0[xX])?([0-9a-fA-F]{1,8}) +(\S.*)")
_FOLDER = "/tmp"  # noqa: S108 -- the place that all agree on; who wrote the file is checked
# Lines are only appended, so the end of a large file is the most useful part.
_MAX_BYTES = 4 << 20
_MAX_FUNCTIONS = 50_000
_MAX_NAME_BYTES = 4096
_MAX_ENCLOSING = 16
_MIN_INTERVAL_S = 1.0
_INTERVAL_PER_COST = 50
_WHAT = "its perf map"
_CLOCK_SLACK_NS = 2_000_000_000


class PerfMap:
    """
    The perf map of a process; kept after its end.

    Attributes:
        malformed: Malformed lines; a line that is read again counts once.
    """

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        work: FileWork | None = None,
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._work = work or FileWork(clock=clock)
        self._next_s = 0.0
        self._started_ns = 0
        self._seen = (0, 0, 0)
        self.malformed = self._malformed_now = 0
        self._learn(b"")

    def find(self, address: int) -> tuple[str, int] | None:
        """
        Return the function at an address, and the offset in it; or None.

        Of overlapping ranges, the last line wins: the memory was reused.
        """
        now_s = self._clock()
        if now_s >= self._next_s:
            with contextlib.suppress(NotReadError), self._work.reading(self._pid, _WHAT):
                self._read()
            cost_s = self._clock() - now_s
            self._next_s = now_s + max(_MIN_INTERVAL_S, cost_s * _INTERVAL_PER_COST)
        after = bisect_right(self._starts, address)
        around = range(max(after - _MAX_ENCLOSING, 0), after)
        found = (number for number in around if address < self._ends[number])
        best = max(found, key=self._lines.__getitem__, default=None)
        if best is None:
            return None
        name = self._names[self._lines[best]].decode("utf-8", "replace")
        return name, address - self._starts[best]

    def _read(self) -> None:
        inner_pid, user = read_ids(f"/proc/{self._pid}")
        started_ns = start_boot_ns(f"/proc/{self._pid}")
        if inner_pid is None or user is None or started_ns is None:
            return
        if started_ns != self._started_ns:
            # Another process has the pid now.
            self._started_ns = started_ns
            self._seen = (0, 0, 0)
            self._learn(b"")
        path = f"{_FOLDER}/perf-{inner_pid}.map"
        root, reader = f"/proc/{self._pid}/root", user_of(self._pid)
        try:
            fd = open_in_root(root, path, user=reader, pid=self._pid, follow=False)
            try:
                self._read_file(fd, user, started_ns)
            finally:
                close_file(fd)
        except ServedError as error:
            self._work.refuse(self._pid, _WHAT, error)
        except OSError:
            pass

    def _read_file(self, fd: int, user: int, started_ns: int) -> None:
        status = os.fstat(fd)
        boot_ns = time.time_ns() - kernel_clock.boot_ns()
        is_older = status.st_mtime_ns < boot_ns + started_ns - _CLOCK_SLACK_NS
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if status.st_uid not in {0, user} or is_older or seen == self._seen:
            return
        self._seen = seen
        skipped = max(status.st_size - _MAX_BYTES, 0)
        text = os.pread(fd, _MAX_BYTES, skipped)
        if skipped:
            text = text.partition(b"\n")[2]
        # The last line can be incomplete.
        self._learn(text[: text.rfind(b"\n") + 1])

    def _learn(self, text: bytes) -> None:
        lines = text.rsplit(b"\n", _MAX_FUNCTIONS + 1)[-_MAX_FUNCTIONS - 1 : -1]
        found = list(filter(None, map(_LINE.fullmatch, lines)))
        # Of a file that is too large, the first line differs each time.
        before, self._malformed_now = self._malformed_now, len(lines) - len(found)
        self.malformed += max(self._malformed_now - before, 0)
        functions = sorted(
            (int(line[1], 16), int(line[1], 16) + int(line[2], 16), number)
            for number, line in enumerate(found)
        )
        self._starts = array("Q", (start for start, _, _ in functions))
        self._ends = array("Q", (min(end, (1 << 64) - 1) for _, end, _ in functions))
        self._lines = array("I", (line for _, _, line in functions))
        self._names = [line[3][:_MAX_NAME_BYTES] for line in found]
