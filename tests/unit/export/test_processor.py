import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from otel_gpu.export.processor import CausalChainProcessor
from otel_gpu.export.spans.finished import readable
from tests.unit.export import samples

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
HOG = {
    "otel_gpu.culprit.pid": 90,
    "otel_gpu.culprit.tid": 91,
    "otel_gpu.culprit.comm": "hog",
    "process.context_switch.type": "involuntary",
}


class Application:
    """A program with a plain TracerProvider, its exporter and our processor."""

    def __init__(self, **provider):
        self.exporter = InMemorySpanExporter()
        resource = Resource({"service.name": "app", "process.pid": 42})
        self.provider = TracerProvider(resource=resource, **provider)
        exporting = SimpleSpanProcessor(self.exporter)
        self.processor = CausalChainProcessor(exporting)
        self.provider.add_span_processor(exporting)
        self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("app")

    def call(self, duration_ms, *stalls, api="cudaMemcpyAsync", start_ms=0.0, **more):
        """A call with stalls of (name, start, end, attributes) in milliseconds."""
        attributes = {"gpu.cuda.api": api} | more.pop("attributes", {})
        start = T0 + round(start_ms * MS)
        span = self.tracer.start_span(
            api, start_time=start, attributes=attributes, context=more.pop("context", None)
        )
        around = trace.set_span_in_context(span)
        for name, begin_ms, end_ms, details in stalls:
            self.tracer.start_span(
                name,
                context=around,
                start_time=start + round(begin_ms * MS),
                attributes=details,
            ).end(start + round(end_ms * MS))
        if inside := more.pop("inside", None):
            inside(around)
        if more.pop("failed", False):
            span.set_status(StatusCode.ERROR)
        span.end(start + round(duration_ms * MS))
        return span

    def warm_up(self, api="cudaMemcpyAsync"):
        for _ in range(20):
            self.call(0.5, api=api)

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture
def app():
    return Application()


def waited(start_ms, end_ms, **details):
    return "sched.run_queue_wait", start_ms, end_ms, HOG | details


def blocked(start_ms, end_ms, reason, **details):
    return "sched.blocked", start_ms, end_ms, {"otel_gpu.stall.reason": reason} | details


def test_a_slow_call_of_an_application_gets_a_chain(app):
    """No capture and no agent: a TracerProvider, spans, and the chain below the slow one."""
    app.warm_up()
    call = app.call(10, waited(1, 7))

    chain = app.one("gpu.causal_chain")
    cause = app.one("gpu.cause.preemption")
    (wait,) = app.named("sched.run_queue_wait")[1:]
    assert chain.context.trace_id == call.context.trace_id
    assert chain.parent.span_id == call.context.span_id
    assert cause.parent.span_id == chain.context.span_id
    assert wait.parent.span_id == cause.context.span_id
    assert chain.resource.attributes["service.name"] == "app"
    assert chain.instrumentation_scope.name == "otel_gpu.causal"
    assert (chain.start_time, chain.end_time) == (T0, T0 + 10 * MS)
    assert (cause.start_time, cause.end_time) == (T0 + MS, T0 + 7 * MS)
    assert dict(chain.attributes) == {
        "otel_gpu.effect.kind": "slow_call",
        "otel_gpu.severity": "low",
        "otel_gpu.excess.time": 0.0095,
        "gpu.cuda.api": "cudaMemcpyAsync",
        "otel_gpu.cause.kind": "preemption",
        "otel_gpu.cause.time": 0.006,
        "otel_gpu.cause.share": 0.6,
        "otel_gpu.culprit.pid": 90,
        "otel_gpu.culprit.tid": 91,
        "otel_gpu.culprit.comm": "hog",
        "otel_gpu.unexplained.share": 0.4,
        "otel_gpu.cause.span_id": (format(app.named(wait.name)[0].context.span_id, "016x"),),
    }


def test_every_link_leads_to_the_stall(app):
    """The evidence is the span that the application made."""
    app.warm_up()
    app.call(10, waited(1, 7))

    original = app.named("sched.run_queue_wait")[0]
    (link,) = app.one("gpu.causal_chain").links
    assert link.context.span_id == original.context.span_id
    assert link.context.trace_id == original.context.trace_id


def test_a_usual_call_gets_none(app):
    """Neither the first ones, of which nobody knows what is usual, nor those that are."""
    app.call(10, waited(1, 7))
    app.warm_up()
    app.call(1.2, waited(0, 1))

    assert app.named("gpu.causal_chain") == []


def test_kinds_of_calls_are_not_compared_with_each_other(app):
    """Copies take as long as copies, whatever launches take."""
    app.warm_up("cudaLaunchKernel")
    for _ in range(30):
        app.call(10, waited(1, 7))

    assert app.named("gpu.causal_chain") == []


def test_several_causes_come_in_the_order_of_their_time(app):
    """And the time of each stays in one of them."""
    app.warm_up()
    app.call(
        20,
        blocked(0, 9, "lock", **{"otel_gpu.waker.pid": 42, "otel_gpu.waker.tid": 45}),
        waited(9, 14),
        waited(15, 17),
        blocked(17, 18, "unknown"),
    )

    chain = app.one("gpu.causal_chain")
    causes = [s for s in app.exporter.get_finished_spans() if s.name.startswith("gpu.cause.")]
    assert [(s.name, s.attributes["otel_gpu.cause.time"]) for s in causes] == [
        ("gpu.cause.lock", 0.009),
        ("gpu.cause.preemption", 0.007),
    ]
    assert causes[0].attributes["otel_gpu.culprit.tid"] == 45
    assert chain.attributes["otel_gpu.unexplained.share"] == 0.2


def test_a_wait_for_the_gpu_is_not_a_fault_of_the_host(app):
    """A synchronize call sleeps because it was told to wait."""
    app.warm_up("cudaStreamSynchronize")
    app.call(300, blocked(0, 299, "driver"), api="cudaStreamSynchronize")

    chain = app.one("gpu.causal_chain")
    assert chain.attributes["otel_gpu.cause.kind"] == "gpu_wait"
    assert chain.attributes["otel_gpu.severity"] == "low"


def test_a_failed_call_is_an_effect_however_fast_it_was(app):
    """It says what is known of its time, which may be nothing."""
    app.call(0.1, failed=True)

    chain = app.one("gpu.causal_chain")
    assert chain.attributes["otel_gpu.effect.kind"] == "failed_call"
    assert chain.attributes["otel_gpu.cause.kind"] == "unexplained"


def test_the_stalls_of_a_driver_call_are_blamed_once(app):
    """A runtime call makes a driver call, in which the thread is preempted."""
    app.warm_up()
    for _ in range(20):
        app.call(0.5, api="cuMemcpyHtoDAsync")

    outer = app.call(
        10,
        inside=lambda around: app.call(
            9, waited(1, 7), api="cuMemcpyHtoDAsync", start_ms=0.5, context=around
        ),
    )

    assert app.one("gpu.causal_chain").parent.span_id == outer.context.span_id
    assert app.one("gpu.cause.preemption").start_time == T0 + round(1.5 * MS)


def test_the_agents_own_spans_are_understood(app):
    """Another program passes them on finished; totals tell the state of what no stall covers."""
    builder = samples.builder()
    found = InMemorySpanExporter()
    processor = CausalChainProcessor(found)
    second = {"start_ktime_ns": 1_000, "root_start_ktime_ns": 1_000, "end_ktime_ns": 10_001_000}
    activities = [
        samples.stall(runnable_ktime_ns=1_500, end_ktime_ns=4_001_500),
        samples.call(**second, run_queue_ns=4_000_000, api=50, choices=2),
    ]

    for activity in activities:
        for span in builder.spans(activity):
            processor.on_end(readable(span))

    names = [span.name for span in found.get_finished_spans()]
    assert names[0] == "gpu.causal_chain"
    assert "gpu.cause.run_queue" in names


def test_a_gap_is_explained_too(app):
    """Its stalls are its children, and it was chosen for being long."""
    builder = samples.builder()
    found = InMemorySpanExporter()
    processor = CausalChainProcessor(found)
    gap = samples.gap(end_ktime_ns=8_003_000, blocked_ns=6_000_000, choices=2)
    inside = {"call_start_ktime_ns": 0, "root_start_ktime_ns": gap.event.start_ktime_ns}
    stall = samples.stall(
        "ipc", start_ktime_ns=4_000, runnable_ktime_ns=6_004_000, end_ktime_ns=6_004_000, **inside
    )

    for activity in (stall, gap):
        for span in builder.spans(activity):
            processor.on_end(readable(span))

    chain = found.get_finished_spans()[0]
    assert chain.attributes["otel_gpu.effect.kind"] == "slow_gap"
    assert chain.attributes["otel_gpu.cause.kind"] == "ipc"
    assert chain.attributes["otel_gpu.gap.next_api"] == "cudaLaunchKernel"


def test_its_own_chains_are_not_explained_again(app):
    """The chain's spans have names of stalls, and may come back the same way."""
    app.warm_up()
    app.call(10, waited(1, 7))
    before = app.exporter.get_finished_spans()

    for _ in range(2):
        for span in before:
            if span.instrumentation_scope.name == "otel_gpu.causal":
                app.processor.on_end(span)

    assert len(app.named("gpu.causal_chain")) == 1
    assert app.processor._stalls == {}


def test_what_is_not_sampled_is_not_explained():
    """A chain below a span that nobody exports would be an orphan."""
    app = Application(sampler=ALWAYS_OFF)
    app.warm_up()
    app.call(10, waited(1, 7))

    assert app.exporter.get_finished_spans() == ()


def test_memory_is_bounded_and_what_is_given_up_is_counted(monkeypatch):
    """Calls that never end keep nothing for ever; of many stalls the longest are kept."""
    monkeypatch.setattr("otel_gpu.export.processor._MAX_OPEN", 8)
    app = Application()
    for _ in range(20):
        call = app.tracer.start_span("cudaMalloc", attributes={"gpu.cuda.api": "cudaMalloc"})
        around = trace.set_span_in_context(call)
        app.tracer.start_span("sched.blocked", context=around, start_time=T0).end(T0 + 1)
    assert len(app.processor._stalls) == len(app.processor._open) == 8
    assert app.processor.given_up == 12

    app.warm_up()
    app.call(200, *(waited(n, n + 0.5) for n in range(90)), waited(100, 160))
    # One more open call that was forgotten, and the shortest of 91.
    assert app.processor.given_up == 12 + 1 + 27
    assert app.named("gpu.cause.preemption")[0].end_time == T0 + 160 * MS


def test_several_threads_may_end_spans_at_once(app):
    """Each thread's slow call gets its own chain."""
    app.warm_up()
    threads = [
        threading.Thread(target=app.call, args=(100, waited(n, n + 50))) for n in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    chains = app.named("gpu.causal_chain")
    assert len({span.parent.span_id for span in chains}) == 8


def test_span_limits_hold(app):
    """What they cut is counted in the span."""
    found = InMemorySpanExporter()
    limits = SpanLimits(max_span_attributes=3, max_links=0)
    app.provider.add_span_processor(CausalChainProcessor(found, limits=limits))
    app.warm_up()
    app.call(10, waited(1, 7))

    chain = found.get_finished_spans()[0]
    assert len(chain.attributes) == 3
    assert chain.dropped_attributes == 9
    assert chain.dropped_links == 1


def test_flushing_and_ending_reach_the_destination():
    """Nothing waits in the processor itself."""
    exporter = InMemorySpanExporter()
    processor = CausalChainProcessor(exporter)

    assert processor.force_flush(100)
    processor.shutdown()

    assert exporter._stopped
