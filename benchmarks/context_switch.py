"""Time that the scheduler's tracepoints add to a context switch, watched or not."""

import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from benchmarks.result import Result, spread
from otel_gpu import wire
from otel_gpu.capture.bpf.objects import Link
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.config import Config
from otel_gpu.procfs.mapped_files import thread_ids
from tests.kernel.agent import environment_for
from tests.stubs.build import workload

WATCHED_BOUND_NS = 1000.0
UNWATCHED_BOUND_NS = 150.0
SWITCHES = 20_000
# Long enough for a look at the kernel stack.
LONG_WAIT_NS = 30_000
LONG_SWITCHES = 3_000
# And for one at what is waited for.
PIPE_WAIT_NS = 130_000
PIPE_SWITCHES = 1_000
_TID = struct.Struct("<I")


class Pair:
    """
    A running ``switches`` program: two threads that take turns on one CPU.

    Args:
        cpu: The CPU.
        switches: How often they take turns in one round.
        busy_ns: For how long each keeps the CPU, so the other one waits.
        pipe: Whether they wait in pipes, and not in a futex.
    """

    def __init__(
        self, cpu: int, switches: int = SWITCHES, busy_ns: int = 0, *, pipe: bool = False
    ) -> None:
        self._switches = switches
        self._busy_ns = busy_ns
        self._process = subprocess.Popen(
            [workload("switches"), str(cpu), str(busy_ns), *(["pipe"] if pipe else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment_for(None),
        )
        self.pid = int(self._read())

    def nanoseconds_per_switch(self) -> float:
        """Take turns, and return the mean time from one to the next, less the busy time."""
        assert self._process.stdin
        self._process.stdin.write(f"{self._switches}\n")
        used_ns, switches = map(int, self._read().split())
        assert switches >= self._switches
        return used_ns / switches - self._busy_ns

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the context switches ended")
        return line


class Round(NamedTuple):
    """Nanoseconds of a switch: of each kind of thread, without and with programs."""

    bare: Sequence[float]
    probed: Sequence[float]


def run(*, quick: bool = False) -> list[Result]:
    """
    Interleave rounds without programs and with them, on five pairs of threads.

    One pair is not watched, one is and makes no CUDA calls, one is between two of its
    CUDA calls: there every wait is compared with the longest ones so far. The others are
    watched, and their waits are so long that their kernel stacks are looked at, of the last one
    also what it waits for. The second pair is measured once more as one that publishes its spans.
    """
    rounds = 9 if quick else 41
    cpu = max(os.sched_getaffinity(0))
    with ExitStack() as stack:
        programs = stack.enter_context(Programs(Config(), watch_all=False))
        pairs = [
            *(Pair(cpu), Pair(cpu), Pair(cpu), Pair(cpu, LONG_SWITCHES, LONG_WAIT_NS)),
            Pair(cpu, PIPE_SWITCHES, PIPE_WAIT_NS, pipe=True),
        ]
        for pair in pairs:
            stack.callback(pair.close)
        unwatched, watched, feeding, waiting, reading = pairs
        programs.processes.watch(watched.pid, 0)
        programs.processes.watch(feeding.pid, 0)
        programs.processes.watch(waiting.pid, 0)
        programs.processes.watch(reading.pid, 0)
        put_in_gap(programs, feeding.pid)
        for pair in pairs:
            pair.nanoseconds_per_switch()
        samples = []
        for _ in range(rounds):
            bare = [pair.nanoseconds_per_switch() for pair in pairs]
            with attached(programs):
                probed = [pair.nanoseconds_per_switch() for pair in pairs]
                with publishing(programs, watched.pid):
                    probed.append(watched.nanoseconds_per_switch())
            samples.append(Round([*bare, bare[pairs.index(watched)]], probed))
        watched_waits = sum(
            value for _, value in times_of(programs, {watched.pid, feeding.pid}).items()
        )
        assert watched_waits, "the programs saw none of the switches"
        assert not times_of(programs, {unwatched.pid})
    return [
        result("an unwatched thread", samples, 0, UNWATCHED_BOUND_NS),
        result("a watched thread", samples, 1, WATCHED_BOUND_NS),
        result("a watched thread between calls", samples, 2, WATCHED_BOUND_NS),
        result("a watched thread after 30 us", samples, 3, WATCHED_BOUND_NS),
        result("a watched thread after 130 us in a pipe", samples, 4, WATCHED_BOUND_NS),
        result("a watched thread that publishes its span", samples, 5, WATCHED_BOUND_NS),
    ]


def result(whose: str, samples: Sequence[Round], index: int, bound_ns: float) -> Result:
    """Return what was added to the switches of one pair."""
    bare_ns = median(sample.bare[index] for sample in samples)
    # What disturbs the machine for longer than a round disturbs both sides of it.
    added_ns = median(sample.probed[index] - sample.bare[index] for sample in samples)
    return Result(
        what=f"time added to a switch of {whose}",
        value=added_ns,
        unit="ns",
        floor=bare_ns,
        floor_is="the switch, no program attached",
        ratio=median(sample.probed[index] / sample.bare[index] for sample in samples),
        bound=f"<= {bound_ns:.0f} ns",
        held=added_ns <= bound_ns,
        note=(
            f"without {spread([sample.bare[index] for sample in samples])} ns; "
            f"with {spread([sample.probed[index] for sample in samples])} ns"
        ),
    )


@contextmanager
def attached(programs: Programs) -> Iterator[None]:
    """Attach what runs at a context switch, or where a thread becomes runnable, for a while."""
    names = (programs.wake_program, programs.switch_program)
    links: list[Link] = [programs.bpf.attach(name) for name in names]
    try:
        yield
    finally:
        programs.bpf.detach(links)


@contextmanager
def publishing(programs: Programs, pid: int) -> Iterator[None]:
    """Look for a context in the threads of a process for a while, at what leads to other memory."""
    (program_ktime_ns,) = (
        ktime_ns for one, ktime_ns in programs.processes.programs().items() if one == pid
    )
    programs.contexts.set(pid, wire.THREAD_CONTEXT_PLACE.pack(program_ktime_ns, 0, 0))
    try:
        yield
    finally:
        programs.contexts.forget(pid)


def put_in_gap(programs: Programs, pid: int) -> None:
    """Let the threads of a process look as if they had made a CUDA call."""
    threads = programs.bpf.map("threads")
    place: Callable[[str], int] = wire.THREAD.fields.index
    for tid in thread_ids(pid):
        raw = threads.lookup(_TID.pack(tid))
        assert raw
        values = list(wire.THREAD.unpack(raw))
        values[place("last_return_ktime_ns")] = time.monotonic_ns()
        threads.update(_TID.pack(tid), wire.THREAD.pack(*values))


def times_of(programs: Programs, pids: set[int]) -> dict[bytes, int]:
    """Return the time account of some processes."""
    pid_at = wire.TIMES_KEY.fields.index("pid")
    return {
        key: wire.TIMES.unpack(value)[0]
        for key, value in programs.read_times()
        if wire.TIMES_KEY.unpack(key)[pid_at] in pids
    }
