"""Time that a chosen call takes more with its user stack, against an empty uprobe pair."""

import collections
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.programs import file_offset, programs
from benchmarks.result import Result, spread
from otel_gpu.config import Config, load
from tests.kernel.sampling import Capture, Subject
from tests.stubs.build import WORKLOADS, copy_of_runtime, workload

BOUND = 1.5
# So few that the ring is emptied long before anybody has to be woken for it.
CALLS = 40
FRAMES = 20


def run(*, quick: bool = False) -> list[Result]:
    """
    Interleave rounds on four copies of one library: bare, empty pair, chosen, with a stack.

    Every call is chosen. The program in C has a few hundred bytes of stack, the one in
    Python has 20 frames of Python and some 8 KB.
    """
    rounds = 101 if quick else 601
    python = (sys.executable, WORKLOADS / "timed.py")
    return [
        measure("a program in C", (workload("timed"),), (), rounds),
        measure(f"{FRAMES} frames of Python", python, (str(FRAMES),), rounds),
    ]


def measure(
    whose: str, program: Sequence[str | Path], arguments: Sequence[str], rounds: int
) -> Result:
    """Return what is added to the calls of one program that have a stack."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        libraries = [copy_of_runtime(folder / str(number)) for number in range(4)]
        subjects = [
            stack.enter_context(Subject((*program, library, *arguments))) for library in libraries
        ]
        empty = stack.enter_context(programs())
        place = [(file_offset(libraries[1]), 0)]
        empty.attach_uprobes("empty_enter", str(libraries[1]), place)
        empty.attach_uprobes("empty_exit", str(libraries[1]), place, on_return=True)
        captures = [
            stack.enter_context(Capture(library, config_with(stacks=stacks)))
            for library, stacks in zip(libraries[2:], (False, True), strict=True)
        ]
        for capture, subject in zip(captures, subjects[2:], strict=True):
            if isinstance(subject.about, dict):
                capture.watch_python(subject)
            else:
                capture.watch(subject)
        samples = []
        for _ in range(rounds):
            samples.append([int(subject.ask(CALLS)) / CALLS for subject in subjects])
            for capture in captures:
                collections.deque(capture.programs.events.read(), maxlen=0)
        counters = captures[1].counters()
        assert counters["COUNTER_SAMPLES"] >= rounds * CALLS
        assert not any("LOST" in name for name in counters)
    floor_ns = median(pair - bare for bare, pair, _, _ in samples)
    chosen_ns = median(chosen - bare for bare, _, chosen, _ in samples)
    stack_ns = median(whole - chosen for _, _, chosen, whole in samples)
    added_ns = median(whole - bare for bare, _, _, whole in samples)
    ratio = median((whole - bare) / (pair - bare) for bare, pair, _, whole in samples)
    return Result(
        what=f"time added to a call with a stack, {whose}",
        value=added_ns,
        unit="ns",
        floor=floor_ns,
        floor_is="empty uprobe and uretprobe",
        ratio=ratio,
        bound=f"<= {BOUND} of the floor",
        held=ratio <= BOUND,
        note=(
            f"{chosen_ns:.0f} ns when chosen without a stack, so the stack is {stack_ns:.0f} ns; "
            f"the whole call {spread([sample[3] for sample in samples])} ns"
        ),
    )


def config_with(*, stacks: bool) -> Config:
    """Return the configuration of a capture that limits nothing."""
    return load(None, {}, {"stacks.enabled": stacks, "spans.rate_per_process": 1_000_000})
