"""Histograms built in the kernel are the ones that the OTel SDK would build."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    Aggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from tests.kernel.agent import CALL_DURATION, Agent, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_by")]

API = "cudaStreamSynchronize"
# Three decades, known to the stub; some sleep under, some over one bucket of the next.
ASKED_NS = [0, 1_000, 5_000, 20_000, 70_000, 100_000, 400_000, 900_000, 1_000_000, 3_000_000] * 5
BOUNDS_S = (0.000005, 0.00001, 0.0001, 0.0005, 0.001, 0.0025)


def sdk_histogram(aggregation: Aggregation, values_s: list[float]):
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        metric_readers=[reader],
        views=[View(instrument_name="duration", aggregation=aggregation)],
        shutdown_on_exit=False,
    )
    histogram = provider.get_meter("test").create_histogram("duration", unit="s")
    for value in values_s:
        histogram.record(value)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]


def capture(receiver: OtlpReceiver, stubs: StubLibraries, env: dict[str, str]):
    command = [workload("durations"), stubs.runtime, "spin", *map(str, ASKED_NS)]
    with Agent(receiver, command, flags=("--spans", "full"), env=env) as agent:
        lines = agent.wait().lines
    pid = lines[0]["pid"]
    (point,) = points(receiver, CALL_DURATION, pid, gpu__cuda__api=API)
    measured_ns = [
        span.span.end_time_unix_nano - span.span.start_time_unix_nano
        for span in sorted(spans(receiver, API, pid), key=lambda s: s.span.start_time_unix_nano)
    ]
    for asked_ns, line, duration_ns in zip(ASKED_NS, lines, measured_ns, strict=True):
        # The preload library's clock is the processor's: within 100 ppm of the program's between two anchors.
        error_ns = line["elapsed_ns"] // 10_000
        assert asked_ns - error_ns <= duration_ns <= line["elapsed_ns"] + error_ns
    return point.point, measured_ns


def test_exponential_buckets_equal_the_sdks(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """For the durations that the spans show, every bucket has the SDK's count at the same scale."""
    point, measured_ns = capture(receiver, stubs, {})
    expected = sdk_histogram(
        ExponentialBucketHistogramAggregation(max_size=160, max_scale=2),
        [duration_ns / 1e9 for duration_ns in measured_ns],
    )

    assert point.scale == expected.scale == 2
    assert nonzero(point.positive) == nonzero(expected.positive)
    assert point.count == expected.count == len(ASKED_NS)
    assert point.zero_count == 0
    assert point.sum == pytest.approx(expected.sum, rel=1e-9)
    assert point.min == pytest.approx(expected.min, rel=1e-9)
    assert point.max == pytest.approx(expected.max, rel=1e-9)


def nonzero(buckets) -> dict[int, int]:
    return {buckets.offset + i: n for i, n in enumerate(buckets.bucket_counts) if n}


def test_explicit_buckets_equal_the_sdks(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """The user's own bounds give the counts that the SDK gives with the same bounds."""
    env = {
        "OTEL_GPU_HISTOGRAMS_LAYOUT": "explicit",
        "OTEL_GPU_HISTOGRAMS_DURATION_BOUNDS_S": ",".join(map(str, BOUNDS_S)),
    }
    point, measured_ns = capture(receiver, stubs, env)
    expected = sdk_histogram(
        ExplicitBucketHistogramAggregation(BOUNDS_S),
        [duration_ns / 1e9 for duration_ns in measured_ns],
    )

    assert list(point.explicit_bounds) == pytest.approx(BOUNDS_S)
    assert list(point.bucket_counts) == list(expected.bucket_counts)
    assert point.count == len(ASKED_NS)


def test_sleeping_inside_a_call_is_its_blocked_time(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A call that sleeps 20 ms is that long, blocked for most of it, with a stall as its child."""
    command = [workload("durations"), stubs.runtime, "sleep", *["20000000"] * 3]
    with Agent(receiver, command) as agent:
        pid = agent.wait().lines[0]["pid"]

    found = spans(receiver, API, pid)
    stalls = spans(receiver, "sched.blocked", pid)
    assert len(found) == 3
    for span in found:
        duration_s = (span.span.end_time_unix_nano - span.span.start_time_unix_nano) / 1e9
        assert duration_s >= 0.020
        # The timer runs from a moment before the thread leaves its CPU.
        assert 0.019 <= span.attributes["otel_gpu.call.blocked.time"] <= duration_s
    inside = [s for s in stalls if s.span.parent_span_id in {f.span.span_id for f in found}]
    assert len(inside) >= 3
