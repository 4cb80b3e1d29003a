"""The host and its clocks: what RECORD_CAPTURE and RECORD_CLOCK say."""

import contextlib
import ctypes
import gc
import os
import platform
import resource
import socket
import time
from pathlib import Path
from typing import Any

from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.proc_files import read_file

_CLOCK_READINGS = 5
# Of malloc.h. By itself glibc raises the first with every large buffer that is freed, and has
# eight arenas a CPU, of which each keeps what the threads that used it freed.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BUFFER_BYTES = 1 << 18
# Made and not yet freed, before Python looks for cycles among them.
_YOUNG_OBJECTS = 50_000


def describe_host() -> dict[str, Any]:
    """Return ``host`` of RECORD_CAPTURE."""
    return {
        "name": socket.gethostname(),
        "id": _read("/etc/machine-id"),
        "arch": platform.machine(),
        "os_version": platform.release(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "cpus": os.cpu_count(),
    }


def read_clocks(readings: int = _CLOCK_READINGS) -> tuple[int, int]:
    """
    Read CLOCK_MONOTONIC and CLOCK_REALTIME at the same moment, in nanoseconds.

    Of so many readings that with the least time around it is taken, since the agent may be preempted
    in the middle of one.
    """
    found = [
        (kernel_clock.ktime_ns(), time.time_ns(), kernel_clock.ktime_ns()) for _ in range(readings)
    ]
    before_ns, unix_ns, after_ns = min(found, key=lambda reading: reading[2] - reading[0])
    return (before_ns + after_ns) // 2, unix_ns


def resident_bytes() -> int:
    """Return how much memory the agent has resident."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back_memory() -> None:
    """
    Give the kernel back what the C library keeps of memory that was freed, such as libbpf's.

    From now on it keeps no large buffers: each request to an endpoint is one. All threads share
    one heap.
    """
    library = ctypes.CDLL(None)
    # Other C libraries than glibc lack these.
    if hasattr(library, "mallopt"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BUFFER_BYTES)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(ctypes.c_size_t(0))


def collect_rarely() -> None:
    """Let Python look for reference cycles less often, and never at what lives by now."""
    # What a record becomes is in no cycle, and there can be hundreds of thousands of such
    # objects a second: by default Python looks through the young ones after every 700.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def collect_no_more() -> None:
    """
    Have Python look for reference cycles no more: this process ends soon.

    Those of a few seconds take little memory, and looking for them takes an eighth of the time.
    """
    gc.disable()


def allow_open_files(wanted: int) -> None:
    """
    Raise the limit of open files, as far as is allowed.

    The files of observed processes stay open, so that their stacks can be read when they
    are gone. What the agent starts later inherits the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _read(path: str) -> str | None:
    return read_file(path, 4096).decode("ascii", "replace").strip() or None
