"""A program with known shares on CPUs and off them, as activities."""

from otel_gpu.report.stacks.top_stacks import WALL, StackCollector
from otel_gpu.wire import CONTEXT_GAP, STATE_ON_CPU
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MAIN_FRAME,
    MALLOC_FRAME,
    PATTERN_FRAME,
    SECOND,
    call_stack,
    capture,
    counters,
    image,
    sample,
    stall,
    thread_time,
    times,
)

MS = 1_000_000
TRAINER = image(42, 1)
LOADER = {"tid": 43, "comm": "loader"}
SHARES = {"resize": 50, "decode": 25, "shuffle": 15, "log": 7, "flush": 3}


def at(function, number=None):
    """A stack whose innermost frame is of this function."""
    number = 100 + list(SHARES).index(function) if number is None else number
    return call_stack(number, (Frame("cpython", function, "/app/load.py", number), MAIN_FRAME))


ALLOCATING = call_stack(7, (MALLOC_FRAME, PATTERN_FRAME, MAIN_FRAME))


def busy():
    """A loader with known shares of a second; a main thread that allocates, waits, and waits for a CPU."""
    yield capture()
    for number, name in enumerate(name for name, share in SHARES.items() for _ in range(share)):
        yield sample(TRAINER, (1_000 + number) * 10 * MS, 10 * MS, stack=at(name), **LOADER)
    yield sample(
        TRAINER, 12 * SECOND, 40 * MS, stack=ALLOCATING, in_call="cudaMalloc",
        functions=("clear_page", "handle_mm_fault"),
    )  # fmt: skip
    yield sample(TRAINER, 12 * SECOND, 60 * MS)
    yield stall(
        TRAINER, 13 * SECOND, 13 * SECOND + 300 * MS, 13 * SECOND + 350 * MS, reason="ipc",
        functions=("pipe_read",), stack=at("log"),
    )  # fmt: skip
    yield stall(TRAINER, 14 * SECOND, 14 * SECOND + 50 * MS, 14 * SECOND + 50 * MS, reason="driver")
    yield times(20, thread_time(TRAINER, STATE_ON_CPU, CONTEXT_GAP, 1_150 * MS))
    yield counters(20, cpu_samples_rate_limited=9)


def report_of(*activities, kind=WALL, source="busy.otelgpu", **kwargs):
    collector = StackCollector(kind=kind, **kwargs)
    for activity in activities or busy():
        collector.observe(activity)
    return collector.finish(source)
