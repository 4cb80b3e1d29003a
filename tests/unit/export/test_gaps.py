import pytest

from otel_gpu import wire
from otel_gpu.export.spans.activity_spans import SpanBuilder
from tests.unit.export import samples
from tests.unit.export.samples import BOOT_UNIX_NS

OUTSIDE = {"call_start_ktime_ns": 0, "root_start_ktime_ns": 0}


@pytest.fixture
def builder() -> SpanBuilder:
    return samples.builder()


def stall(start_ktime_ns: int, end_ktime_ns: int, **changes):
    return samples.stall(
        start_ktime_ns=start_ktime_ns,
        runnable_ktime_ns=start_ktime_ns,
        end_ktime_ns=end_ktime_ns,
        **OUTSIDE | changes,
    )


def feed(builder, *activities):
    return [span for activity in activities for span in builder.spans(activity)]


def test_a_gap_is_a_span(builder):
    """It says between which calls it lies and where its time went."""
    (span,) = builder.spans(
        samples.gap(
            device=samples.DEVICE,
            blocked_ns=1_500,
            run_queue_ns=250_000_000,
            voluntary_switches=2,
            involuntary_switches=1,
            choices=wire.CHOICE_SLOW,
        )
    )

    assert span.name == "gpu.launch_gap"
    assert span.origin.scope.name == "otel_gpu.cuda"
    assert (span.start_unix_ns, span.end_unix_ns) == (BOOT_UNIX_NS + 3_000, BOOT_UNIX_NS + 9_000)
    assert span.parent_span_id == b""
    assert dict(span.attributes) == {
        "otel_gpu.gap.previous_api": "cudaMalloc",
        "otel_gpu.gap.next_api": "cudaLaunchKernel",
        "cuda.device.index": 0,
        "cuda.device.uuid": "8f4d1ee8-0b3c-6bd6-a4f1-2e0e1b7b9a10",
        "cuda.device.model": "NVIDIA H100 80GB HBM3",
        "otel_gpu.gap.blocked.time": 1.5e-06,
        "otel_gpu.gap.run_queue.time": 0.25,
        "otel_gpu.gap.voluntary_switches": 2,
        "otel_gpu.gap.involuntary_switches": 1,
        "otel_gpu.choice": ("slow",),
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
    }


def test_the_stalls_of_a_gap_are_its_children(builder):
    """They come before their gap does, and say when it began."""
    gap = samples.gap()
    inside = {"root_start_ktime_ns": gap.event.start_ktime_ns}
    spans = feed(builder, stall(3_500, 4_000, **inside), stall(5_000, 9_000, **inside), gap)

    assert [span.name for span in spans] == [
        "sched.run_queue_wait",
        "sched.run_queue_wait",
        "gpu.launch_gap",
    ]
    assert {span.parent_span_id for span in spans[:-1]} == {spans[-1].span_id}
    assert {span.trace_id for span in spans} == {spans[-1].trace_id}
    assert not any("otel_gpu.parent.source" in dict(span.attributes) for span in spans)


def test_a_stall_outside_of_calls_and_gaps_is_a_trace_of_its_own(builder):
    """A thread that makes no CUDA calls, such as a data loader's, has stalls and never a gap."""
    spans = feed(builder, stall(1_000, 2_000), samples.gap())

    assert [(span.name, span.parent_span_id) for span in spans] == [
        ("sched.run_queue_wait", b""),
        ("gpu.launch_gap", b""),
    ]
    assert spans[0].trace_id != spans[1].trace_id


def test_a_stall_in_a_span_of_the_application_says_so(builder):
    """Both of its spans are in the application's trace."""
    activity = samples.stall("lock", **OUTSIDE)._replace(
        trace_id=b"T" * 16, parent_span_id=b"S" * 8
    )

    spans = builder.spans(activity)

    assert [span.name for span in spans] == ["sched.blocked", "sched.run_queue_wait"]
    for span in spans:
        assert (span.trace_id, span.parent_span_id) == (b"T" * 16, b"S" * 8)
        assert dict(span.attributes)["otel_gpu.parent.source"] == "thread_context"


def test_a_blocked_time_says_what_it_was_blocked_on(builder):
    """The reason and the kernel functions, the innermost sixteen."""
    functions = tuple(f"f{n}" for n in range(24))

    blocked, waiting = builder.spans(samples.stall("lock", functions, flags=wire.STALL_IDLE_CPU))

    assert dict(blocked.attributes)["otel_gpu.stall.reason"] == "lock"
    assert dict(blocked.attributes)["otel_gpu.kernel.functions"] == functions[:16]
    assert dict(waiting.attributes)["otel_gpu.cpu.idle"] is True
    assert "otel_gpu.stall.reason" not in dict(waiting.attributes)
