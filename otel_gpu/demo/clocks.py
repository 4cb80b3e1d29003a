"""How long a thread of a scenario was on CPUs, waited for one, or was blocked: by the kernel's count."""

import ctypes
import functools
import os
import platform
import struct
import sys
import threading
import time

# As in capture/_libbpf.py: what a scenario says of itself takes nothing from the agent.
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_FLAG_FD_CLOEXEC = 8
# struct perf_event_attr, 64 bytes long: a software event, the task clock.
_TASK_CLOCK = struct.pack("=IIQ48x", 1, 64, 1)

_libc = ctypes.CDLL(None, use_errno=True)


class _OnCpuClock:
    """The time of one thread on CPUs, summed from one reading to the next."""

    def __init__(self) -> None:
        # Of this thread, on any CPU, in no group.
        number, whose = _SYS_PERF_EVENT_OPEN[platform.machine()], (0, -1, -1)
        arguments = map(ctypes.c_long, (*whose, _PERF_FLAG_FD_CLOEXEC))
        self._fd = _libc.syscall(ctypes.c_long(number), _TASK_CLOCK, *arguments)
        if self._fd < 0:
            error = os.strerror(ctypes.get_errno())
            raise RuntimeError(f"no clock of a thread in this kernel: perf_event_open: {error}")
        self._last, self._sum_ns = self._readings(), 0

    def _readings(self) -> tuple[int, int]:
        return time.thread_time_ns(), int.from_bytes(os.read(self._fd, 8), sys.byteorder)

    def read_ns(self) -> int:
        """Of two clocks, each of which lacks something, the one that went on further is closer."""
        last, self._last = self._last, self._readings()
        self._sum_ns += max(now - then for now, then in zip(self._last, last, strict=True))
        return self._sum_ns


@functools.cache
def _on_cpu_clock(_tid: int) -> _OnCpuClock:
    return _OnCpuClock()


def on_cpu_ns() -> int:
    """
    How long this thread was on CPUs so far, from switch to switch.

    The scheduler's clock lacks what a hypervisor took of that, and that of perf events what it takes
    to switch. The first time, the kernel may make the thread wait.
    """
    return _on_cpu_clock(threading.get_native_id()).read_ns()


def run_queue_ns() -> int:
    """How long the loop's thread has waited for a CPU so far, by the kernel's own account."""
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as account:  # noqa: PTH123
        return int(account.read(64).split()[1])


def unqueued_ns() -> int:
    """The clock, without the time for which the loop's thread waited for a CPU."""
    return time.monotonic_ns() - run_queue_ns()


def blocked_ns() -> int:
    """The clock, without the time for which the loop's thread was on a CPU or waited for one."""
    return unqueued_ns() - on_cpu_ns()
