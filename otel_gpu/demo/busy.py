"""
The loop itself is busy between its CUDA calls.

It works in the last line of a function of its own, so that the line is known. A wait before the
first call would be in no gap, so a step comes before the first wait. The loop launches once a step,
as with CUDA graphs.
"""

import time
from typing import Any

from otel_gpu.demo.clocks import on_cpu_ns
from otel_gpu.demo.loop import MS, STEPS, Act, Trainer, place_of

STEP_NS = 20 * MS
# To sort it takes less than a millisecond, and nothing can take the GIL meanwhile.
PIXELS = [number * 7919 % 4001 for number in range(4001)]


def step(trainer: Trainer) -> None:
    """Run one step of the loop."""
    trainer.launch()
    trainer.synchronize()


def prepare(cpu_ns: int) -> None:
    """Get things ready, which takes less."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        sorted(PIXELS)


def tokenise(cpu_ns: int) -> None:
    """Make numbers of texts."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        sorted(PIXELS)


def work_between_steps(trainer: Trainer, work: Act, place: dict[str, Any]) -> None:
    """Work before every step, at a place."""
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
