"""StepDetectors that preloaded programs follow: as the agent does itself, with calls that were kept."""

import itertools
import os
import random
import sys
import time

import pytest

from otel_gpu import wire
from otel_gpu.capture.preload.settings import PreloadSettings
from otel_gpu.capture.preload.shared_memory import open_memory
from otel_gpu.capture.preload.step_detection import PreloadDetectors
from otel_gpu.capture.steps.period import CallRole, Period, history_of, iterations_of
from otel_gpu.config import load
from otel_gpu.limits.work_budget import Share, WorkBudget
from tests.kernel.agent import open_files, wait_until
from tests.preloaded import address_of, reading_of, running
from tests.stubs.build import stub_libraries

PROGRAM = """
import ctypes, os, sys, threading
cuda, p = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p
words = [ctypes.c_uint64(1)] * 4
def launch(*kernels):
    for kernel in kernels:
        cuda.cudaLaunchKernel(p(16 * kernel), *words, None, 0, None)
def copy(size_bytes, kind):
    cuda.cudaMemcpy(p(8), p(8), ctypes.c_size_t(size_bytes), kind)
def wait():
    cuda.cudaStreamQuery(None)
    cuda.cudaStreamSynchronize(None)
def in_thread(do, many=1):
    threads, is_over = [], threading.Barrier(many)
    def run():
        do()
        is_over.wait()
    threads = [threading.Thread(target=run) for _ in range(many)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
launch(1)
print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""
FIRST, LAST = 3, 9
PLENTY = Share(1e9, 1.0)


class Program:
    """A program that does what it is asked to, and the calls that it keeps."""

    def __init__(self, process):
        self.process = process
        self.pid = int(process.stdout.readline())
        self.image = (self.pid, time.monotonic_ns() - 60_000_000_000)
        self.lost = [0] * wire.COUNTER_COUNT
        self.detectors = PreloadDetectors(self.lost, WorkBudget(PLENTY, PLENTY, PLENTY))
        self.settings = PreloadSettings(load(None, {}, {}))
        self.fd = open_memory(self.pid, address_of(self.pid))
        self.settings.write(self.fd, {}, collectives=False)
        self.detectors.add(self.image, self.fd, 0)

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"

    def taken(self):
        return dict(self.detectors.taken())

    def close(self):
        self.detectors.close()
        os.close(self.fd)


@pytest.fixture
def program():
    with running([sys.executable, "-c", PROGRAM, stub_libraries().runtime]) as process:
        program = Program(process)
        yield program
        program.close()


def test_calls_are_kept_from_the_first_one_that_somebody_wants(program):
    """Those of kinds that are in periods; copies are told apart by direction and rough size."""
    program.do("launch(7); copy(8, 1); copy(9, 1); copy(1 << 21, 1); copy(8, 2); launch(7); wait()")

    ((index, detector),) = program.taken().items()
    calls = program.detectors.calls(index)
    again, small, same, large, back, launch, wait = calls.symbols
    assert (detector["pid"], detector["tid"], detector["made"]) == (program.pid, program.pid, 7)
    assert (again, small) == (launch, same)
    assert len({again, small, large, back, wait}) == 5
    assert calls.roles[again] is CallRole.LAUNCH
    assert (calls.roles[small], calls.roles[back]) == (CallRole.TO_DEVICE, CallRole.TO_HOST)
    assert calls.roles[wait] is CallRole.WAIT
    assert calls.gaps_ns[0] == 0
    assert all(calls.gaps_ns[1:])
    assert detector["last_return_ktime_ns"] >= calls.starts_ns[-1]


def test_whose_calls_they_were_is_known_after_the_program_has_ended(program):
    """A short program is over before anybody looks."""
    program.do("launch(7)")
    program.process.kill()
    program.process.wait()

    (detector,) = program.taken().values()
    assert (detector["pid"], detector["tid"]) == (program.pid, program.pid)


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_iterations_are_those_of_the_same_calls(program, folds, seed):
    """Whatever is called, and whatever they begin and end by."""
    chance = random.Random(seed)  # noqa: S311 -- the same each time
    program.do(f"launch({FIRST}, {LAST})")
    ((index, _),) = program.taken().items()
    first, last = program.detectors.calls(index).symbols
    period = Period(
        starts=(history_of([last, first]), history_of([first, first])),
        start_calls=2,
        ends=(last,),
        end_calls=1,
        folds=folds,
        confidence_percent=100,
        longest_calls=9,
    )
    program.detectors.follow(index, period)
    kernels = [chance.choice((FIRST, LAST, 5, 5, 6)) for _ in range(701)]
    program.do(f"launch(*{kernels})")

    calls = program.detectors.calls(index)
    symbols, starts_ns, gaps_ns = calls.symbols[2:], calls.starts_ns[2:], calls.gaps_ns[2:]
    # The round that may end with the last call is over when the thread is.
    turns = [turn for turn in iterations_of(period, symbols) if turn.last + 1 < len(symbols)]
    expected = [
        (
            starts_ns[turn.first] - gaps_ns[turn.first],
            starts_ns[turn.last + 1] - gaps_ns[turn.last + 1],
        )
        for turn in turns
    ]
    assert len(expected) > 10
    assert program.detectors.iterations(index) == expected
    assert program.detectors.iterations(index) == []
    assert sum(program.lost) == 0


def test_the_iteration_that_a_thread_ends_after_is_the_last_one(program):
    """And what it has is another one's once it was given back."""
    program.do("in_thread(lambda: launch(3, 9))")
    ((index, detector),) = program.taken().items()
    # Python does not wait for the thread itself.
    wait_until(lambda: program.taken()[index]["has_ended"], "the end of the thread")
    assert detector["tid"] not in (0, program.pid)
    first, last = program.detectors.calls(index).symbols
    program.detectors.free(index)
    program.do("launch(3)")
    assert program.taken()[index]["tid"] == program.pid
    program.detectors.follow(index, Period((first,), 1, (last,), 1, False, 100, 9))
    program.do("launch(3, 9)")

    assert program.detectors.iterations(index) == []
    ((start_ktime_ns, end_ktime_ns),) = program.detectors.iterations(index, is_last=True)
    calls = program.detectors.calls(index)
    assert start_ktime_ns == calls.starts_ns[-2] - calls.gaps_ns[-2]
    assert end_ktime_ns == program.taken()[index]["last_return_ktime_ns"]


def test_threads_beyond_those_that_there_is_room_for_are_counted(program):
    """Once each; their calls are counted like those of others."""
    program.do(f"in_thread(lambda: launch(1, 2), {wire.PRELOAD_DETECTORS + 3})")

    assert len(program.taken()) == wire.PRELOAD_DETECTORS
    assert reading_of(program.pid).lost[wire.PRELOAD_LOST_DETECTORS_FULL] == 3


def test_nothing_is_kept_while_nobody_wants_it(program):
    """No agent, or one that looks for no steps."""
    program.settings.withdraw(program.fd)
    program.do("launch(1, 2)")
    PreloadSettings(load(None, {}, {"steps.find": False})).write(program.fd, {}, collectives=False)
    program.do("launch(1, 2)")

    assert program.taken() == {}


def test_another_agent_begins_anew(program):
    """It knows nothing of the period that was followed before."""
    program.do("launch(3)")
    ((index, _),) = program.taken().items()
    (first,) = program.detectors.calls(index).symbols
    program.detectors.follow(index, Period((first,), 1, (first,), 1, False, 100, 9))
    program.do("launch(3, 3, 3)")
    program.detectors.close()
    program.detectors.add(program.image, program.fd, 0)
    program.do("launch(4, 5)")

    ((index, _),) = program.taken().items()
    assert program.detectors.iterations(index, is_last=True) == []
    (fourth, fifth) = program.detectors.calls(index).symbols
    # Nor does it take the round that was over then for one of its own.
    program.detectors.follow(index, Period((fourth,), 1, (fifth,), 1, False, 100, 9))
    program.do("launch(6, 4, 5, 6)")
    assert len(program.detectors.iterations(index)) == 1


def test_a_forked_child_has_a_period_of_its_own(program):
    """Its memory is another one, and nobody has asked there for anything yet."""
    program.do("child = os.fork(); launch(*[1] * 5 if child else [2] * 7); child or os._exit(0)")
    program.do("os.waitpid(child, 0)")

    assert [detector["made"] for detector in program.taken().values()] == [5]


def test_what_a_process_cannot_have_done_is_left_out(program):
    """It may write what it likes: iterations that are none are counted, and calls that are none not taken."""
    program.do("launch(1, 2, 3)")
    ((index, _),) = program.taken().items()
    at = wire.PRELOAD_DETECTORS_OFFSET
    now_ns = time.monotonic_ns()
    begun_ns = program.image[1]
    false = [
        (5, 9),
        (now_ns, now_ns),
        (now_ns, begun_ns),
        (now_ns, now_ns << 1),
        (1 << 63, 1 << 64),
    ]
    iterations = [*false, (begun_ns, now_ns)]
    data = b"".join(
        wire.PRELOAD_ITERATION.build(start_ktime_ns=start_ns, end_ktime_ns=end_ns % (1 << 64))
        for start_ns, end_ns in iterations
    )
    os.pwrite(program.fd, data, at + wire.PRELOAD_DETECTOR.offset_of("iterations"))
    made = at + wire.PRELOAD_DETECTOR.offset_of("iterations_made")
    os.pwrite(program.fd, len(iterations).to_bytes(8, "little"), made)
    assert program.detectors.iterations(index) == [(begun_ns, now_ns)]
    assert program.lost[wire.COUNTER_STEPS_RATE_LIMITED] == len(false)
    # More than there is room for: what is left of them, and how many are not.
    os.pwrite(program.fd, (2 * wire.PRELOAD_ITERATIONS).to_bytes(8, "little"), made)
    assert len(program.detectors.iterations(index)) == 1
    os.pwrite(program.fd, bytes([255]) * 8, made)
    assert len(program.detectors.iterations(index)) == 1
    os.pwrite(program.fd, bytes(8), made)
    assert program.detectors.iterations(index) == []

    for offset, wrong in itertools.product(
        (0, wire.DETECTOR_CALL.size), (0, now_ns >> 4, now_ns << 1, (1 << 64) - 1)
    ):
        kept = at + wire.PRELOAD_DETECTOR.offset_of("calls") + offset
        before = os.pread(program.fd, 8, kept)
        os.pwrite(program.fd, wrong.to_bytes(8, "little"), kept)
        assert program.detectors.calls(index).symbols == ()
        os.pwrite(program.fd, before, kept)
    assert len(program.detectors.calls(index).symbols) == 3
    os.pwrite(program.fd, bytes([255]) * 4, at + wire.PRELOAD_DETECTOR.offset_of("detector.kept"))
    assert program.detectors.detector(index)["kept"] == wire.DETECTOR_CALLS
    assert program.detectors.calls(index).symbols == ()
    program.do("launch(4)")


def test_a_program_is_released_when_all_its_periods_are_returned(program):
    """Its last steps are read after it is closed."""
    program.do("launch(1)")
    ((index, _),) = program.taken().items()
    before = len(open_files(os.getpid()))
    program.detectors.leave(program.image)
    assert list(program.taken()) == [index]
    program.detectors.free(index)

    assert program.taken() == {}
    assert len(open_files(os.getpid())) == before - 1
