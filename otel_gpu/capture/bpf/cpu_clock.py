"""A perf event that runs a BPF program at intervals on one CPU, with a period that can change."""

import fcntl
import struct
from collections.abc import Callable
from typing import NamedTuple

from otel_gpu.errors import BpfError

# linux/perf_event.h: _IOW('$', 4, __u64)
_PERF_EVENT_IOC_PERIOD = 0x40082404
_PERIOD = struct.Struct("=Q")


class CpuClock(NamedTuple):
    """
    A BPF program that runs at each tick of a CPU.

    Attributes:
        stop: Detaches the program, and closes the perf event.
        fd: Of the perf event, open until then.
    """

    stop: Callable[[], object]
    fd: int

    def set_period(self, period_ns: int) -> None:
        """
        Restart the clock with another period.

        Raises:
            BpfError: The kernel refuses the period.
        """
        try:
            fcntl.ioctl(self.fd, _PERF_EVENT_IOC_PERIOD, _PERIOD.pack(period_ns))
        except OSError as error:
            raise BpfError(f"cannot change the period of a sampling clock: {error}") from error
