"""
On-CPU sampling: when the clocks run, and what share of their ticks is sampled.

Each CPU has a clock that ticks while anything is watched. The kernel side counts ticks that find a
watched thread. All CPUs share a budget of samples per second. Until the first reading we assume that
every tick finds one; then the latest reading decides that one in N ticks is sampled. Between two
readings the kernel side keeps to the budget by itself.

A program whose steps last a whole number of ticks would always be sampled at the same places. So each
reading changes the period of the clocks, and samples carry that period as their weight.
"""

import math
import random
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from otel_gpu.capture.bpf.cpu_clock import CpuClock
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.bpf.settings import tick_period_ns
from otel_gpu.config import Config
from otel_gpu.errors import BpfError
from otel_gpu.options import SpansMode

_ONLINE = Path("/sys/devices/system/cpu/online")
_LONGER = 0.2  # periods exceed that of the rate by at most this share; never less, for the budget
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class TickBudget:
    """
    Computes the N of "one in N ticks is sampled".

    Args:
        samples_per_second: The budget of all CPUs together.
        ticks_per_second: The most that is expected, used until the first reading.
    """

    def __init__(self, samples_per_second: float, ticks_per_second: float) -> None:
        self._samples_per_second = samples_per_second
        self.one_in = self._fitting(ticks_per_second)

    def take(self, ticks: int, elapsed_s: float) -> int:
        """
        Return N after a reading of ``ticks`` in ``elapsed_s`` seconds.

        It rises at once and at most halves, because load that just ended can return.
        """
        if elapsed_s > 0:
            self.one_in = max(self._fitting(ticks / elapsed_s), math.ceil(self.one_in / 2))
        return self.one_in

    def _fitting(self, ticks_per_second: float) -> int:
        return max(1, math.ceil(ticks_per_second / self._samples_per_second))


class OnCpuSampling:
    """
    The sampling clocks of one capture.

    Args:
        programs: The loaded programs.
        config: Rate and budget.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, programs: Programs, config: Config, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._programs = programs
        self._is_enabled = (
            config.samples.enabled and config.stacks.enabled and config.spans.mode != SpansMode.NONE
        )
        self._period_ns = tick_period_ns(config)
        self._rate_hz = config.samples.rate_hz
        self._stacks_per_second = config.samples.stacks_per_second
        self._clock = clock
        self._clocks: dict[int, CpuClock] = {}
        # From 0 to 1. Steps of the golden ratio keep consecutive values far apart.
        self._turn = random.random()  # noqa: S311 -- no secret
        self._budget: TickBudget
        self._ticks = 0
        self._read_s = 0.0

    def adjust(self, *, is_watching: bool) -> None:
        """
        Run clocks on all CPUs while something is watched, and keep to the budget.

        Raises:
            BpfError: The kernel refuses the clocks. They stay off.
        """
        if not self._is_enabled:
            return
        cpus = _online_cpus() if is_watching else set()
        now_s = self._clock()
        ticks = self._programs.read_ticks()
        found, elapsed_s = ticks - self._ticks, now_s - self._read_s
        self._ticks, self._read_s = ticks, now_s
        if not self._clocks:
            self._budget = TickBudget(self._stacks_per_second, self._rate_hz * len(cpus))
        else:
            one_in = self._budget.one_in
            is_same = self._budget.take(found, elapsed_s) == one_in
            # No tick found a thread, so the period needs no change.
            if is_same and not found and self._clocks.keys() == cpus:
                return
        period_ns = self._next_period_ns()
        self._programs.set_sampling(self._budget.one_in, period_ns)
        try:
            self._keep_clocks(cpus, period_ns)
        except BpfError:
            self._is_enabled = False
            self._keep_clocks(set(), period_ns)
            raise

    def _keep_clocks(self, cpus: AbstractSet[int], period_ns: int) -> None:
        for cpu in self._clocks.keys() - cpus:
            self._programs.detach(self._clocks.pop(cpu).stop)
        for cpu in sorted(cpus):
            if cpu in self._clocks:
                self._clocks[cpu].set_period(period_ns)
            else:
                self._clocks[cpu] = self._programs.attach_clock(cpu, period_ns)

    def _next_period_ns(self) -> int:
        self._turn = (self._turn + _GOLDEN_RATIO) % 1
        return round(self._period_ns * (1 + _LONGER * self._turn))


def _online_cpus() -> set[int]:
    cpus: set[int] = set()
    for part in _ONLINE.read_text(encoding="ascii").split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
