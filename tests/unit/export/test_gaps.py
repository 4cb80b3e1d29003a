import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CountersActivity, ExitActivity
from otel_gpu.export import gaps
from otel_gpu.export.spans import SpanBuilder
from tests.unit.export import samples
from tests.unit.export.samples import BOOT_UNIX_NS

SECOND = 1_000_000_000
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


def counters(at_s: float) -> CountersActivity:
    return CountersActivity(BOOT_UNIX_NS + round(at_s * SECOND), {})


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
    """They come before their gap does, and wait for it."""
    spans = feed(builder, stall(3_500, 4_000), stall(5_000, 9_000), samples.gap())

    assert [span.name for span in spans] == [
        "sched.run_queue_wait",
        "sched.run_queue_wait",
        "gpu.launch_gap",
    ]
    gap = spans[-1]
    assert {span.parent_span_id for span in spans[:-1]} == {gap.span_id}
    assert {span.trace_id for span in spans} == {gap.trace_id}
    assert builder.close() == ()


def test_records_of_other_threads_between_a_stall_and_its_gap_do_no_harm(builder):
    """Other CPUs send at the same time."""
    spans = feed(
        builder,
        stall(3_500, 4_000),
        samples.call(tid=45),
        stall(3_600, 4_000, tid=46),
        samples.gap(tid=47),
        samples.gap(),
    )

    names = {(span.name, bool(span.parent_span_id)) for span in spans}
    assert ("sched.run_queue_wait", True) in names
    assert ("sched.run_queue_wait", False) not in names


def test_a_stall_before_a_gap_is_not_in_it(builder):
    """The thread of a gap can have been off the CPU before, outside of what is a span."""
    spans = feed(builder, stall(1_000, 2_000), samples.gap())

    assert [(span.name, span.parent_span_id) for span in spans] == [
        ("sched.run_queue_wait", b""),
        ("gpu.launch_gap", b""),
    ]
    assert spans[0].trace_id != spans[1].trace_id


def test_a_call_of_the_thread_ends_the_wait_for_a_gap(builder):
    """The gap's record was lost, or there was none: the stall is a trace of its own."""
    spans = feed(builder, stall(3_500, 4_000), samples.call(start_ktime_ns=9_000))

    assert [span.name for span in spans] == ["sched.run_queue_wait", "cudaMalloc"]
    assert spans[0].parent_span_id == b""


def test_a_stall_waits_for_a_second_of_the_stream(builder):
    """No clock is asked: what the stream says of the time decides, in a replay as well."""
    assert feed(builder, stall(3_500, 4_000), counters(5), counters(6)) == []

    (span,) = feed(builder, counters(6.1))

    assert span.name == "sched.run_queue_wait"


def test_a_clock_that_is_set_back_holds_nothing(builder):
    """The host's clock can jump an hour back while a stall waits."""
    feed(builder, stall(3_500, 4_000), counters(7200))

    assert len(feed(builder, counters(3600))) == 1


def test_the_end_of_a_process_ends_the_wait_of_its_threads(builder):
    """And of no others."""
    feed(builder, stall(3_500, 4_000), stall(3_500, 4_000, tid=45), stall(1, 2, pid=50))

    spans = feed(builder, ExitActivity(samples.PROCESS, BOOT_UNIX_NS + 5_000, 0))

    assert len(spans) == 2
    assert len(builder.close()) == 1


def test_a_thread_holds_no_more_than_a_gap_can_have(builder):
    """A thread without CUDA calls, such as a data loader's, has stalls and never a gap."""
    spans = feed(builder, *(stall(n * 10, n * 10 + 5) for n in range(1, 8)))

    assert [span.start_unix_ns - BOOT_UNIX_NS for span in spans] == [10, 20, 30]
    assert len(builder.close()) == wire.MAX_INTERVALS


def test_no_stall_is_lost_and_memory_is_bounded(builder, monkeypatch):
    """Whatever becomes of the threads, every stall is a span once."""
    monkeypatch.setattr(gaps, "_MAX_THREADS", 16)
    stalls = [stall(n, n + 1, tid=n % 101 + 1) for n in range(1, 1_004)]

    spans = feed(builder, *stalls)
    assert len(builder._gap_stalls._threads) <= 16
    spans += builder.close()

    assert len({span.span_id for span in spans}) == len(spans) == 1_003


def test_a_link_to_a_waiting_stall_ends_its_wait(builder):
    """What something links to has to be there."""
    feed(builder, stall(3_500, 4_000), stall(3_500, 4_000, tid=45))
    wanted = SpanBuilder(builder._origins, builder._limits, builder._stacks)
    feed(wanted, stall(3_500, 4_000))
    (span,) = wanted.close()

    assert builder.hurry(frozenset([span.span_id])) == (span,)
    assert len(builder.close()) == 1


def test_a_blocked_time_says_what_it_was_blocked_on(builder):
    """The reason and the kernel functions, the innermost sixteen."""
    functions = tuple(f"f{n}" for n in range(24))

    blocked, waiting = builder.spans(samples.stall("lock", functions, flags=wire.STALL_IDLE_CPU))

    assert dict(blocked.attributes)["otel_gpu.stall.reason"] == "lock"
    assert dict(blocked.attributes)["otel_gpu.kernel.functions"] == functions[:16]
    assert dict(waiting.attributes)["otel_gpu.cpu.idle"] is True
    assert "otel_gpu.stall.reason" not in dict(waiting.attributes)
