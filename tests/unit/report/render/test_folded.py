"""Folded stacks: a line for each."""

from otel_gpu.report.render.folded import folded_line
from otel_gpu.report.stacks.folding import fold
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call, call_stack
from tests.unit.report.stack_samples import LAUNCH, MALLOC, MS, TRAINER, report_of


def test_folded_stacks_have_the_process_first_and_the_call_last():
    """Outermost first, joined by semicolons, and what it weighs."""
    report = report_of()

    assert list(map(folded_line, fold(report.rows, "calls"))) == [
        (
            "trainer (42);<module> (/app/train.py:102);fragmentation_pattern (/app/train.py:74);"
            "at::native::empty_cuda (libtorch_cuda.so);cudaMalloc (libcudart.so.12) 2"
        ),
        "trainer (42);<module> (/app/train.py:102);cudaLaunchKernel (libcudart.so.12) 1000",
        (
            "server (77);<module> (/app/train.py:102);fragmentation_pattern (/app/train.py:74);"
            "at::native::empty_cuda (libtorch_cuda.so);cudaMalloc (libcudart.so.12) 1"
        ),
    ]


def test_a_stack_of_two_apis_is_folded_once():
    """And one that weighs nothing not at all."""
    report = report_of(
        call(TRAINER, "cudaMalloc", SECOND, MS, size_bytes=7, stack=MALLOC),
        call(TRAINER, "cudaMallocAsync", 2 * SECOND, MS, size_bytes=8, stack=MALLOC),
        call(TRAINER, "cudaFree", 3 * SECOND, MS, stack=LAUNCH),
    )

    (stack,) = fold(report.rows, "bytes")
    assert stack.weight == 15


def test_a_name_cannot_break_a_folded_line():
    """A semicolon would make frames, a line break lines."""
    frame = Frame("native", "f;g 9\nevil", module="libx.so")
    report = report_of(call(TRAINER, "cudaFree", SECOND, MS, stack=call_stack(1, (frame,))))

    assert list(map(folded_line, fold(report.rows, "calls"))) == [
        "trainer (42);f:g 9\\nevil (libx.so) 1"
    ]
