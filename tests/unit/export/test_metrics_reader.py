import socket
import threading
import time

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetricExporter,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.batches import merge, points_in, split
from otel_gpu.export.reader import PreAggregatedReader

CUMULATIVE = AggregationTemporality.CUMULATIVE


def number(name, value, **attributes):
    data = Sum([NumberDataPoint(attributes, 1, 2, value)], CUMULATIVE, is_monotonic=True)
    return Metric(name, "", "1", data)


def resource_metrics(service, *metrics, scope="otel_gpu.cuda"):
    scopes = [ScopeMetrics(InstrumentationScope(scope, "1"), list(metrics), "")]
    return ResourceMetrics(Resource({"service.name": service}), scopes, "")


class Source:
    def __init__(self, *produced):
        self.produced = list(produced)
        self.committed = []

    def produce(self):
        return self.produced

    def commit(self, points):
        self.committed.extend(points)


class Keeper(MetricExporter):
    """Keeps encoded requests; ``results`` are given out first, then success."""

    def __init__(self, *results):
        super().__init__()
        self.requests = []
        self.results = list(results)
        self.is_shut = False

    def export(self, metrics_data, timeout_millis=10_000, **_):
        self.requests.append(encode_metrics(metrics_data))
        return self.results.pop(0) if self.results else MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **_):
        self.is_shut = True

    def metrics(self):
        return [
            (resource.resource.attributes[0].value.string_value, scope.scope.name, metric.name)
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


@pytest.fixture
def open_reader():
    readers = []

    def open_one(exporter, source, **options):
        reader = PreAggregatedReader(exporter, source, **({"interval_s": None} | options))
        readers.append(reader)
        return reader

    yield open_one
    for reader in readers:
        reader.stop(1.0)
        reader._thread.join(5.0)
        assert not reader._thread.is_alive()


def test_metrics_leave_although_the_sdk_has_none(open_reader):
    """With no SDK instrument the SDK never calls a reader; ours exports all the same."""
    keeper = Keeper()
    reader = open_reader(keeper, Source(resource_metrics("a", number("x", 1))))
    provider = MeterProvider([reader], shutdown_on_exit=False)

    assert provider.force_flush(5_000)

    assert keeper.metrics() == [("a", "otel_gpu.cuda", "x")]


def test_metrics_leave_without_a_provider(open_reader):
    """The reader needs no MeterProvider."""
    keeper = Keeper()
    reader = open_reader(keeper, Source(resource_metrics("a", number("x", 1))))

    assert reader.flush(5.0)
    assert keeper.metrics() == [("a", "otel_gpu.cuda", "x")]


def test_an_equal_resource_loses_nothing(open_reader):
    """The stock encoder sends only the last of two items with equal Resources."""
    one = resource_metrics("a", number("x", 1), scope="one")
    two = resource_metrics("a", number("y", 2), scope="two")
    keeper = Keeper()

    assert len(encode_metrics(MetricsData([one, two])).resource_metrics[0].scope_metrics) == 1
    assert open_reader(keeper, Source(one, two)).flush(5.0)

    assert keeper.metrics() == [("a", "one", "x"), ("a", "two", "y")]


def test_an_equal_scope_loses_nothing(open_reader):
    """The stock encoder sends only the last of two items with equal scopes."""
    keeper = Keeper()
    reader = open_reader(
        keeper,
        Source(
            resource_metrics("a", number("x", 1)),
            resource_metrics("b", number("x", 1)),
            resource_metrics("a", number("y", 2)),
        ),
    )

    assert reader.flush(5.0)

    assert keeper.metrics() == [
        ("a", "otel_gpu.cuda", "x"),
        ("a", "otel_gpu.cuda", "y"),
        ("b", "otel_gpu.cuda", "x"),
    ]


def test_an_sdk_instrument_with_our_resource_and_scope_is_kept(open_reader):
    """Instruments of the agent's own and finished metrics share a Resource and a scope."""
    keeper = Keeper()
    reader = open_reader(keeper, Source(resource_metrics("a", number("x", 1), scope="s")))
    provider = MeterProvider([reader], Resource({"service.name": "a"}), shutdown_on_exit=False)
    provider.get_meter("s", "1").create_counter("mine").add(3)

    assert provider.force_flush(5_000)

    assert sorted(keeper.metrics()) == [("a", "s", "mine"), ("a", "s", "x")]
    assert len(keeper.requests[0].resource_metrics) == 1
    assert len(keeper.requests[0].resource_metrics[0].scope_metrics) == 1


def test_nothing_to_say_is_no_request(open_reader):
    """An empty request would only cost."""
    keeper = Keeper()

    assert open_reader(keeper, Source()).flush(5.0)
    assert keeper.requests == []


def histograms(points):
    data = ExponentialHistogram(
        [
            ExponentialHistogramDataPoint(
                {"gpu.cuda.api": f"api{n}"},
                1_800_000_000_000_000_000,
                1_800_000_001_000_000_000,
                2**40,
                1.5,
                2,
                0,
                Buckets(-50, [2**33] * 25),
                Buckets(0, []),
                0,
                0.1,
                0.2,
            )
            for n in range(points)
        ],
        CUMULATIVE,
    )
    return Metric("gpu.cuda.call.duration", "d" * 80, "s", data)


def test_large_requests_are_split_by_bytes():
    """
    Every request encodes to less than the limit, every point is in exactly one, and
    points keep their identity.
    """
    produced = [resource_metrics(f"service{n}", histograms(400)) for n in range(5)]
    everything = MetricsData(produced)
    limit = 100_000

    requests = list(split(produced, limit))

    assert len(requests) > 2
    assert max(encode_metrics(request).ByteSize() for request in requests) <= limit
    # The estimate is safe and not wasteful.
    assert max(encode_metrics(request).ByteSize() for request in requests) > limit // 3
    expected = [id(point) for point in points_in(everything)]
    assert [id(point) for request in requests for point in points_in(request)] == expected


def test_a_point_above_the_limit_goes_alone():
    """Splitting ends with one point per request."""
    assert len(list(split(merge([resource_metrics("a", histograms(3))]), 10))) == 3


def test_only_what_arrived_is_committed(open_reader):
    """
    Of two requests the first is refused: the second is sent all the same, and the
    flush says that not all arrived.
    """
    source = Source(resource_metrics("a", number("x", 1)), resource_metrics("b", number("y", 2)))
    keeper = Keeper(MetricExportResult.FAILURE)
    reader = open_reader(keeper, source, max_request_bytes=10)

    assert not reader.flush(5.0)

    assert [point.value for point in source.committed] == [2]
    assert reader.flush(5.0)
    assert [point.value for point in source.committed] == [2, 1, 2]


def test_a_producer_that_fails_does_not_end_the_exports(open_reader, caplog):
    """The thread outlives one failure, and the failure is not silent."""

    class Failing(Source):
        def produce(self):
            if not self.committed:
                self.committed.append(None)
                raise RuntimeError("broken")
            return super().produce()

    keeper = Keeper()
    reader = open_reader(keeper, Failing(resource_metrics("a", number("x", 1))))

    assert not reader.flush(5.0)
    assert "export.metrics failed" in caplog.text
    assert reader.flush(5.0)
    assert len(keeper.requests) == 1


def test_an_interval_exports_by_itself(open_reader):
    """Live, nobody has to ask."""
    arrived = threading.Event()

    class Signalling(Keeper):
        def export(self, metrics_data, timeout_millis=10_000, **_):
            arrived.set()
            return super().export(metrics_data)

    open_reader(Signalling(), Source(resource_metrics("a", number("x", 1))), interval_s=0.01)

    assert arrived.wait(5.0)


def test_the_end_exports_once_more_and_shuts_the_exporter(open_reader):
    """What came after the last interval is not lost; a second end does nothing."""
    keeper = Keeper()
    reader = open_reader(keeper, Source(resource_metrics("a", number("x", 1))))

    assert reader.stop(5.0)
    assert (len(keeper.requests), keeper.is_shut) == (1, True)
    assert reader.stop(5.0)
    assert len(keeper.requests) == 1


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_a_dead_endpoint_delays_nobody(open_reader, seconds):
    """
    A flush and an end return within their time although the stock exporter would
    retry for many seconds.
    """
    exporter = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{closed_port()}")
    source = Source(resource_metrics("a", number("x", 1)))
    reader = open_reader(exporter, source)

    begin_s = time.monotonic()
    assert not reader.flush(seconds)
    flushed_s = time.monotonic()
    assert not reader.stop(seconds)
    stopped_s = time.monotonic()

    assert flushed_s - begin_s < seconds + 0.5
    assert stopped_s - flushed_s < seconds + 0.5
    assert source.committed == []


@pytest.mark.parametrize("exporter_class", [OTLPMetricExporter, HttpMetricExporter])
def test_a_silent_endpoint_delays_nobody(open_reader, exporter_class):
    """The same for one that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        exporter = exporter_class(endpoint=endpoint, timeout=3.0)
        reader = open_reader(exporter, Source(resource_metrics("a", number("x", 1))))

        begin_s = time.monotonic()
        assert not reader.flush(0.3)
        assert not reader.stop(0.6)
        assert time.monotonic() - begin_s < 2.0
