import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CountersActivity, ExitActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity, Resource
from otel_gpu.export.otlp.span_limits import SpanSizeLimits
from otel_gpu.export.spans.activity_spans import SpanBuilder
from otel_gpu.export.spans.finished import STATUS_ERROR, STATUS_UNSET, SharedAttributes
from tests.activities import call_stack
from tests.unit.export import samples
from tests.unit.export.samples import BOOT_UNIX_NS


@pytest.fixture
def builder() -> SpanBuilder:
    return samples.builder()


def test_a_plain_call_carries_only_what_it_knows(builder):
    """Fields that are zero or unknown make no attributes."""
    (span,) = builder.spans(samples.call())

    assert span.name == "cudaMalloc"
    assert (span.start_unix_ns, span.end_unix_ns) == (BOOT_UNIX_NS + 1_000, BOOT_UNIX_NS + 3_000)
    assert span.status_code == STATUS_UNSET
    assert span.origin.scope.name == "otel_gpu.cuda"
    assert span.origin.scope.version == "9.8.7"
    assert span.origin.resource.attributes["service.name"] == "trainer"
    assert dict(span.attributes) == {
        "gpu.cuda.api": "cudaMalloc",
        "gpu.cuda.layer": "runtime",
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
        "cpu.logical_number": 3,
    }


def test_a_full_call_carries_every_field(builder):
    """Everything that the record says about a call is on its span."""
    activity = samples.call(
        device=samples.DEVICE,
        api=samples.CUDA_MEMCPY_ASYNC,
        size_bytes=4096,
        stream=0x7F00,
        function=0x55D2C0A4B1F0,
        grid=(128, 2, 1),
        block=(256, 1, 1),
        copy_kind=wire.COPY_HOST_TO_DEVICE,
        status=700,
        blocked_ns=1_500,
        run_queue_ns=250_000_000,
        voluntary_switches=2,
        involuntary_switches=1,
        choices=wire.CHOICE_FAILED | wire.CHOICE_SAMPLED,
        weight=1000,
    )

    (span,) = builder.spans(activity)

    assert span.status_code == STATUS_ERROR
    assert span.status_message == "cudaMemcpyAsync returned cudaErrorIllegalAddress"
    assert dict(span.attributes) == {
        "gpu.cuda.api": "cudaMemcpyAsync",
        "gpu.cuda.layer": "runtime",
        "cuda.memcpy.kind": "MemcpyHostToDevice",
        "cuda.device.index": 0,
        "cuda.device.uuid": "8f4d1ee8-0b3c-6bd6-a4f1-2e0e1b7b9a10",
        "cuda.device.model": "NVIDIA H100 80GB HBM3",
        "gpu.cuda.stream": 0x7F00,
        "gpu.cuda.size": 4096,
        "gpu.cuda.kernel.function": "0x55d2c0a4b1f0",
        "gpu.cuda.kernel.grid": (128, 2, 1),
        "gpu.cuda.kernel.block": (256, 1, 1),
        "gpu.cuda.result": 700,
        "error.type": "cudaErrorIllegalAddress",
        "otel_gpu.call.blocked.time": 1.5e-06,
        "otel_gpu.call.run_queue.time": 0.25,
        "otel_gpu.call.voluntary_switches": 2,
        "otel_gpu.call.involuntary_switches": 1,
        "otel_gpu.choice": ("failed", "sampled"),
        "otel_gpu.sample.weight": 1000,
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
        "cpu.logical_number": 3,
    }


def test_a_call_has_its_stack(builder):
    """The place on the span, the text in an event at the moment of its return."""
    (span,) = builder.spans(samples.call(stack=call_stack()))

    attributes = dict(span.attributes)
    assert attributes["code.function.name"] == "fragmentation_pattern"
    assert attributes["code.line.number"] == 74
    assert attributes["otel_gpu.stack.id"] == "9c1fb4e17d2a6b03"
    (event,) = span.events
    assert (event.name, event.unix_ns) == ("stack", BOOT_UNIX_NS + 3_000)
    assert dict(event.attributes)["code.stacktrace"].startswith("cudaMalloc (libcudart.so.12)\n")


def test_a_thread_that_left_the_cpu_has_its_stack(builder):
    """It is from that moment, and the wait for a CPU that followed has none."""
    blocked, queued = builder.spans(samples.stall(stack=call_stack()))

    assert blocked.events[0].unix_ns == BOOT_UNIX_NS + 1_500
    assert dict(blocked.attributes)["code.line.number"] == 74
    assert queued.events == ()
    assert "otel_gpu.stack.id" not in dict(queued.attributes)


def test_a_call_that_hangs_has_its_stack(builder):
    """The one call that an operator must see says where it was made."""
    (span,) = builder.spans(samples.open_call(stack=call_stack(complete=False)))

    assert span.name == "gpu.cuda.call.open"
    assert span.events[0].unix_ns == BOOT_UNIX_NS + 10_000_001_000
    assert dict(span.attributes)["otel_gpu.stack.complete"] is False


def test_a_call_that_began_before_the_capture_says_so(builder):
    """Whoever reads its length knows that it is a lower bound."""
    seen, early = samples.open_call(), samples.open_call(start_ktime_ns=1, program_ktime_ns=2)

    attribute = "otel_gpu.call.began_before_capture"
    assert attribute not in dict(builder.spans(seen)[0].attributes)
    assert dict(builder.spans(early)[0].attributes)[attribute] is True


def test_a_stack_can_leave_beside_its_span():
    """As a log record, which is no part of the span."""
    builder = samples.builder(stacks="log")

    spans = [
        *builder.spans(samples.call(stack=call_stack())),
        *builder.spans(samples.stall(stack=call_stack())),
        *builder.spans(samples.open_call(stack=call_stack())),
    ]

    assert [len(span.logs) for span in spans] == [1, 1, 0, 1]
    assert [span.events for span in spans] == [(), (), (), ()]


def test_the_text_of_a_stack_keeps_to_the_limits_of_spans():
    """It is cut in its middle, before it would be cut at its end."""
    limits = SpanSizeLimits.of_environment({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "90"})
    builder = samples.builder(limits)

    (span,) = builder.spans(samples.call(stack=call_stack()))

    assert dict(span.events[0].attributes) == {
        "code.stacktrace": (
            "cudaMalloc (libcudart.so.12)\n… 2 frames left out …\n<module> (/app/train.py:102)"
        ),
        "otel_gpu.stack.frame_types": ("cuda", "cut", "cpython"),
    }


def test_a_device_is_described_as_far_as_it_was_observed(builder):
    """An index alone is sent alone."""
    (span,) = builder.spans(samples.call(device=DeviceIdentity(1, None, None)))

    names = [key for key, _ in span.attributes if key.startswith("cuda.device.")]
    assert names == ["cuda.device.index"]


def test_a_device_that_becomes_known_is_named_from_then_on(builder):
    """Names that were kept for one device do not stick to another."""
    builder.spans(samples.call())
    (span,) = builder.spans(samples.call(device=samples.DEVICE))

    assert dict(span.attributes)["cuda.device.index"] == 0


# Of a call that takes no time off the CPU, does not fail and has no stack: all that is said of it.
SAID = {
    "size_bytes": 4096,
    "stream": 7,
    "function": 0x5000,
    "weight": 100,
    "voluntary_switches": 3,
    "involuntary_switches": 2,
    "cpu": 1,
    "grid": (8, 1, 1),
    "block": (128, 1, 1),
    "api": samples.CUDA_MEMCPY_ASYNC,
    "copy_kind": wire.COPY_HOST_TO_DEVICE,
    "choices": wire.CHOICE_SLOW,
    "tid": 45,
    "comm": "other",
}


def test_calls_that_say_the_same_share_their_attributes(builder):
    """However often, and whenever they were: encoders need not look at them again."""
    spans = [
        builder.spans(samples.call(start_ktime_ns=at, end_ktime_ns=at + 5, address=at))[0]
        for at in range(1_000, 1_007)
    ]

    assert all(span.attributes == spans[0].attributes for span in spans)
    assert isinstance(spans[1].attributes, SharedAttributes)
    assert all(span.attributes is spans[1].attributes for span in spans[1:])
    assert len({span.span_id for span in spans}) == 7


@pytest.mark.parametrize(
    "field", [*SAID, "device", "blocked_ns", "run_queue_ns", "status", "stack"]
)
def test_calls_that_say_different_things_share_nothing(builder, field):
    """Whatever was built before, a call has the attributes that it has by itself."""
    said = SAID | {"blocked_ns": 5, "run_queue_ns": 5, "status": 2}
    said |= {"device": samples.DEVICE, "stack": call_stack()}
    # A grid alone is not told from none, and a block goes with a grid.
    around = {"grid": (2, 1, 1)} if field == "block" else {}
    alone = samples.builder()
    for _ in range(3):
        (usual,) = builder.spans(samples.call(**around))
    (expected,) = alone.spans(samples.call(**around, **{field: said[field]}))

    for _ in range(3):
        (span,) = builder.spans(samples.call(**around, **{field: said[field]}))
        assert span.attributes == expected.attributes != usual.attributes
        assert span.name == expected.name


def test_a_driver_failure_has_the_drivers_name(builder):
    """The layer decides what a result is called."""
    (span,) = builder.spans(samples.call(api=samples.CU_MEM_ALLOC, status=2))

    attributes = dict(span.attributes)
    assert attributes["gpu.cuda.layer"] == "driver"
    assert attributes["error.type"] == "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_handle_with_the_top_bit_set_fits_otlps_integers(builder):
    """OTLP's integers are signed; the 64 bits of a handle are kept."""
    (span,) = builder.spans(samples.call(stream=2**64 - 2))

    assert dict(span.attributes)["gpu.cuda.stream"] == -2


def test_a_nested_call_is_the_child_of_the_call_around_it(builder):
    """The driver call inside a runtime call names it as its parent."""
    (outer,) = builder.spans(samples.call())
    (inner,) = builder.spans(
        samples.call(
            api=samples.CU_MEM_ALLOC, start_ktime_ns=1_200, parent_start_ktime_ns=1_000, depth=1
        )
    )

    assert outer.parent_span_id == b""
    assert inner.parent_span_id == outer.span_id
    assert inner.trace_id == outer.trace_id


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        (
            Resource("file", "/data/x", "nfs4", "/data", is_remote=True),
            {
                "otel_gpu.resource.kind": "file",
                "otel_gpu.resource.remote": True,
                "file.path": "/data/x",
                "system.filesystem.type": "nfs4",
                "system.filesystem.mountpoint": "/data",
            },
        ),
        (
            Resource("tcp", "[fd00::2]:443", is_remote=True),
            {
                "otel_gpu.resource.kind": "tcp",
                "otel_gpu.resource.remote": True,
                "network.transport": "tcp",
                "network.peer.address": "fd00::2",
                "network.peer.port": 443,
            },
        ),
        # What listens has no peer, and a pipe no name.
        (
            Resource("tcp", "0.0.0.0:80", is_incoming=True),
            {"otel_gpu.resource.kind": "tcp", "network.transport": "tcp"},
        ),
        (Resource("pipe", ""), {"otel_gpu.resource.kind": "pipe", "network.transport": "pipe"}),
    ],
)
def test_a_blocked_time_says_what_was_waited_for(builder, resource, said):
    """In the words of the semantic conventions, where they have some."""
    plain, _ = builder.spans(samples.stall())
    named, _ = builder.spans(samples.stall(resource=resource))

    assert dict(named.attributes) == dict(plain.attributes) | said


def test_a_stall_is_a_blocked_time_and_a_wait_for_a_cpu(builder):
    """One stall makes two spans that meet when the thread could run again."""
    (call,) = builder.spans(samples.call())

    blocked, waiting = builder.spans(samples.stall())

    assert (blocked.name, waiting.name) == ("sched.blocked", "sched.run_queue_wait")
    assert blocked.origin.scope.name == "otel_gpu.sched"
    assert (blocked.start_unix_ns, blocked.end_unix_ns) == (
        BOOT_UNIX_NS + 1_500,
        BOOT_UNIX_NS + 2_000,
    )
    assert (waiting.start_unix_ns, waiting.end_unix_ns) == (
        BOOT_UNIX_NS + 2_000,
        BOOT_UNIX_NS + 2_500,
    )
    assert {blocked.parent_span_id, waiting.parent_span_id} == {call.span_id}
    assert blocked.span_id != waiting.span_id
    assert dict(blocked.attributes) == {
        "process.context_switch.type": "voluntary",
        "otel_gpu.waker.pid": 80,
        "otel_gpu.waker.tid": 81,
        "otel_gpu.waker.comm": "waker",
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
    }
    assert dict(waiting.attributes) == {
        "process.context_switch.type": "voluntary",
        "otel_gpu.culprit.pid": 90,
        "otel_gpu.culprit.tid": 91,
        "otel_gpu.culprit.comm": "hog",
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
        "cpu.logical_number": 2,
    }


@pytest.mark.parametrize(
    ("runnable_ktime_ns", "names"),
    [(1_500, ["sched.run_queue_wait"]), (2_500, ["sched.blocked"])],
)
def test_a_part_of_a_stall_that_took_no_time_makes_no_span(builder, runnable_ktime_ns, names):
    """A preempted thread was never blocked; a thread that ran at once never waited."""
    spans = builder.spans(samples.stall(runnable_ktime_ns=runnable_ktime_ns))

    assert [span.name for span in spans] == names


def test_a_stall_outside_calls_is_a_trace_of_its_own(builder):
    """Both of its spans are roots of the same trace."""
    blocked, waiting = builder.spans(samples.stall(call_start_ktime_ns=0, root_start_ktime_ns=0))

    assert blocked.parent_span_id == waiting.parent_span_id == b""
    assert blocked.trace_id == waiting.trace_id


def test_nobody_is_blamed_when_nobody_is_known(builder):
    """An unknown waker or culprit makes no attributes."""
    spans = builder.spans(samples.stall(waker_pid=0, waker_tid=0, culprit_pid=0, culprit_tid=0))

    keys = {key for span in spans for key, _ in span.attributes}
    assert not {key for key in keys if ".waker." in key or ".culprit." in key}


def test_a_fork_names_the_child(builder):
    """A fork is a span of the parent that says who the child is."""
    (span,) = builder.spans(samples.fork())

    assert span.name == "process.fork"
    assert span.origin.scope.name == "otel_gpu.process"
    assert span.origin.resource.attributes["process.pid"] == 42
    assert dict(span.attributes) == {
        "otel_gpu.fork.child.pid": 43,
        "otel_gpu.fork.child.service_name": "loader",
        "otel_gpu.fork.child.command": "python",
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
    }


def test_an_open_call_is_the_child_of_the_call_that_has_not_returned(builder):
    """When the call does return, its span takes the place that was kept for it."""
    (report,) = builder.spans(samples.open_call())
    (call,) = builder.spans(samples.call(end_ktime_ns=30_000_000_000))

    assert report.name == "gpu.cuda.call.open"
    assert (report.start_unix_ns, report.end_unix_ns) == (
        BOOT_UNIX_NS + 1_000,
        BOOT_UNIX_NS + 10_000_001_000,
    )
    assert report.parent_span_id == call.span_id
    assert report.trace_id == call.trace_id
    assert dict(report.attributes) == {
        "gpu.cuda.api": "cudaMalloc",
        "gpu.cuda.layer": "runtime",
        "otel_gpu.call.blocked.time": 9.0,
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
    }


def test_a_call_that_stays_open_is_reported_as_its_age_doubles(builder):
    """A call that hangs for 1000 seconds, seen every second, makes 7 spans."""
    second = 1_000_000_000
    reports = [
        span
        for age_s in range(10, 1_001)
        for span in builder.spans(samples.open_call(ktime_ns=1_000 + age_s * second))
    ]

    ages_s = [(span.end_unix_ns - span.start_unix_ns) // second for span in reports]
    assert ages_s == [10, 20, 40, 80, 160, 320, 640]
    assert len({span.span_id for span in reports}) == 7


def test_other_activities_make_no_spans(builder):
    """Counters and exits are not spans."""
    assert builder.spans(CountersActivity(1, {})) == ()
    assert builder.spans(ExitActivity(samples.PROCESS, 1, 0)) == ()
    assert builder.spans(samples.CAPTURE) == ()


def test_memory_does_not_grow_with_the_past(builder):
    """Images, devices and open calls of the past are let go of."""
    for number in range(10_007):
        process = samples.Program(number, 1, "x", 1, {"service.name": "x"})
        device = DeviceIdentity(number, None, None)
        builder.spans(samples.call(device=device, process=process, pid=number))
        builder.spans(samples.open_call(start_ktime_ns=number))

    assert len(builder._repeated) <= 2048
    for kept in (
        builder._origins._kept,
        builder._open_due_ns,
        builder._origins._resources._kept,
    ):
        assert len(kept) <= 4096


@pytest.mark.parametrize("make", [samples.call, samples.gap, samples.fork, samples.open_call])
def test_ids_are_those_of_the_activity(builder, make):
    """Also where something else than the record said what the span lies in."""
    activity = make()._replace(trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=b"p" * 8)

    (span,) = builder.spans(activity)

    assert (span.trace_id, span.span_id, span.parent_span_id) == activity[-3:]


def test_both_spans_of_a_stall_have_its_ids(builder):
    """They lie side by side, in what the activity says."""
    activity = samples.stall()._replace(trace_id=b"t" * 16, parent_span_id=b"p" * 8)

    blocked, waited = builder.spans(activity)

    assert (blocked.trace_id, blocked.parent_span_id) == (b"t" * 16, b"p" * 8)
    assert (waited.trace_id, waited.parent_span_id) == (b"t" * 16, b"p" * 8)
    assert (blocked.span_id, waited.span_id) == (activity.span_id, activity.run_queue_span_id)
