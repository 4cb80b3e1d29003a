"""Samples of threads that are on a CPU: which lines their time goes into."""

import itertools
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.cpu_sampling import OnCpuSampling
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import load
from otel_gpu.enrich.activities import SampleActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall
from otel_gpu.wire.probe_table import API_BY_NUMBER
from otel_gpu.wire.readings import Counters
from tests.kernel.agent import FIRST, Agent, open_files, wait_until
from tests.kernel.stolen_time import read_stolen_ns
from tests.stubs.build import StubLibraries, library, stub_libraries, workload

pytestmark = [pytest.mark.kernel, pytest.mark.alone(among="kernel")]

# In 20 s the shares have to be right. In 8 s, chance alone moves one of them by 2 points now and then.
SECONDS = 16
SHARES = {50: 0.5, 25: 0.25, 15: 0.15, 7: 0.07, 3: 0.03}
WORKLOAD = Path(__file__).resolve().parents[1] / "workloads" / "shares.py"


class Captured(NamedTuple):
    """What two programs said of themselves, and what was recorded of them."""

    python: Mapping[str, Any]
    program: Mapping[str, Any]
    unwatched_pid: int
    samples: Sequence[SampleActivity]
    calls: Sequence[CudaCall]
    counters: Sequence[int]
    stolen_ns: int

    def of(self, said: Mapping[str, Any]) -> list[SampleActivity]:
        """The samples of the main thread of a program."""
        return [sample for sample in self.samples if sample.event.tid == said["pid"]]


@pytest.fixture(scope="module")
def captured(counted_by: str, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Two threads that work, beside one that nobody watches."""
    path = tmp_path_factory.mktemp("on_cpu") / f"{counted_by}.otelgpu"
    seconds = str(SECONDS)
    program = [workload("shares"), stub_libraries().runtime, seconds]
    command = [sys.executable, WORKLOAD, library("shares"), seconds, *program]
    flags = ("--record", str(path), "--spans", "full", "--summary", "never")
    stolen_ns = read_stolen_ns()
    with subprocess.Popen(["nice", "-n", "19", *program], stdout=subprocess.DEVNULL) as unwatched:
        with Agent(None, command, flags=flags, inside=FIRST) as agent:
            finished = agent.wait()
        unwatched.kill()
    stolen_ns = read_stolen_ns() - stolen_ns
    assert finished.returncode == 0, finished.stderr
    rejected: Counter[str] = Counter()
    records = (record for batch in read_recording(path) for record in batch)
    events = list(decode(records, rejected))
    assert not rejected
    activities = Enricher().enrich(events)
    [python] = finished.lines
    return Captured(
        python,
        python["command"],
        unwatched.pid,
        [activity for activity in activities if isinstance(activity, SampleActivity)],
        [event for event in events if isinstance(event, CudaCall)],
        [event for event in events if isinstance(event, Counters)][-1].values,
        stolen_ns,
    )


def shares_of(
    samples: Sequence[SampleActivity], place: Callable[[SampleActivity], int | None]
) -> dict[int, float]:
    """Return the share of each place in the weight of all samples that have one."""
    weights: dict[int, int] = defaultdict(int)
    for sample in samples:
        if found := place(sample):
            weights[found] += sample.event.weight_ns
    return {place: weight / sum(weights.values()) for place, weight in weights.items()}


def function_of(sample: SampleActivity) -> int | None:
    """Which of the five functions in C a sample is in."""
    names = [frame.function for frame in sample.stack.frames] if sample.stack else []
    return next((share for share in SHARES if f"work_{share}" in names), None)


def test_functions_in_c_have_their_shares(captured: Captured) -> None:
    """Each within 3 percentage points, and hardly a sample is anywhere else."""
    samples = captured.of(captured.program)

    assert shares_of(samples, function_of) == pytest.approx(SHARES, abs=0.03)
    assert sum(map(bool, map(function_of, samples))) > 0.95 * len(samples)


def test_lines_of_python_have_the_shares_of_the_c_code_under_them(captured: Captured) -> None:
    """
    The thread holds the GIL in an extension, and another one wants it: line and function agree,
    and are within 3 percentage points.
    """
    samples = captured.of(captured.python)
    first = captured.python["first_line"]

    def line_of(sample: SampleActivity) -> int | None:
        frames = sample.stack.frames if sample.stack else ()
        line = next((frame.line for frame in frames if frame.function == "one_round"), 0)
        return list(SHARES)[line - first - 1] if line > first else None

    assert shares_of(samples, function_of) == pytest.approx(SHARES, abs=0.03)
    assert shares_of(samples, line_of) == pytest.approx(SHARES, abs=0.03)
    both = [(function_of(sample), line_of(sample)) for sample in samples if function_of(sample)]
    assert sum(function == line for function, line in both) > 0.99 * len(both)


def test_weights_are_the_time_on_cpus(captured: Captured) -> None:
    """Within 3 %, of each thread, with what other machines took of it: the scheduler leaves that out."""
    for said in (captured.program, captured.python):
        weight_ns = sum(sample.event.weight_ns for sample in captured.of(said))

        assert 0.97 * said["cpu_ns"] <= weight_ns <= 1.03 * said["cpu_ns"] + captured.stolen_ns


def test_a_sample_is_in_its_call_or_in_the_gap_after_it(
    captured: Captured, counted_by: str
) -> None:
    """The function that is called by the call is in it, and the others are in the gap."""
    calls = {call.start_ktime_ns: call for call in captured.calls}
    inside = outside = between = 0
    for sample in captured.of(captured.program):
        event, function = sample.event, function_of(sample)
        if function == 15:
            call = calls[event.root_start_ktime_ns]
            assert event.context == wire.CONTEXT_SYNCHRONIZE
            assert call.start_ktime_ns <= event.ktime_ns <= call.end_ktime_ns
            inside += 1
        elif function and event.root_start_ktime_ns:
            between += 1
        elif function:
            assert event.context == wire.CONTEXT_GAP
            outside += 1
        if function:
            assert API_BY_NUMBER[event.api].name == "cudaStreamSynchronize"

    assert inside
    assert outside
    # The preload library's own code is in the call, and is no function that the call calls.
    assert between <= (2 if counted_by == "preload" else 0)
    assert {sample.event.context for sample in captured.of(captured.python)} == {wire.CONTEXT_OTHER}


def test_only_what_is_watched_is_sampled_and_nothing_is_lost(captured: Captured) -> None:
    """The samples are as many as the counters say."""
    counters = captured.counters

    assert captured.unwatched_pid not in {sample.event.pid for sample in captured.samples}
    assert len(captured.samples) == counters[wire.COUNTER_CPU_SAMPLES]
    assert counters[wire.COUNTER_LOST_CPU_SAMPLE] == 0
    assert all(sample.stack for sample in captured.of(captured.program))


@pytest.fixture
def busy(stubs: StubLibraries) -> Iterator[int]:
    """A program that works until the end of the test, by its pid."""
    with subprocess.Popen([workload("shares"), stubs.runtime, "600"]) as process:
        yield process.pid
        process.kill()


def test_what_finds_no_room_is_counted(busy: int) -> None:
    """Nobody reads the ring: every tick is sampled, or lost for that reason."""
    options = {"samples.rate_hz": 1000, "samples.stacks_per_second": 100_000}
    config = load(None, {}, options | {"capture.ring_buffer_bytes": 65_536})
    with Programs(config, watch_all=False) as programs:
        programs.processes.watch(busy, 0)
        OnCpuSampling(programs, config).adjust(is_watching=True)
        wait_until(lambda: programs.read_counters()[wire.COUNTER_LOST_CPU_SAMPLE] > 10, "a loss")
        counters = programs.read_counters()

    assert counters[wire.COUNTER_CPU_SAMPLES] > 0
    assert counters[wire.COUNTER_LOST_SAMPLE] > 10
    assert counters[wire.COUNTER_CPU_SAMPLES_RATE_LIMITED] == 0


def test_a_tick_stands_for_those_before_it_that_are_missing(busy: int) -> None:
    """A clock that comes late, as that of a virtual machine may, loses no time."""
    period_ns, late_ns = 5_000_000, 100_000_000
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(busy, {cpu})
    # Nothing else may have the CPU meanwhile.
    os.sched_setscheduler(busy, os.SCHED_FIFO, os.sched_param(1))
    with Programs(load(None, {}, {}), watch_all=False) as programs:
        programs.processes.watch(busy, 0)
        programs.bpf.attach(programs.wake_program)
        programs.bpf.attach(programs.switch_program)
        programs.set_sampling(1, period_ns)
        clock = programs.attach_clock(cpu, period_ns)

        def weights_ns() -> Iterator[tuple[int, int]]:
            """Let ticks be missing for a while, and yield times of samples and their weights."""
            clock.set_period(10 * late_ns)
            time.sleep(late_ns / 1e9)
            clock.set_period(period_ns)
            time.sleep(20 * period_ns / 1e9)
            for record in programs.events.read():
                if int.from_bytes(record[:2], "little") == wire.RECORD_CPU_SAMPLE:
                    said = wire.CPU_SAMPLE_RECORD.named(record)
                    yield said["ktime_ns"], said["weight_ns"]

        def sampled_late() -> list[tuple[int, int]]:
            """The samples, if the late tick was one: else it has met another program."""
            samples = list(weights_ns())
            is_late = any(weight_ns >= late_ns for _, weight_ns in samples)
            return samples if is_late else []

        samples = wait_until(sampled_late, "a late tick in a busy program")
        programs.detach(clock.stop)

    for (before_ktime_ns, _), (ktime_ns, weight_ns) in itertools.pairwise(samples):
        assert period_ns <= weight_ns < ktime_ns - before_ktime_ns + period_ns


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[Programs, OnCpuSampling]]:
    """A thousand ticks a second of each CPU, and ten samples of all."""
    config = load(None, {}, {"samples.rate_hz": 1000, "samples.stacks_per_second": 10})
    with Programs(config, watch_all=False) as programs:
        yield programs, OnCpuSampling(programs, config)


def test_the_kernel_side_keeps_to_the_budget_by_itself(
    busy: int, limited: tuple[Programs, OnCpuSampling]
) -> None:
    """Before the agent has read anything, there is a burst, and no more than the rate."""
    programs, sampling = limited
    programs.processes.watch(busy, 0)
    sampling.adjust(is_watching=True)
    programs.set_sampling(1, 1_000_000)
    start_s = time.monotonic()
    wait_until(
        lambda: programs.read_counters()[wire.COUNTER_CPU_SAMPLES_RATE_LIMITED] > 300, "a limit"
    )
    counters = programs.read_counters()
    elapsed_s = time.monotonic() - start_s
    sampling.adjust(is_watching=False)

    assert 0 < counters[wire.COUNTER_CPU_SAMPLES] <= 100 + 2 + 10 * elapsed_s


def test_nothing_ticks_while_nothing_is_watched(limited: tuple[Programs, OnCpuSampling]) -> None:
    """The clocks are there with the first process, and gone with the last."""
    _, sampling = limited

    def clocks() -> int:
        return sum("perf_event" in name for name in open_files(os.getpid()))

    before = clocks()
    sampling.adjust(is_watching=False)
    assert clocks() == before
    sampling.adjust(is_watching=True)
    assert clocks() == before + os.sysconf("SC_NPROCESSORS_ONLN")
    sampling.adjust(is_watching=False)
    assert clocks() == before


# Two ticks a step, if they were even: each step would be met in the same two places.
IN_STEP = """
import time
STEP_NS, SHORT_NS = 20_202_020, 6_734_006
def short(until_ns):
    while time.monotonic_ns() < until_ns:
        pass
def long(until_ns):
    while time.monotonic_ns() < until_ns:
        pass
begun_ns = time.monotonic_ns()
for step in range(250):
    short(begun_ns + step * STEP_NS + SHORT_NS)
    long(begun_ns + (step + 1) * STEP_NS)
"""


def test_what_is_in_step_with_the_clock_has_its_share(tmp_path: Path) -> None:
    """A third of each step is a third of the samples."""
    path = tmp_path / "in-step.otelgpu"
    flags = ("--record", str(path), "--summary", "never")
    with Agent(None, [sys.executable, "-c", IN_STEP], flags=flags, inside=FIRST) as agent:
        agent.wait()
    records = (record for batch in read_recording(path) for record in batch)
    found: Counter[str] = Counter()
    for activity in Enricher().enrich(decode(records, Counter())):
        if isinstance(activity, SampleActivity) and activity.stack:
            found.update({f.function for f in activity.stack.frames} & {"short", "long"})

    assert found.total() > 300
    assert found["short"] / found.total() == pytest.approx(1 / 3, abs=0.1)
