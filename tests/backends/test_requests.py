"""An HTTP request down to its calls of CUDA and to what made one slow, in one trace."""

import http.client
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.jaeger import Jaeger, JaegerSpan
from tests.backends.otelcol import two_replicas
from tests.backends.processes import LOOPBACK, free_ports, wait_for
from tests.kernel.agent import ROOT, Agent
from tests.receiver import OtlpReceiver

pytestmark = [pytest.mark.backends, pytest.mark.kernel]

SERVICE = "shop"
SERVER = ROOT / "examples" / "server.py"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
REQUESTS = 61
AT_ONCE = 8
DEVICE_NS = 3_000_000
HELD_MS = 400
WAITED_NS = 100_000_000
EXPLAINED = {"gpu.causal_chain", "gpu.incident"}


class Served(NamedTuple):
    """Where to ask the server while it runs."""

    port: int

    def post(self, path: str, number: int) -> str:
        """Send a request, and return the trace that it was answered in."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request("POST", path, str(number))
            answer = connection.getresponse()
            assert answer.status == 200
            said = re.fullmatch(
                r"00-(\w{32})-\w{16}-\w{2}", answer.getheader("traceresponse") or ""
            )
            assert said
            return said[1]
        finally:
            connection.close()

    def post_many(self) -> dict[str, int]:
        """Send requests, several at a time; the trace of each, and how many launches it wants."""
        wanted = range(1, REQUESTS + 1)
        with ThreadPoolExecutor(AT_ONCE) as clients:
            traces = clients.map(lambda tokens: self.post("/generate", tokens), wanted)
            return dict(zip(traces, wanted, strict=True))

    def post_while_loading(self) -> tuple[str, list[str]]:
        """Send requests one after the other while another one loads; its trace, and theirs."""
        with ThreadPoolExecutor(1) as client:
            loading = client.submit(self.post, "/load", HELD_MS)
            traces = []
            while not loading.done():
                traces.append(self.post("/generate", 3))
            return loading.result(), traces


@contextmanager
def serving(endpoint: str, servers_endpoint: str = "") -> Iterator[Served]:
    """Run the example as it says that it is run; its own spans may go elsewhere than the agent's."""
    (port,) = free_ports(1)
    command = [INSTRUMENT, sys.executable, SERVER, f"--port={port}"]
    if servers_endpoint:
        command = ["env", f"OTEL_EXPORTER_OTLP_ENDPOINT={servers_endpoint}", *command]
    env = {
        "OTEL_SERVICE_NAME": SERVICE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
    }
    with Agent(None, command, flags=["--spans", "full"], env=env) as agent:
        assert wait_for(lambda: is_up(port)), agent.stderr
        yield Served(port)
        agent.signal(signal.SIGTERM)
        agent.wait()


def is_up(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


class Shown(NamedTuple):
    """What Jaeger has of the server's requests, by trace, and what was asked."""

    jaeger: Jaeger
    many: Mapping[str, int]
    loading: str
    while_loading: Sequence[str]

    def slow(self) -> tuple[Sequence[JaegerSpan], JaegerSpan]:
        """The one trace in which the lock was waited for, and its chain."""
        ((trace, chain),) = [
            (trace, chain)
            for trace in map(self.jaeger.trace, self.while_loading)
            for chain in named(trace, "gpu.causal_chain")
            if chain.end_unix_ns - chain.start_unix_ns >= WAITED_NS
        ]
        return trace, chain


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    with Jaeger() as jaeger:
        with serving(f"http://{jaeger.endpoint}") as served:
            many, loading = served.post_many(), served.post_while_loading()
        yield Shown(jaeger, many, *loading)


def below(trace: Sequence[JaegerSpan], parent: JaegerSpan) -> list[JaegerSpan]:
    return [span for span in trace if span.parent_id == parent.span_id]


def named(spans: Sequence[JaegerSpan], name: str) -> list[JaegerSpan]:
    return [span for span in spans if span.name == name]


def test_each_request_has_its_own_calls_below_its_handler(shown: Shown) -> None:
    """61 requests, eight at a time: none has a call of another's, and none lacks one."""
    for trace_id, tokens in shown.many.items():
        trace = shown.jaeger.trace(trace_id)
        (request,) = named(trace, "POST /generate")
        (handler,) = named(below(trace, request), "generate")
        calls = [span for span in below(trace, handler) if span.scope == "otel_gpu.cuda"]

        assert request.parent_id == ""
        assert Counter(span.name for span in calls if span.name != "gpu.launch_gap") == {
            "cudaLaunchKernel": tokens,
            "cudaStreamSynchronize": 1,
        }
        for span in calls:
            assert handler.start_unix_ns <= span.start_unix_ns
            assert span.end_unix_ns <= handler.end_unix_ns


def test_waits_are_below_the_calls_that_wait(shown: Shown) -> None:
    """
    Each request waits for the device for 3 ms, which its thread does not spend on a CPU.

    Some of it in the run queue, if others want that CPU before it sleeps.
    """
    for trace_id in shown.many:
        trace = shown.jaeger.trace(trace_id)
        (waiting,) = named(trace, "cudaStreamSynchronize")
        waits = [span for span in below(trace, waiting) if span.scope == "otel_gpu.sched"]

        assert waiting.end_unix_ns - waiting.start_unix_ns >= DEVICE_NS
        assert sum(span.end_unix_ns - span.start_unix_ns for span in waits) >= DEVICE_NS / 2
        for span in waits:
            assert waiting.start_unix_ns <= span.start_unix_ns
            assert span.end_unix_ns <= waiting.end_unix_ns


def test_the_cause_of_a_slow_request_is_in_its_trace(shown: Shown) -> None:
    """
    From the request over its handler and the launch that waited to the lock, and to who held it.
    """
    trace, chain = shown.slow()
    spans = {span.span_id: span for span in trace}
    (cause,) = named(below(trace, chain), "gpu.cause.lock")

    path = []
    span = chain
    while span.parent_id:
        span = spans[span.parent_id]
        path.append(span.name)
    assert path == ["cudaLaunchKernel", "generate", "POST /generate"]
    assert chain.attributes["otel_gpu.cause.kind"] == "lock"
    assert cause.end_unix_ns - cause.start_unix_ns >= WAITED_NS


def test_the_wait_of_who_held_the_lock_is_in_a_request_of_its_own(shown: Shown) -> None:
    """It makes no call of CUDA. The slow request's cause links to it, and the incident to the slow one."""
    loading = shown.jaeger.trace(shown.loading)
    (request,) = named(loading, "POST /load")
    (handler,) = named(below(loading, request), "load")
    held_ns = max(span.end_unix_ns - span.start_unix_ns for span in below(loading, handler))
    trace, chain = shown.slow()
    (cause,) = named(below(trace, chain), "gpu.cause.lock")

    assert {span.name for span in below(loading, handler)} <= {
        "sched.blocked",
        "sched.run_queue_wait",
    }
    # The timer of the sleep runs already while the thread is still to leave its CPU.
    assert held_ns >= HELD_MS * 990_000
    assert shown.loading in {trace_id for trace_id, _ in cause.links}
    incidents = named(shown.jaeger.find(SERVICE, "gpu.incident"), "gpu.incident")
    assert chain.trace_id in {trace for one in incidents for trace, _ in one.links}


def test_both_sides_are_one_service(shown: Shown) -> None:
    """Spans of the server and of the agent about it are found under the same name."""
    for trace_id in (*shown.many, *shown.while_loading):
        trace = shown.jaeger.trace(trace_id)

        assert {span.resource["service.name"] for span in trace} == {SERVICE}
        assert {span.scope for span in trace} >= {"examples.server", "otel_gpu.cuda"}


def test_tail_sampling_keeps_a_slow_request_whole() -> None:
    """
    All of its spans, though the server sends its own to one replica and the agent to another.

    Of the requests that nothing was wrong with none is kept: sampling is at 0 %.
    """
    with OtlpReceiver() as everything, OtlpReceiver() as backend:
        env = {
            "OTELCOL_TRACES": backend.grpc_endpoint.removeprefix("http://"),
            "OTELCOL_SAMPLING_PERCENTAGE": "0",
        }
        sets = {
            # Of a whole minute only as much is waited for as the request's own span allows.
            "processors.tail_sampling.decision_wait": "60s",
            "service.pipelines.traces/front.exporters": (
                "[load_balancing, span_metrics, otlp_grpc/everything]"
            ),
            "exporters.otlp_grpc/everything.endpoint": everything.grpc_endpoint,
            "exporters.otlp_grpc/everything.tls.insecure": "true",
        }
        first, second = two_replicas(env, sets)
        with first, second:
            with serving(first.endpoint, second.endpoint) as served:
                served.post_many()
                served.post_while_loading()
            sent = by_trace(everything)
            expected = {
                key: names for key, names in sent.items() if EXPLAINED & set(names.values())
            }
            backend.wait_for(lambda: by_trace(backend) == expected, timeout_s=30)

    assert len(sent) > REQUESTS
    wanted = {"POST /generate", "generate", "cudaLaunchKernel", "cudaStreamSynchronize"}
    wanted |= {"sched.blocked", "gpu.causal_chain", "gpu.cause.lock"}
    assert [names for names in expected.values() if wanted <= set(names.values())]


def by_trace(receiver: OtlpReceiver) -> dict[bytes, dict[bytes, str]]:
    found: dict[bytes, dict[bytes, str]] = {}
    for received in receiver.spans():
        found.setdefault(received.span.trace_id, {})[received.span.span_id] = received.span.name
    return found
