"""Calls with stacks, and the report that they make."""

from otel_gpu import wire
from otel_gpu.report.stacks.top_stacks import StackCollector
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MAIN_FRAME,
    SECOND,
    call,
    call_stack,
    calls,
    capture,
    image,
    snapshot,
)

TRAINER, SERVER = image(42, 1), image(77, 1, name="server")
MS = 1_000_000
MALLOC = call_stack(1)
LAUNCH = call_stack(2, (Frame("native", "cudaLaunchKernel", module="libcudart.so.12"), MAIN_FRAME))
SAMPLED = {"choices": wire.CHOICE_SAMPLED, "weight": 1000}


def training():
    """Two slow allocations, one launch of a thousand, one call without a stack, one elsewhere."""
    return [
        call(TRAINER, "cudaMalloc", SECOND, 3 * MS, size_bytes=100, stack=MALLOC),
        call(TRAINER, "cudaMalloc", 2 * SECOND, 4 * MS, size_bytes=200, stack=MALLOC),
        call(TRAINER, "cudaLaunchKernel", 3 * SECOND, 5_000, stack=LAUNCH, **SAMPLED),
        call(TRAINER, "cudaLaunchKernel", 4 * SECOND, 6_000),
        call(SERVER, "cudaMalloc", 5 * SECOND, MS, size_bytes=50, stack=MALLOC),
        snapshot(
            6,
            calls(TRAINER, "cudaMalloc", [3 * MS, 4 * MS]),
            calls(TRAINER, "cudaLaunchKernel", [5_000] * 1500),
            calls(TRAINER, "cuLaunchKernel", [4_000] * 1500, nested=1),
            calls(SERVER, "cudaMalloc", [MS]),
        ),
    ]


def report_of(*activities, by="time", **kwargs):
    collector = StackCollector(**kwargs)
    for activity in (capture(), *(activities or training())):
        collector.observe(activity)
    return collector.finish("train.otelgpu", by)


EVIL = [
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]>&lt;&amp;",
    "a\x00b\x1b[2J\n\u2028\ud800",
    "</script><script>alert(1)</script>",
]
