"""Errors of devices as records: whose they are, and how often they are told of."""

import pytest

from otel_gpu.capture.host.device_faults import DeviceFaults
from otel_gpu.capture.host.kernel_log import Xid
from otel_gpu.wire.decoder import decode

FELL_OFF = Xid(79, "0000:3b:00", 4242, "python3", "GPU has fallen off the bus.")


class Log:
    """A kernel's log that says what it is given."""

    def __init__(self):
        self.said = []
        self.is_open = True
        self.overrun = 0

    def read(self):
        said, self.said = self.said, []
        return said

    def close(self):
        self.is_open = False


class Nvml:
    """What NVML says meanwhile."""

    def __init__(self):
        self.said = []

    def take_xids(self):
        return self.said


class Bench:
    """Faults of a host with one watched process, by a clock that a test turns."""

    def __init__(self, *, knows_pids=True):
        self.log, self.nvml, self.images, self.now_s = Log(), Nvml(), {4242: 777}, 100.0
        self.faults = DeviceFaults(
            self.log,
            self.nvml,
            lambda: self.images,
            knows_pids=knows_pids,
            clock=lambda: self.now_s,
        )

    def read(self, *said, is_last=False):
        self.log.said = list(said)
        return list(decode(self.faults.read(is_last=is_last), {}))


@pytest.fixture
def bench():
    return Bench()


def test_a_fault_is_that_of_the_watched_process(bench):
    """And its record has all that the driver said."""
    (fault,) = bench.read(FELL_OFF)
    assert fault[1:] == (
        *(777, 4242, "kernel_log", 79, "0000:3b:00"),
        *(4242, "python3", 1, "GPU has fallen off the bus."),
    )


@pytest.mark.parametrize("pid", [0, 1, 4243])
def test_a_fault_of_another_process_is_nobodys(bench, pid):
    """It is told of the device, with the number that the driver said."""
    (fault,) = bench.read(FELL_OFF._replace(pid=pid))
    assert (fault.pid, fault.program_ktime_ns, fault.reported_pid) == (0, 0, pid)


def test_pids_of_another_namespace_are_nobodys():
    """The driver's are those of the initial one."""
    (fault,) = Bench(knows_pids=False).read(FELL_OFF)
    assert (fault.pid, fault.program_ktime_ns, fault.reported_pid) == (0, 0, 4242)


def test_a_process_that_ended_of_it_is_still_known(bench):
    """Its end is read before the line that says why."""
    bench.images.clear()
    bench.faults.note_ended([(4242, 777)])
    (fault,) = bench.read(FELL_OFF)
    assert (fault.pid, fault.program_ktime_ns) == (4242, 777)


def test_what_repeats_itself_is_told_of_once_a_second_and_counted(bench):
    """1,009 lines of one kind, and one of another."""
    other = FELL_OFF._replace(xid=48)
    (first,) = bench.read(FELL_OFF)
    (second,) = bench.read(*[FELL_OFF] * 1007, other)
    assert (first.times, second.xid) == (1, 48)
    bench.now_s += 1.0
    (third,) = bench.read()
    (last,) = bench.read(FELL_OFF, is_last=True)
    assert (third.times, last.times) == (1007, 1)
    assert bench.read(is_last=True) == []


def test_many_kinds_are_bounded_and_none_is_lost(bench):
    """5,003 devices, each twice."""
    said = [FELL_OFF._replace(pid=number) for number in range(5003)]
    told = bench.read(*said, *said)
    told += bench.read(is_last=True)
    assert sum(fault.times for fault in told) == 2 * 5003


def test_nvml_is_asked_where_the_log_cannot_be_read(bench):
    """And only there, so that each XID is told of once."""
    bench.nvml.said = [Xid(79, "0000:3b:00")]
    assert bench.read() == []
    bench.log.is_open = False
    (fault,) = bench.read()
    assert (fault.reported_by, fault.xid, fault.pid) == ("nvml", 79, 0)


def test_what_was_overrun_is_counted(bench):
    """As a loss of the agent."""
    bench.log.overrun = 7
    assert bench.faults.counts == {"kernel_log_overrun": 7}
