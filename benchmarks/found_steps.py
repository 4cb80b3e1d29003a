"""Time that it adds to a call to look for steps, and to report those that were found."""

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on
from otel_gpu import wire
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime, workload

BOUND_NS = 60.0
CALLS_PER_ROUND = 1_000  # of tests/workloads/iterations.c
ROUNDS = 2
TURNS, QUICK_TURNS = 1_001, 301
_OFF = {"OTEL_GPU_STEPS_FIND": "false"}
_SETTINGS = {"OTEL_GPU_SPANS_SAMPLE_ONE_IN": "0"}


def run(*, quick: bool = False) -> list[Result]:
    """Interleave turns on two copies of one library, each with an agent; one looks for no steps."""
    turns = QUICK_TURNS if quick else TURNS
    with tempfile.TemporaryDirectory() as folder:
        libraries = [copy_of_runtime(Path(folder) / name) for name in ("off", "on")]
        subjects = [Subject((workload("iterations"), library)) for library in libraries]
        off, on = subjects
        with (
            OtlpReceiver() as receiver,
            OtlpReceiver() as other_receiver,
            off,
            on,
            agent_on(off.pid, receiver, env=_OFF | _SETTINGS),
            agent_on(on.pid, other_receiver, env=_SETTINGS),
        ):
            # Until the period is known and no calls are kept any more.
            for subject in subjects:
                _nanoseconds_per_call(subject, 2 * wire.DETECTOR_CALLS // CALLS_PER_ROUND)
            time.sleep(5.0)
            samples = [
                [_nanoseconds_per_call(subject, ROUNDS) for subject in subjects]
                for _ in range(turns)
            ]
    floor_ns = median(sample[0] for sample in samples)
    added_ns = median(sample[1] - sample[0] for sample in samples)
    return [
        Result(
            what="time that steps that are found add to a call",
            value=added_ns,
            unit="ns",
            floor=floor_ns,
            floor_is="a probed call without",
            ratio=added_ns / BOUND_NS,
            bound=f"<= {BOUND_NS:.0f} ns",
            held=added_ns <= BOUND_NS,
            note=(
                f"without {spread([sample[0] for sample in samples])} ns; "
                f"with {spread([sample[1] for sample in samples])} ns"
            ),
        )
    ]


def _nanoseconds_per_call(subject: Subject, rounds: int) -> float:
    return int(subject.ask(rounds)) / rounds / CALLS_PER_ROUND
