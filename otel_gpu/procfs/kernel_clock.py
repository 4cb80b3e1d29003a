"""
The kernel's clocks, as BPF programs read them.

In a time namespace, processes read shifted clocks, and BPF programs do not. So the shift of the agent's
own namespace is subtracted.
"""

import time
from functools import cache

from otel_gpu.procfs.proc_files import read_file

_NS_PER_S = 1_000_000_000
_MAX_BYTES = 4096
_SCHEDSTAT_BYTES = 64


def ktime_ns() -> int:
    """Return CLOCK_MONOTONIC of the kernel."""
    return time.monotonic_ns() - shift_ns("monotonic")


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME of the kernel."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - shift_ns("boottime")


def run_queue_ns() -> int:
    """Return how long this thread has waited for a CPU so far; 0 if the kernel does not count it."""
    fields = read_file("/proc/thread-self/schedstat", _SCHEDSTAT_BYTES).split()
    return int(fields[1]) if len(fields) > 1 else 0


@cache
def shift_ns(clock: str) -> int:
    """Return the shift of ``monotonic`` or ``boottime`` in the agent's time namespace."""
    for line in read_file("/proc/self/timens_offsets", _MAX_BYTES).decode().splitlines():
        name, *offset = line.split()
        if name == clock:
            seconds, nanoseconds = map(int, offset)
            return seconds * _NS_PER_S + nanoseconds
    return 0
