"""Times of a thread on CPUs, waiting for one, or blocked, as the kernel counts them; in ns."""

import ctypes
import functools
import os
import platform
import struct
import sys
import threading
import time

# As in capture/_libbpf.py, repeated because a scenario's own figures use no code of the agent.
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_FLAG_FD_CLOEXEC = 8
# struct perf_event_attr, 64 bytes long: a software event, the task clock.
_TASK_CLOCK = struct.pack("=IIQ48x", 1, 64, 1)

_libc = ctypes.CDLL(None, use_errno=True)


class _OnCpuClock:
    def __init__(self) -> None:
        # This thread, any CPU, no group.
        number, target = _SYS_PERF_EVENT_OPEN[platform.machine()], (0, -1, -1)
        arguments = map(ctypes.c_long, (*target, _PERF_FLAG_FD_CLOEXEC))
        self._fd = _libc.syscall(ctypes.c_long(number), _TASK_CLOCK, *arguments)
        if self._fd < 0:
            error = os.strerror(ctypes.get_errno())
            raise RuntimeError(f"no clock of a thread in this kernel: perf_event_open: {error}")
        self._last, self._sum_ns = self._readings(), 0

    def _readings(self) -> tuple[int, int]:
        return time.thread_time_ns(), int.from_bytes(os.read(self._fd, 8), sys.byteorder)

    def read_ns(self) -> int:
        # Each clock lacks a part of the time, so the larger difference is closer.
        last, self._last = self._last, self._readings()
        self._sum_ns += max(now - then for now, then in zip(self._last, last, strict=True))
        return self._sum_ns


@functools.cache
def _on_cpu_clock(_tid: int) -> _OnCpuClock:
    return _OnCpuClock()


def on_cpu_ns() -> int:
    """
    Return how long this thread was on CPUs so far, from switch to switch.

    The scheduler's clock lacks time stolen by a hypervisor, and that of perf events the time of
    switches. The first call can block in the kernel.
    """
    return _on_cpu_clock(threading.get_native_id()).read_ns()


def run_queue_ns() -> int:
    """Return how long this thread has waited for a CPU so far, from the kernel's schedstat."""
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:  # noqa: PTH123
        return int(file.read(64).split()[1])


def unqueued_ns() -> int:
    """Return the monotonic clock minus the time that this thread waited for a CPU."""
    waited_ns = run_queue_ns()
    while True:
        now_ns, last_ns = time.monotonic_ns(), waited_ns
        waited_ns = run_queue_ns()
        # A wait between the two readings would be in one of them only.
        if waited_ns == last_ns:
            return now_ns - waited_ns


def blocked_ns() -> int:
    """Return the monotonic clock minus the time that this thread was on a CPU or waited for one."""
    return unqueued_ns() - on_cpu_ns()
