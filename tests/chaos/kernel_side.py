"""
A scripted replacement of the kernel side: programs that make calls, and the contents of maps.

It has the interface of ``Programs``. Calls are counted in series like in the kernel, and sent as records
through a ring that can be full. All other code is real.
"""

import os
from collections import Counter

from otel_gpu import wire
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.stacks.read_budget import FileWork
from tests.synthetic import call_record, kernel_record, series

_BUCKET = 40
_CALL_NS = 3_000
API = 1
COUNTED = "gpu.cuda.call.duration"


class Clock:
    """A clock that never ticks."""

    stop = None

    def set_period(self, period_ns):
        return


class Ring:
    """A ring buffer: records in order, until it is full."""

    def __init__(self, room, *, is_ready):
        self.fd = os.eventfd(1 if is_ready else 0, os.EFD_CLOEXEC)
        self._room = room
        self._records = []
        self.lost = 0

    def put(self, record):
        """Append a record, or lose it."""
        if len(self._records) < self._room:
            self._records.append(record)
            return True
        self.lost += 1
        return False

    def position(self):
        return len(self._records)

    @property
    def fill(self):
        """The used share of the ring, 0 to 1."""
        return len(self._records) / self._room

    def read(self, until=None):
        taken = self._records[:until]
        del self._records[:until]
        return taken

    def close(self):
        os.close(self.fd)


class Probes:
    """The part of the loaded object that places probes."""

    def attach_uprobes(self, program, path, probes, *, on_return=False):
        return []

    def detach(self, links):
        return

    can_queue = True

    def take_answers(self):
        return False


class NoBlocks:
    """What it keeps of device memory: none of the programs has a framework."""

    are_followed = True

    def read_totals(self):
        """No device."""
        return iter(())

    def read_holders(self):
        """Nobody."""
        return iter(())

    def forget_totals(self, key):
        """There are none."""

    forget_holder = forget_blocks = forget_totals


class NoCommunicators:
    """What it keeps of NCCL: none of the programs uses it."""

    maps = ()

    def read(self):
        """No communicator."""
        return iter(())

    def forget(self, key):
        """There are none."""


class NoDetectors:
    """What it keeps of the period of threads: none has one."""

    def taken(self):
        """No thread."""
        return iter(())

    def share_areas(self, wanting):
        """Nobody wants any."""


class NoPreloadedPrograms:
    """What programs count themselves: none of them does."""

    calls = 0
    suits = False

    def __init__(self):
        self.lost = {}
        self.detectors = NoDetectors()

    def is_preloaded(self, image, mapped):
        """It has none."""
        return False

    def ask(self, program):
        """Nothing is shown."""

    def keys(self):
        """Of nobody."""
        return set()

    def take_refused(self):
        """Nothing of anybody is refused."""
        return set()

    def close(self, programs=None):
        """There is nothing to close."""

    def set_thresholds(self, thresholds):
        """Nobody asks."""


class NoContexts:
    """Where threads publish their context: nobody does."""

    def set(self, pid, place):
        """The tests of the kernel side have programs that do."""

    def forget(self, pid):
        """As above."""


class NoShares:
    """What programs hold of the kernel's maps: they have room enough."""

    def take(self, kind, holder, entries=1):
        """All of it may be added."""
        return entries

    def give_back(self, kind, uid, entries=1):
        """It was charged to nobody."""

    def end(self, programs):
        """They held nothing."""

    def recount(self, living, threads):
        """There is nothing to count."""

    def refused(self):
        """Nothing was."""
        return iter(())


class KernelSide:
    """
    Programs that are watched.

    Attributes:
        made: Calls by process image, exact.
        sent: Records of calls that fit into the ring.
    """

    def __init__(self, room=64):
        self.events = Ring(room, is_ready=False)
        # Always ready, so that no test waits.
        self.lifecycle = Ring(1 << 20, is_ready=True)
        self.bpf = Probes()
        self.blocks = NoBlocks()
        self.communicators = NoCommunicators()
        self.contexts = NoContexts()
        self.preloaded = NoPreloadedPrograms()
        self.detectors = NoDetectors()
        self.shares = NoShares()
        self.refusals = Refusals()
        self.unread = Unread()
        self.file_work = FileWork(self.unread.add_file)
        self.now_ktime_ns = 10_000_000_000
        self.made = Counter()
        self.sent = 0
        self._series = {}
        self._alive = {}
        self._next_pid = 5_000_000
        self.processes = self

    # What the programs of the script do.

    def begin(self):
        """A process execs: the kernel watches it from then on."""
        pid = self._next_pid
        self._next_pid += 1
        self.now_ktime_ns += 1_000
        program_ktime_ns = self._alive[pid] = self.now_ktime_ns
        self.lifecycle.put(
            kernel_record(
                wire.RECORD_EXEC,
                ktime_ns=program_ktime_ns,
                program_ktime_ns=program_ktime_ns,
                pid=pid,
                tid=pid,
                comm="worker",
                path="/usr/bin/worker",
            )
        )
        return pid

    def alive(self):
        """Pids of the processes that run."""
        return list(self._alive)

    def call(self, pid, count=1):
        """A process makes this many calls: each is counted, and sent if it fits."""
        image = (pid, self._alive[pid])
        for _ in range(count):
            self.now_ktime_ns += 2 * _CALL_NS
            self.made[image] += 1
            self.sent += self.events.put(
                call_record(
                    ktime_ns=self.now_ktime_ns,
                    program_ktime_ns=image[1],
                    pid=pid,
                    tid=pid,
                    api=API,
                    start_ktime_ns=self.now_ktime_ns - _CALL_NS,
                    user_stack=self.now_ktime_ns,
                    comm="worker",
                )
            )
        key, value = series(
            program_ktime_ns=image[1],
            pid=pid,
            metric=wire.METRIC_CALL_DURATION,
            api=API,
            buckets={_BUCKET: self.made[image]},
            sum=_CALL_NS * self.made[image],
            min=_CALL_NS,
            max=_CALL_NS,
        )
        self._series[key] = value

    def end(self, pid):
        """A process exits."""
        self.now_ktime_ns += 1_000
        self.lifecycle.put(
            kernel_record(
                wire.RECORD_EXIT,
                ktime_ns=self.now_ktime_ns,
                program_ktime_ns=self._alive.pop(pid),
                pid=pid,
                tid=pid,
                comm="worker",
            )
        )

    # What the agent asks for.

    def attach(self):
        return

    def watch(self, pid, flags):
        return self._alive.setdefault(pid, self.now_ktime_ns)

    def watch_threads(self, pid, program_ktime_ns, flags):
        return

    def program_ktime_ns(self, pid):
        return self._alive.get(pid, 0)

    def has_stopped_since(self, _pid, _tid, _ktime_ns):
        return False

    def programs(self):
        return dict(self._alive)

    def forget(self, pid):
        self._alive.pop(pid, None)

    def threads(self):
        return []

    def memory(self):
        return []

    def mark_known(self, executable):
        return

    def lose(self, counter):
        """What is lost is of no account here."""

    def read_aggregates(self, _programs=None):
        yield from list(self._series.items())

    def forget_aggregate(self, key):
        self._series.pop(key, None)

    def book_passing(self):
        return

    def read_times(self, _programs=None):
        yield from ()

    def forget_times(self, key):
        return

    def kernel_stack(self, stack):
        return ()

    def stall_sample(self, tid):
        return None

    def set_interpreter(self, pid, interpreter):
        return

    def forget_interpreter(self, pid):
        return

    def set_threshold(self, program_ktime_ns, pid, api, copy_kind, threshold_ns):
        return

    def forget_threshold(self, program_ktime_ns, pid, api, copy_kind):
        return

    def forget_known(self):
        return

    def forget_thread(self, tid):
        return

    def read_counters(self):
        values = [0] * wire.COUNTER_COUNT
        values[wire.COUNTER_LOST_RING_FULL] = self.events.lost
        return tuple(values)

    def open_threads(self):
        yield from ()

    def attach_clock(self, cpu, period_ns):
        return Clock()

    def detach(self, link):
        return

    def set_sampling(self, one_in, period_ns):
        return

    def read_ticks(self):
        return 0

    def attacher_cpu_ns(self):
        return 0

    def end_soon(self):
        return

    def close(self):
        self.events.close()
        self.lifecycle.close()
