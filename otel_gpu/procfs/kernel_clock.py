"""
The kernel's clocks, as its programs read them.

A process in a time namespace reads clocks that are shifted; BPF programs and other processes are
not. What the agent reads is taken back by the shift of its own namespace.
"""

import time
from functools import cache

from otel_gpu.procfs.proc_files import read_file

_NS_PER_S = 1_000_000_000
_MAX_BYTES = 4096


def ktime_ns() -> int:
    """Return CLOCK_MONOTONIC of the kernel."""
    return time.monotonic_ns() - shift_ns("monotonic")


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME of the kernel."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - shift_ns("boottime")


@cache
def shift_ns(clock: str) -> int:
    """Return by how much a clock is shifted in our time namespace: ``monotonic`` or ``boottime``."""
    for line in read_file("/proc/self/timens_offsets", _MAX_BYTES).decode().splitlines():
        name, *offset = line.split()
        if name == clock:
            seconds, nanoseconds = map(int, offset)
            return seconds * _NS_PER_S + nanoseconds
    return 0
