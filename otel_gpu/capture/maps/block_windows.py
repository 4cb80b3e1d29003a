"""
Limits the rate of block reports: above it, a library has probes only in windows.

Hitting a probe costs a program more than the work in it. So if a process reports more blocks than
allowed, its library loses the probe for long enough that the average rate is allowed. Each report
contains the allocator's totals, so they are right again with the first report of a window. Holders
are known only for the window.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from otel_gpu import wire
from otel_gpu.capture.maps.blocks import BlockMaps
from otel_gpu.capture.probes.attachments import Attachments
from otel_gpu.config import Config
from otel_gpu.procfs.mapped_files import FileId
from otel_gpu.stacks.samples import ProcessKey

MAX_PAUSE_S = 30.0

_ALLOCATIONS, _FREES = map(wire.MEMORY_TOTALS.fields.index, ("allocations", "frees"))


@dataclass(slots=True)
class _Window:
    began_s: float
    resumes_s: float | None = None


class BlockWindows:
    """
    The report windows of each library.

    Args:
        blocks: Counts of reports.
        attachments: The probes to place and remove.
        config: The allowed rate of reports per process.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        blocks: BlockMaps,
        attachments: Attachments,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._attachments = attachments
        self._limit = config.memory.blocks_per_second
        self._clock = clock
        self._windows: dict[FileId, _Window] = {}
        self._reports: dict[ProcessKey, int] = {}
        self.counts = {"pauses": 0, "paused_ms": 0}

    def adjust(self, watched: Mapping[int, int]) -> Iterator[Collection[ProcessKey]]:
        """
        Close windows with too many reports, and open those that are due.

        Args:
            watched: ``program_ktime_ns`` by pid of every process that is watched.

        Yields:
            The programs of each window that opens, whose blocks from before are unknown. The window
            opens when the next item is requested.
        """
        now_s = self._clock()
        made = self._count_reports()
        users = self._attachments.reporters()
        for file in self._windows.keys() - users.keys():
            del self._windows[file]
        for file, pids in users.items():
            window = self._windows.setdefault(file, _Window(now_s))
            if window.resumes_s is None:
                self._close(
                    file,
                    window,
                    reports=max((made.get(pid, 0) for pid in pids), default=0),
                    now_s=now_s,
                )
            elif now_s >= window.resumes_s:
                yield [(pid, watched[pid]) for pid in pids if pid in watched]
                self.counts["paused_ms"] += round(1_000 * (now_s - window.began_s))
                self._windows[file] = _Window(now_s)
                self._attachments.see_reports(file)

    def _close(self, file: FileId, window: _Window, reports: int, now_s: float) -> None:
        elapsed_s = now_s - window.began_s
        excess = reports / (elapsed_s * self._limit) if elapsed_s else 0.0
        self._windows[file] = _Window(now_s)
        if excess > 1:
            pause_s = min(MAX_PAUSE_S, elapsed_s * (excess - 1))
            self._windows[file].resumes_s = now_s + pause_s
            self.counts["pauses"] += 1
            self._attachments.ignore_reports(file)

    def _count_reports(self) -> dict[int, int]:
        # By pid, since the previous count.
        made: dict[int, int] = {}
        reports: dict[ProcessKey, int] = {}
        for key, value in self._blocks.read_totals():
            program_ktime_ns, pid, _ = wire.DEVICE_KEY.unpack(key)
            totals = wire.MEMORY_TOTALS.unpack(value)
            program = (pid, program_ktime_ns)
            reports[program] = reports.get(program, 0) + totals[_ALLOCATIONS] + totals[_FREES]
        for program, count in reports.items():
            made[program[0]] = made.get(program[0], 0) + count - self._reports.get(program, 0)
        self._reports = reports
        return made
