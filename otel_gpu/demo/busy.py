"""
Scenarios of a loop that is busy between its CUDA calls.

It works in the last line of a separate function, so the line is known. A wait before the first call
would be in no gap, so a step comes before the first wait. The loop launches once a step, as with
CUDA graphs.
"""

import time

from otel_gpu.demo.clocks import on_cpu_ns
from otel_gpu.demo.loop import MS, STEPS, Act, Trainer, place_of

STEP_NS = 20 * MS
# Sorting it takes less than 1 ms, during which no thread can take the GIL.
PIXELS = [number * 7919 % 4001 for number in range(4001)]


def step(trainer: Trainer) -> None:
    """Run one step of the loop."""
    trainer.launch()
    trainer.synchronize()


def prepare(cpu_ns: int) -> None:
    """Use CPU time, as the smaller part of a step."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        sorted(PIXELS)


def tokenise(cpu_ns: int) -> None:
    """Use CPU time, as the larger part of a step."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        sorted(PIXELS)


def work_between_steps(trainer: Trainer, work: Act, place: dict[str, object]) -> None:
    """Do ``work`` before every step, and note its CPU time as lost at ``place``."""
    for _ in range(STEPS):
        start_ns = on_cpu_ns()
        work()
        lost_ns = on_cpu_ns() - start_ns
        trainer.lose("host_work", lost_ns, place=place)
        step(trainer)


def slow_python(trainer: Trainer) -> None:
    """Every step works 20 ms in Python between two launches, mostly in one line."""

    def work() -> None:
        prepare(STEP_NS // 5)
        tokenise(STEP_NS - STEP_NS // 5)

    work_between_steps(trainer, work, place_of(tokenise))
