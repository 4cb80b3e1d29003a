"""Who is busy with what, beside what the demo has; see ``otel_gpu/demo/busy.py``."""

import gc
import os
import statistics
import time

from otel_gpu.demo.busy import PIXELS, STEP_NS, prepare, step, tokenise
from otel_gpu.demo.clocks import on_cpu_ns, run_queue_ns, unqueued_ns
from otel_gpu.demo.loop import (
    FIRST_EFFECT,
    GPU_NS,
    LAUNCH,
    LAUNCH_NS,
    MS,
    STEPS,
    SYNCHRONIZE,
    Helper,
    Trainer,
    place_of,
)
from tests.scenarios.steady import wait_for_loader

_COLLECTION_NS = 80 * MS
_MORE_OBJECTS = 200_000


def slow_augment(cpu_ns: int) -> None:
    """Change the pictures of a batch."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        sorted(PIXELS)


def collect_garbage() -> None:
    """Look for what nobody needs."""
    gc.collect()


def busy_loader(trainer: Trainer) -> None:
    """Every step waits for a data loader, whose worker mostly works in one line."""

    def load() -> None:
        prepare(STEP_NS // 5)
        slow_augment(STEP_NS - STEP_NS // 5)

    wait_for_loader(trainer, load, place_of(slow_augment))


def gil_holder(trainer: Trainer) -> None:
    """A thread that works in Python gives the GIL back only after 5 ms, again and again."""
    # Calls that sleep in C: nobody but the holder keeps the loop from going on.
    trainer.sleep_inside(LAUNCH, LAUNCH_NS)
    trainer.sleep_inside(SYNCHRONIZE, GPU_NS)
    is_over = False

    def hold(_helper: Helper, _: int, __: int) -> None:
        while not is_over:
            tokenise(MS)

    holder = Helper("holder", trainer.other_cpu, hold, is_thread=True)
    usual_ns = []
    for _ in range(FIRST_EFFECT):
        start_ns = unqueued_ns()
        step(trainer)
        usual_ns.append(unqueued_ns() - start_ns)
    waited_ns = run_queue_ns()
    holder.order()
    # From here on nothing but the calls lets go of the GIL.
    start_ns = time.monotonic_ns()
    for _ in range(STEPS):
        step(trainer)
    took_ns, is_over = time.monotonic_ns() - start_ns, True
    waited_ns = run_queue_ns() - waited_ns
    lost_ns = took_ns - waited_ns - STEPS * int(statistics.median(usual_ns))
    via = {"kind": "host_work", "time_ns": lost_ns, "pid": os.getpid(), "tid": holder.tid}
    place = place_of(tokenise)
    trainer.lose("gil", lost_ns, pid=os.getpid(), via=via | {"place": place})


def garbage_collection(trainer: Trainer) -> None:
    """A large heap is collected between two launches, for 80 ms or more."""
    # Not before it is asked for.
    gc.disable()
    heap: list[list[None]] = []
    cpu_ns = 0
    while cpu_ns < _COLLECTION_NS:
        heap += ([None] for _ in range(_MORE_OBJECTS))
        start_ns = time.thread_time_ns()
        collect_garbage()
        cpu_ns = time.thread_time_ns() - start_ns
    place = place_of(collect_garbage)

    def collect() -> None:
        start_ns = on_cpu_ns()
        collect_garbage()
        lost_ns = on_cpu_ns() - start_ns
        trainer.inject("host_work", lost_ns, place=place)

    trainer.train(in_gap=collect)


SUDDEN = (garbage_collection,)
ALWAYS = (busy_loader, gil_holder)
