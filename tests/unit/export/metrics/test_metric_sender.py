import socket
import threading
import time

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetricExporter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
)
from opentelemetry.sdk.resources import Resource

from otel_gpu.export.metrics.metric_sender import MetricSender
from otel_gpu.export.metrics.producer import Point
from otel_gpu.export.metrics.requests import request_of, split
from otel_gpu.export.metrics.snapshots import Agent, Snapshot
from otel_gpu.export.semconv import METRIC_GPU_CUDA_CALL_DURATION, METRIC_PROCESS_FORKS
from otel_gpu.export.semconv import METRIC_GPU_CUDA_KERNEL_LAUNCH_CALLS as LAUNCHES
from otel_gpu.export.semconv import METRIC_GPU_CUDA_MEMORY_IN_USE as IN_USE
from tests.receiver import WAIT_TIMEOUT_S

CUMULATIVE = AggregationTemporality.CUMULATIVE
# By how much a busy machine may be late. The exporters would take a minute.
BUSY_S = 15.0


def of(service):
    resource = Resource({"service.name": service})
    agent = Agent(resource, "1", {}, 0)
    return Snapshot((1, 1), resource, agent, {}, [], {}, 0, 1, 2)


def number(snapshot, instrument, value):
    return Point(snapshot, instrument, CUMULATIVE, NumberDataPoint({}, 1, 2, value), ())


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
def open_sender():
    senders = []

    def open_one(exporter, source, **options):
        usual = {"interval_s": None, "timeout_s": 30.0, "max_request_bytes": 3_500_000}
        sender = MetricSender(exporter, source, **(usual | options))
        senders.append(sender)
        return sender

    yield open_one
    for sender in senders:
        sender.shutdown(1.0)
        sender._thread.join(5.0)
        assert not sender._thread.is_alive()


def test_metrics_leave_when_asked_for(open_sender):
    """Without an interval, a flush is what sends them."""
    keeper = Keeper()
    sender = open_sender(keeper, Source(number(of("a"), LAUNCHES, 1)))

    assert sender.flush(5.0)
    assert keeper.metrics() == [("a", "otel_gpu.cuda", LAUNCHES.name)]


def test_an_equal_resource_loses_nothing(open_sender):
    """The stock encoder sends only the last of two items with equal Resources."""
    one = number(of("a"), LAUNCHES, 1)
    two = number(of("a"), METRIC_PROCESS_FORKS, 2)
    keeper = Keeper()

    apart = MetricsData([*request_of([one]).resource_metrics, *request_of([two]).resource_metrics])
    assert len(encode_metrics(apart).resource_metrics[0].scope_metrics) == 1
    assert open_sender(keeper, Source(one, two)).flush(5.0)

    assert keeper.metrics() == [
        ("a", "otel_gpu.cuda", LAUNCHES.name),
        ("a", "otel_gpu.process", METRIC_PROCESS_FORKS.name),
    ]


def test_an_equal_scope_loses_nothing(open_sender):
    """The stock encoder sends only the last of two items with equal scopes."""
    keeper = Keeper()
    points = [
        number(of("a"), LAUNCHES, 1),
        number(of("b"), LAUNCHES, 1),
        number(of("a"), IN_USE, 2),
    ]

    assert open_sender(keeper, Source(*points)).flush(5.0)

    assert keeper.metrics() == [
        ("a", "otel_gpu.cuda", LAUNCHES.name),
        ("a", "otel_gpu.cuda", IN_USE.name),
        ("b", "otel_gpu.cuda", LAUNCHES.name),
    ]


def test_nothing_to_say_is_no_request(open_sender):
    """An empty request would only cost."""
    keeper = Keeper()

    assert open_sender(keeper, Source()).flush(5.0)
    assert keeper.requests == []


def histograms(snapshot, points):
    return [
        Point(
            snapshot,
            METRIC_GPU_CUDA_CALL_DURATION,
            CUMULATIVE,
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
            ),
            (),
        )
        for n in range(points)
    ]


def test_large_requests_are_split_by_bytes():
    """Every request encodes to less than the limit, and every point is in exactly one."""
    produced = [point for n in range(5) for point in histograms(of(f"service{n}"), 400)]
    limit = 100_000

    batches = list(split(produced, limit))
    sizes = [encode_metrics(request_of(batch)).ByteSize() for batch in batches]

    assert len(batches) > 2
    assert max(sizes) <= limit
    # The estimate is safe and not wasteful.
    assert max(sizes) > limit // 3
    assert [point for batch in batches for point in batch] == produced


def test_a_point_above_the_limit_goes_alone():
    """Splitting ends with one point per request."""
    assert len(list(split(histograms(of("a"), 3), 10))) == 3


def test_only_what_arrived_is_committed(open_sender):
    """
    Of two requests the first is refused: the second is sent all the same, and the
    flush says that not all arrived.
    """
    source = Source(number(of("a"), LAUNCHES, 1), number(of("b"), IN_USE, 2))
    keeper = Keeper(MetricExportResult.FAILURE)
    sender = open_sender(keeper, source, max_request_bytes=10)

    assert not sender.flush(5.0)

    assert [point.data.value for point in source.committed] == [2]
    assert sender.flush(5.0)
    assert [point.data.value for point in source.committed] == [2, 1, 2]


def test_a_producer_that_fails_does_not_end_the_exports(open_sender, caplog):
    """The thread outlives one failure, and the failure is not silent."""

    class Failing(Source):
        def produce(self):
            if not self.committed:
                self.committed.append(None)
                raise RuntimeError("broken")
            return super().produce()

    keeper = Keeper()
    sender = open_sender(keeper, Failing(number(of("a"), LAUNCHES, 1)))

    assert not sender.flush(5.0)
    assert "export.metrics failed" in caplog.text
    assert sender.flush(5.0)
    assert len(keeper.requests) == 1


def test_an_interval_exports_by_itself(open_sender):
    """Live, nobody has to ask."""
    arrived = threading.Event()

    class Signalling(Keeper):
        def export(self, metrics_data, timeout_millis=10_000, **_):
            arrived.set()
            return super().export(metrics_data)

    open_sender(Signalling(), Source(number(of("a"), LAUNCHES, 1)), interval_s=0.01)

    assert arrived.wait(WAIT_TIMEOUT_S)


def test_the_end_exports_once_more_and_shuts_the_exporter(open_sender):
    """What came after the last interval is not lost; a second end does nothing."""
    keeper = Keeper()
    sender = open_sender(keeper, Source(number(of("a"), LAUNCHES, 1)))

    assert sender.shutdown(5.0)
    assert (len(keeper.requests), keeper.is_shut) == (1, True)
    assert sender.shutdown(5.0)
    assert len(keeper.requests) == 1


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_a_dead_endpoint_delays_nobody(open_sender, seconds):
    """
    A flush and an end return within their time although the stock exporter would
    retry for a minute.
    """
    exporter = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{closed_port()}", timeout=60.0)
    source = Source(number(of("a"), LAUNCHES, 1))
    sender = open_sender(exporter, source)

    begin_s = time.monotonic()
    assert not sender.flush(seconds)
    flushed_s = time.monotonic()
    assert not sender.shutdown(seconds)
    stopped_s = time.monotonic()

    assert flushed_s - begin_s < seconds + BUSY_S
    assert stopped_s - flushed_s < seconds + BUSY_S
    assert source.committed == []


@pytest.mark.parametrize("exporter_class", [OTLPMetricExporter, HttpMetricExporter])
def test_a_silent_endpoint_delays_nobody(open_sender, exporter_class):
    """The same for one that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        exporter = exporter_class(endpoint=endpoint, timeout=60.0)
        sender = open_sender(exporter, Source(number(of("a"), LAUNCHES, 1)))

        begin_s = time.monotonic()
        assert not sender.flush(0.3)
        assert not sender.shutdown(0.6)
        assert time.monotonic() - begin_s < 0.3 + 0.6 + BUSY_S
