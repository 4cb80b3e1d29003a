"""Metrics of captures of other tools, which keep no histograms."""

import pytest
from opentelemetry.sdk.metrics.export import AggregationTemporality, HistogramDataPoint

from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.enrich.ids import NO_SEED
from otel_gpu.export.metric_store import MetricStore
from otel_gpu.export.producer import MetricProducer
from tests.activities import T0, calls, capture, image, snapshot

DELTA = AggregationTemporality.DELTA
TRAINER = image()
FOREIGN = CaptureActivity(
    T0, capture().info | {"unknown": ["thread_states", "distributions", "freed_bytes"]}, NO_SEED
)
US = 1_000


def partly(api, kept_ns, *, more, sum_ns, size_bytes=0):
    series = calls(TRAINER, api, kept_ns, size_bytes=size_bytes)
    return series._replace(aggregate=series.aggregate._replace(sum=sum_ns, unplaced=more))


def produce(store, producer):
    """The points by metric, delivered."""
    produced = producer.produce()
    points = {}
    for point in produced:
        points.setdefault(point.instrument.name, []).append(point.data)
    producer.commit(produced)
    return points


@pytest.fixture
def store():
    store = MetricStore({}, max_series=1000)
    store.observe(FOREIGN)
    return store


def test_durations_have_one_bucket(store):
    """Calls that were only counted are in no bucket, so none is shown."""
    producer = MetricProducer(store, {})
    store.observe(snapshot(6, partly("cudaFree", [US, 3 * US], more=98, sum_ns=400 * US)))

    (point,) = produce(store, producer)["gpu.cuda.call.duration"]

    assert isinstance(point, HistogramDataPoint)
    assert (point.count, point.sum) == (100, 0.0004)
    assert (point.bucket_counts, point.explicit_bounds) == ([100], [])
    assert (point.min, point.max) == (1e-06, 3e-06)


def test_deltas_are_of_all_calls(store):
    """Since the last export, kept or not."""
    producer = MetricProducer(store, {"counter": DELTA, "histogram": DELTA})
    store.observe(snapshot(6, partly("cudaFree", [US], more=9, sum_ns=40 * US)))
    produce(store, producer)
    store.observe(snapshot(7, partly("cudaFree", [US], more=29, sum_ns=100 * US)))

    (point,) = produce(store, producer)["gpu.cuda.call.duration"]

    assert (point.count, point.bucket_counts) == (20, [20])
    assert point.sum == pytest.approx(60e-6)


def test_calls_that_were_only_counted_are_counted(store):
    """Also where a metric is nothing but a count."""
    producer = MetricProducer(store, {})
    store.observe(snapshot(6, partly("cudaLaunchKernel", [US], more=99, sum_ns=1)))

    (point,) = produce(store, producer)["gpu.cuda.kernel.launch.calls"]

    assert point.value == 100


def test_nothing_is_said_of_memory_in_use_where_frees_have_no_size(store):
    """What was allocated is known all the same."""
    producer = MetricProducer(store, {})
    store.observe(
        snapshot(
            6,
            partly("cudaMalloc", [US], more=1, sum_ns=9, size_bytes=4096),
            partly("cudaFree", [US], more=1, sum_ns=9),
        )
    )

    points = produce(store, producer)

    assert [point.value for point in points["gpu.cuda.memory.allocations"]] == [4096]
    assert not {"gpu.cuda.memory.in_use", "gpu.cuda.memory.free.bytes"} & points.keys()
