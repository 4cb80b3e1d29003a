"""Facts about the host, its clocks, and the agent's own memory."""

import contextlib
import ctypes
import gc
import os
import platform
import resource
import socket
import time
from pathlib import Path

from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.proc_files import read_file
from otel_gpu.wire.bodies import HostFacts

_CLOCK_READINGS = 5
# From malloc.h. By default glibc raises the threshold with every large buffer that is freed, and has
# eight arenas per CPU, and each keeps freed memory.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BUFFER_BYTES = 1 << 18
_MADV_DONTNEED = 4
# New objects between two searches for reference cycles.
_YOUNG_OBJECTS = 50_000


def describe_host() -> HostFacts:
    """Return the ``host`` object of RECORD_CAPTURE."""
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
    Read CLOCK_MONOTONIC and CLOCK_REALTIME at the same time, in nanoseconds.

    The fastest of ``readings`` attempts is used, because the agent can be preempted during one.
    """
    found = [
        (kernel_clock.ktime_ns(), time.time_ns(), kernel_clock.ktime_ns()) for _ in range(readings)
    ]
    before_ns, unix_ns, after_ns = min(found, key=lambda reading: reading[2] - reading[0])
    return (before_ns + after_ns) // 2, unix_ns


def resident_bytes() -> int:
    """Return the agent's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim_memory() -> None:
    """
    Return memory to the kernel that the C library keeps after it was freed, such as libbpf's.

    From then on the C library returns large buffers, such as requests to an endpoint, at once, and all
    threads share one heap.
    """
    library = ctypes.CDLL(None)
    # Only glibc has these.
    if hasattr(library, "mallopt"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BUFFER_BYTES)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(ctypes.c_size_t(0))


def unmap_unused_code() -> None:
    """
    Unmap code and constants of programs and libraries; the kernel maps again what is used from now on.

    A start uses most of what is mapped, and later work a small part of it. The pages stay in the page
    cache, so using one again takes a microsecond. Mappings with private pages, such as those with
    relocations or breakpoints, are left alone: their content is in no file.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    mapping: list[str] = []
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if not fields[0].endswith(":"):
                mapping = fields
            elif fields[0] == "Anonymous:" and fields[1] == "0" and _is_constant(mapping):
                begin, end = (int(address, 16) for address in mapping[0].split("-"))
                advise(begin, end - begin, _MADV_DONTNEED)


def _is_constant(mapping: list[str]) -> bool:
    # Of a file, and neither written nor shared: address, permissions, offset, device, inode, path.
    _, permissions, _, _, inode, *_ = mapping
    return (
        inode != "0" and permissions[0] == "r" and permissions[1] == "-" and permissions[3] == "p"
    )


def collect_rarely() -> None:
    """Search for reference cycles less often, and never among the present objects."""
    # Objects made from records are in no cycles, and there can be hundreds of thousands per second.
    # By default Python searches the young generation after every 700 new objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def collect_no_more() -> None:
    """
    Stop searching for reference cycles, because this process ends soon.

    Cycles of a few seconds take little memory, and searching takes an eighth of the time.
    """
    gc.disable()


def allow_open_files(wanted: int) -> None:
    """
    Raise the limit of open files to ``wanted``, or to the hard limit.

    Files of watched processes stay open, so that stacks can be resolved after the process has ended.
    Children inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _read(path: str) -> str | None:
    return read_file(path, 4096).decode("ascii", "replace").strip() or None
