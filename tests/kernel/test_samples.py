"""User stacks as the kernel side takes them: registers, memory, saved returns, waits."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.config import Config, load
from tests.kernel.agent import wait_until
from tests.kernel.sampling import (
    PYTHON_WORKLOAD,
    Call,
    Capture,
    Code,
    Sample,
    Stall,
    Subject,
    parse_sample,
    samples_of_calls,
)
from tests.pythons.interpreters import interpreter
from tests.stubs.build import StubLibraries, copy_of_runtime, workload

pytestmark = pytest.mark.kernel

MS = 1_000_000


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A stub runtime that nobody else has probes on."""
    return copy_of_runtime(tmp_path)


@pytest.fixture
def capture(library: Path) -> Iterator[Capture]:
    with Capture(library, Config()) as capture:
        yield capture


@pytest.fixture
def python(library: Path, capture: Capture) -> Iterator[Subject]:
    with Subject((*interpreter("this").command, PYTHON_WORKLOAD, library)) as subject:
        capture.watch_python(subject)
        yield subject


@pytest.fixture
def without_stacks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def choose(moments: int) -> None:
        monkeypatch.setattr(wire, "SAMPLE_CALLS", moments & 1)
        monkeypatch.setattr(wire, "SAMPLE_STALLS", moments & 2)

    return choose


def sleeps_of(records: Sequence[Code | Sample | Call | Stall]) -> list[Stall]:
    """Return the sleeps of 50 ms; the timer runs from a moment before the thread leaves its CPU."""
    stalls = [found for found in records if isinstance(found, Stall)]
    return [stall for stall in stalls if stall.end_ktime_ns - stall.start_ktime_ns >= 45 * MS]


def start_of_stack(pid: int) -> int:
    """Return where the first stack of a process begins."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[25])


def test_every_chosen_call_has_its_own_sample_before_it(library: Path, capture: Capture) -> None:
    """101 calls of a C program: 101 samples, each sent before its call, none of Python."""
    with Subject((workload("timed"), library)) as subject:
        capture.watch(subject)
        subject.ask(101)

        records = capture.read()

    samples = samples_of_calls(records)
    calls = [found for found in records if isinstance(found, Call)]
    assert len(samples) == len(calls) == 101
    in_pairs = [found for found in records if found in samples or found in calls]
    assert in_pairs == [one for pair in zip(samples, calls, strict=True) for one in pair]
    assert [sample.token for sample in samples] == [call.token for call in calls]
    assert len({call.token for call in calls}) == 101
    assert {sample.status for sample in samples} == {wire.PYTHON_NONE}
    assert {len(sample.returns) for sample in samples} == {0}
    assert {sample.tid for sample in samples} == {subject.pid}
    # The waits for its input have samples too, which are not sent.
    assert capture.counters().keys() == {"COUNTER_SAMPLES"}


def test_a_stack_is_copied_to_its_beginning_and_no_further(library: Path, capture: Capture) -> None:
    """
    What is copied is what the process has there, less the frames that are gone since; the
    arguments and the environment, which are beyond the first frame, stay in the process.
    """
    with Subject((workload("timed"), library)) as subject:
        capture.watch(subject)
        subject.ask(1)
        [sample] = samples_of_calls(capture.read())
        end = sample.stack_pointer + len(sample.stack)
        now = subject.read(end - 128, 128)
        start = start_of_stack(subject.pid)

    assert end == start
    assert 128 < len(sample.stack) < 4096
    assert sample.stack[-128:] == now


def test_a_thread_s_stack_is_copied_to_its_beginning(python: Subject, capture: Capture) -> None:
    """A thread's stack ends at what its thread register points to, which is its pthread_self()."""
    [stack] = python.ask("in_thread")

    [sample] = samples_of_calls(capture.read())
    assert sample.tid == stack["tid"]
    assert sample.stack_pointer + len(sample.stack) == stack["ident"]


def test_a_large_stack_is_copied_as_far_as_there_is_room(python: Subject, capture: Capture) -> None:
    """
    32 KiB are the most; what is above 4 and 12 KiB takes a larger record and is all there, up to
    the end of the stack.
    """
    python.ask("in_large_stacks")
    start = start_of_stack(python.pid)
    end = python.read(start - 128, 128)

    samples = samples_of_calls(capture.read())
    whole = [sample for sample in samples if len(sample.stack) < 32768]
    assert len(samples[-1].stack) == 32768
    sizes = [len(sample.stack) for sample in whole]
    assert {size > 4096 for size in sizes} == {False, True}
    assert {size > 12288 for size in sizes} == {False, True}
    assert {sample.stack_pointer + len(sample.stack) for sample in whole} == {start}
    assert {sample.stack[-128:] for sample in whole} == {end}


@pytest.mark.parametrize(("taken", "lost"), [(1, 0), (2, 0), (3, 41)])
def test_a_thread_in_the_middle_of_a_sample_does_not_hold_up_another(
    library: Path, capture: Capture, taken: int, lost: int
) -> None:
    """
    A CPU has three buffers to make samples in. With one of them taken, as by a thread that was
    preempted, or two, nothing is lost; with all of them taken, calls come without a sample, which
    is counted.
    """
    buffers = capture.programs.bpf.map("sample_buffers")
    cpus = capture.programs.bpf.libbpf.call("libbpf_num_possible_cpus")
    taken_buffer = (1).to_bytes(8, "little") + bytes(buffers.value_bytes - 8)
    for key in range(taken):
        buffers.update(key.to_bytes(4, "little"), taken_buffer * cpus)
    with Subject((workload("timed"), library)) as subject:
        capture.watch(subject)
        subject.ask(41)
        records = capture.read()

    calls = [found for found in records if isinstance(found, Call)]
    assert len(calls) == 41
    assert sum(not call.token for call in calls) == lost
    assert len(samples_of_calls(records)) == 41 - lost
    assert capture.counters().get("COUNTER_LOST_SAMPLE", 0) == lost


def test_the_return_address_of_an_outer_call_is_told(
    library: Path, stubs: StubLibraries, capture: Capture
) -> None:
    """
    Inside a runtime call, its return address is the uretprobe's; the one that was there is
    told with its place, and is where the outer call returns to.
    """
    with Subject((*interpreter("this").command, PYTHON_WORKLOAD, library)) as subject:
        capture.watch_python(subject)
        subject.ask("in_callback")
        records = capture.read()

    calls = {found.token: found for found in records if isinstance(found, Call)}
    samples = samples_of_calls(records)
    inner, outer = samples[0], samples[1]
    [(place, address)] = inner.returns.items()
    assert (calls[inner.token].depth, calls[outer.token].depth) == (1, 0)
    assert address == outer.instruction_pointer
    # On x86-64 the return address is the last thing that a call leaves on the stack.
    assert place == outer.stack_pointer - 8
    assert inner.word(place) != address
    assert inner.word(place) % 4096 == 0
    assert outer.returns == {}


def test_a_wait_in_a_gap_has_the_sample_of_its_beginning(python: Subject, capture: Capture) -> None:
    """A thread that sleeps 50 ms between two calls: the stall's sample shows the sleep."""
    [stack] = python.ask("in_gap")

    records = capture.read()
    [stall] = sleeps_of(records)
    [sample] = [
        found for found in records if isinstance(found, Sample) and found.token == stall.token
    ]
    names = {found.code: found.name for found in records if isinstance(found, Code)}
    assert stall.token == stall.start_ktime_ns
    assert records.index(sample) < records.index(stall)
    assert sample.status == wire.PYTHON_COMPLETE
    assert [names[frame.code] for frame in sample.frames] == ["in_gap", "main", "<module>"]
    assert [frame.offset for frame in sample.frames[1:]] == [
        frame["offset"] for frame in stack["frames"][1:]
    ]
    assert len(sample.stack) <= wire.STALL_COPY_BYTES


def test_a_wait_of_a_thread_that_makes_no_calls_has_a_sample(
    library: Path, capture: Capture
) -> None:
    """It sleeps 50 ms, which is long enough to be told of by itself."""
    with Subject((*interpreter("this").command, PYTHON_WORKLOAD, library)) as subject:
        capture.watch_python(subject)
        subject.ask("rest")
        records = capture.read()

    [stall] = sleeps_of(records)
    samples = {found.token: found for found in records if isinstance(found, Sample)}
    names = {found.code: found.name for found in records if isinstance(found, Code)}
    assert [names[frame.code] for frame in samples[stall.token].frames] == [
        "rest",
        "main",
        "<module>",
    ]


def test_a_call_that_spins_for_long_has_a_sample_while_it_lasts(
    python: Subject, capture: Capture
) -> None:
    """It never waits, and nobody knows when it will return: it is seen when it is preempted."""
    asked_ktime_ns = time.monotonic_ns()
    [stack] = python.ask("spin")
    samples = capture.programs.bpf.map("stall_samples")
    key = stack["tid"].to_bytes(4, "little")

    def find() -> Sample | None:
        raw = samples.lookup(key)
        sample = parse_sample(raw) if raw else None
        return sample if sample and sample.token > asked_ktime_ns + 100 * MS else None

    sample = wait_until(find, "a sample of the call")
    names = {found.code: found.name for found in capture.read() if isinstance(found, Code)}
    assert sample.status == wire.PYTHON_COMPLETE
    assert names[sample.frames[0].code] == "Thread.run"
    assert len(sample.returns) == 1


def test_samples_of_waits_have_a_rate(python: Subject, capture: Capture) -> None:
    """A hundred short waits in a row: about twenty have a sample, the others are counted."""
    python.ask("wait_often")

    counters = capture.counters()
    assert 20 <= counters["COUNTER_SAMPLES"] < 80
    assert counters["COUNTER_SAMPLES_RATE_LIMITED"] > 20
    assert "COUNTER_LOST_SAMPLE" not in counters


def test_a_crowded_ring_loses_samples_before_calls(
    library: Path, without_stacks: Callable[[int], None]
) -> None:
    """
    Nobody reads a ring of 64 KiB: each call that there is room for comes, some without a
    sample, which is counted.
    """
    without_stacks(1)  # Of waits, as a thread that loses its CPU for long has a sample too.
    config = load(None, {}, {"capture.ring_buffer_bytes": 65536})
    with Capture(library, config) as capture, Subject((workload("timed"), library)) as subject:
        capture.watch(subject)
        subject.ask(97)
        records = capture.read()
        counters = capture.counters()

    calls = [found for found in records if isinstance(found, Call)]
    samples = [found for found in records if isinstance(found, Sample)]
    assert len(calls) == 97
    assert [call.token for call in calls if call.token] == [sample.token for sample in samples]
    assert 0 < len(samples) < 97
    assert counters.keys() == {"COUNTER_SAMPLES", "COUNTER_LOST_SAMPLE"}
    assert counters["COUNTER_LOST_SAMPLE"] == 97 - len(samples)


@pytest.mark.parametrize("moments", [0, 1, 2])
def test_samples_are_taken_only_when_they_are_asked_for(
    library: Path, without_stacks: Callable[[int], None], moments: int
) -> None:
    """Calls and waits are two switches; a record without a sample has no token."""
    without_stacks(moments)
    with (
        Capture(library, Config()) as capture,
        Subject((*interpreter("this").command, PYTHON_WORKLOAD, library)) as subject,
    ):
        capture.watch_python(subject)
        subject.ask("in_gap")
        records = capture.read()

    calls = [found for found in records if isinstance(found, Call)]
    stalls = sleeps_of(records)
    assert {bool(call.token) for call in calls} == {bool(moments & 1)}
    assert {bool(stall.token) for stall in stalls} == {bool(moments & 2)}
