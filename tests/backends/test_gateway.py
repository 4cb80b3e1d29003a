"""gateway.yaml thins plain traces and keeps whole what otel-gpu has explained."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.backends.otelcol import Otelcol, two_replicas
from tests.backends.processes import LOOPBACK, free_ports, wait_for
from tests.backends.prometheus import Prometheus
from tests.backends.test_prometheus import quantile_ns
from tests.backends.traces import SentSpan, copies_of, post, traces_of
from tests.backends.truth import SERVICE, truth_of
from tests.receiver import OtlpReceiver

pytestmark = pytest.mark.backends

S = 1_000_000_000
PLAIN = 2003
# Of 2,003 traces sampled at 1 %, the binomial distribution puts fewer than 3 or more than 44 at
# less than one in a million each.
FEWEST, MOST = 3, 44
# Otherwise 30 s; all that a test sends arrives within one.
QUICK = {
    "processors.tail_sampling.decision_wait": "2s",
    "connectors.span_metrics.metrics_flush_interval": "1s",
}


class Passed(NamedTuple):
    """What was sent to a gateway, and what came out of it."""

    explained: Mapping[bytes, Sequence[SentSpan]]
    plain: Mapping[bytes, Sequence[SentSpan]]
    failed: Mapping[bytes, Sequence[SentSpan]]
    kept: Mapping[bytes, set[bytes]]
    prometheus: Prometheus
    end_s: float


@pytest.fixture(scope="module")
def passed() -> Iterator[Passed]:
    recorded = traces_of(truth_of("lock").path)
    explained = {key: trace for key, trace in recorded.items() if is_explained(trace)}
    waits = next(
        trace
        for trace in recorded.values()
        if not is_explained(trace) and trace[0].span.name == "cudaStreamSynchronize"
    )
    plain = by_id(copies_of(waits, PLAIN, seed=20261121))
    failed = by_id(copies_of(waits, 2, seed=7))
    for trace in failed.values():
        trace[0].span.status.code = Status.STATUS_CODE_ERROR
    rest = by_id(trace for trace in recorded.values() if not is_explained(trace))
    with OtlpReceiver() as backend, Prometheus() as prometheus:
        env = {
            "OTELCOL_TRACES": backend.grpc_endpoint.removeprefix("http://"),
            "OTELCOL_REMOTE_WRITE": prometheus.remote_write,
        }
        with Otelcol("gateway", env=env, sets=QUICK | inner_port()) as gateway:
            first, last = failed.values()
            everything = (first, *explained.values(), *plain.values(), *rest.values(), last)
            post(chain.from_iterable(everything), gateway.http_endpoint)
            # Traces are decided in the order of their arrival.
            sentinel = last[0].span.trace_id
            backend.wait_for(lambda: sentinel in ids_of(backend), timeout_s=30)
            calls = 'traces_span_metrics_calls_total{span_name="cudaStreamSynchronize"}'
            wait_for(lambda: prometheus.value(f"sum({calls})", time.time()))
        yield Passed(explained, plain, failed, ids_of(backend), prometheus, time.time())


def inner_port() -> dict[str, str]:
    """Where a gateway takes spans from itself and its like, in place of 4319."""
    (port,) = free_ports(1)
    return {
        "receivers.otlp/replicas.protocols.grpc.endpoint": f"{LOOPBACK}:{port}",
        "exporters.load_balancing.resolver.dns.port": f'"{port}"',
    }


def is_explained(trace: Sequence[SentSpan]) -> bool:
    return any(sent.span.name in {"gpu.causal_chain", "gpu.incident"} for sent in trace)


def by_id(traces: Iterable[Sequence[SentSpan]]) -> dict[bytes, Sequence[SentSpan]]:
    return {trace[0].span.trace_id: trace for trace in traces}


def ids_of(backend: OtlpReceiver) -> dict[bytes, set[bytes]]:
    found: dict[bytes, set[bytes]] = {}
    for received in backend.spans():
        found.setdefault(received.span.trace_id, set()).add(received.span.span_id)
    return found


def span_ids(trace: Sequence[SentSpan]) -> set[bytes]:
    return {sent.span.span_id for sent in trace}


def test_incidents_and_chains_survive_sampling_at_one_percent(passed: Passed) -> None:
    """The incident and all four slow calls that it sums up are kept, each with all of its spans."""
    names = Counter(sent.span.name for trace in passed.explained.values() for sent in trace)

    assert (names["gpu.incident"], names["gpu.causal_chain"]) == (1, 4)
    assert len(passed.explained) == 5
    for trace_id, trace in passed.explained.items():
        assert passed.kept.get(trace_id) == span_ids(trace)


def test_plain_traces_are_thinned_to_about_one_percent(passed: Passed) -> None:
    """Of 2,003 traces with nothing to say about twenty are kept, and those whole."""
    survivors = passed.kept.keys() & passed.plain.keys()

    assert len(passed.plain) == PLAIN
    assert FEWEST <= len(survivors) <= MOST
    for trace_id in survivors:
        assert passed.kept[trace_id] == span_ids(passed.plain[trace_id])


def test_failed_calls_survive_sampling(passed: Passed) -> None:
    """A trace with an error in it is kept whole."""
    for trace_id, trace in passed.failed.items():
        assert passed.kept.get(trace_id) == span_ids(trace)


def test_span_metrics_count_what_sampling_drops(passed: Passed) -> None:
    """All calls that were sent are counted, not only those that were kept."""
    calls = 'traces_span_metrics_calls_total{service_name="%s",span_name="%s"}'

    waits = passed.prometheus.value(
        f"sum({calls % (SERVICE, 'cudaStreamSynchronize')})", passed.end_s
    )
    launches = passed.prometheus.value(
        f"sum({calls % (SERVICE, 'cudaLaunchKernel')})", passed.end_s
    )

    assert waits == PLAIN + 2 + 60
    assert launches == 60


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_span_metrics_tell_microseconds_apart(passed: Passed, quantile: float) -> None:
    """Quantiles of the calls' durations are within the bucket of the recorded ones."""
    name = "traces_span_metrics_duration_seconds_bucket"
    match = f'{{service_name="{SERVICE}",span_name="cudaLaunchKernel"}}'
    durations_ns = [call.duration_ns for call in truth_of("lock").of_api("cudaLaunchKernel")]
    true_s = quantile_ns(durations_ns, quantile) / S

    found = passed.prometheus.query(f"sum by (le) ({name}{match})", passed.end_s)
    bounds_s = sorted(float(series["metric"]["le"]) for series in found)
    answer_s = passed.prometheus.value(
        f"histogram_quantile({quantile}, sum by (le) ({name}{match}))", passed.end_s
    )

    above = next(number for number, bound_s in enumerate(bounds_s) if true_s <= bound_s)
    assert len(bounds_s) == 24
    assert answer_s is not None
    assert bounds_s[above - 1] <= answer_s <= bounds_s[above]


def test_a_trace_that_comes_by_two_replicas_is_kept_whole() -> None:
    """Spans of one trace that agents sent to different replicas are decided on together."""
    recorded = traces_of(truth_of("lock").path)
    explained = [trace for trace in recorded.values() if is_explained(trace)]
    with OtlpReceiver() as backend:
        env = {"OTELCOL_TRACES": backend.grpc_endpoint.removeprefix("http://")}
        # A replica that the other one did not find at first is tried again within it.
        wait = {"processors.tail_sampling.decision_wait": "7s"}
        first, second = two_replicas(env, wait)
        with first, second:
            everything = list(chain.from_iterable(explained))
            # Chains come after their calls, so a cut by number parts them.
            post(everything[0::2], first.http_endpoint)
            post(everything[1::2], second.http_endpoint)
            expected = {trace[0].span.trace_id: span_ids(trace) for trace in explained}
            backend.wait_for(lambda: ids_of(backend) == expected, timeout_s=30)

    assert len(everything) >= 5
