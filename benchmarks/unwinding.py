"""Time to walk the native stack of a Python program, with rules that are known and without."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.result import Result
from otel_gpu.stacks.unwind.unwinder import Unwinder
from tests.unit.stacks.stack_captures import Library

# Each is a call from the interpreter into C and back: ten native frames.
DEPTH = 4
BOUND_NS = 2_000


def run(*, quick: bool = False) -> list[Result]:
    """Walk one stack of this process again and again."""
    rounds = 50 if quick else 1_000
    with tempfile.TemporaryDirectory() as folder:
        library = Library(Path(folder))
        _descend(library, DEPTH)
        capture = library.taken()
        unwinder = Unwinder()

        def walk(unwinder: Unwinder) -> int:
            walked = unwinder.unwind(capture.registers, capture.stack, capture.find, {})
            assert walked.complete
            return len(walked.addresses)

        frames = walk(unwinder)
        warm = [_time(lambda: walk(unwinder)) for _ in range(rounds)]
        cold = [_time(lambda: walk(Unwinder())) for _ in range(rounds // 10)]
        looking_up = [
            _time(lambda: [capture.find(capture.registers.instruction_pointer)] * frames)
            for _ in range(rounds)
        ]
    value = median(warm) / frames
    floor = median(looking_up)
    return [
        Result(
            what=f"a native frame, of {frames} that were met before",
            value=value,
            unit="ns",
            floor=floor,
            floor_is="finding one mapping",
            ratio=value / BOUND_NS,
            bound=f"{BOUND_NS:,} ns",
            held=value <= BOUND_NS,
            note=f"{median(cold) / frames:,.0f} ns where nothing was met before",
        )
    ]


def _descend(library: Library, depth: int) -> None:
    if depth:
        sorted([1], key=lambda _: _descend(library, depth - 1))
    else:
        library.function(1)


def _time(function: Callable[[], object]) -> int:
    start_ns = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - start_ns
