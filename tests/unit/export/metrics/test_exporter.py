import json
import os

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    MeterProvider,
    ObservableCounter,
)
from opentelemetry.sdk.metrics.export import AggregationTemporality as SdkTemporality
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from otel_gpu import wire
from otel_gpu.errors import ConfigError
from otel_gpu.export.metrics.exporter import MetricExports, open_exporters, preferred_temporality
from otel_gpu.options import CaptureConfig, Config, HistogramsConfig
from otel_gpu.wire.histogram_layout import duration_bounds_ns
from tests.activities import (
    H100,
    SECOND,
    call,
    calls,
    capture,
    copies,
    counters,
    ended,
    forks,
    image,
    open_call,
    snapshot,
)

US = 1_000
LOOPBACK = {"PATH": os.environ["PATH"]}


class File:
    def __init__(self):
        self.requests = []

    def write(self, request):
        self.requests.append(request)

    def metrics(self, service="trainer"):
        return {
            metric.name: metric
            for request in self.requests
            for resource in request.resource_metrics
            if any(a.value.string_value == service for a in resource.resource.attributes)
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def open_metrics():
    opened = []

    def open_one(environ, *, live=False, config=None, file=None):
        metrics = MetricExports(config or Config(), LOOPBACK | environ, live=live, file=file)
        opened.append(metrics)
        return metrics

    yield open_one
    for metrics in opened:
        metrics.shutdown(1.0)


def stream():
    trainer, helper = image(), image(pid=50, name="helper")
    return [
        capture(),
        call(trainer, "cudaMalloc", 6 * SECOND, 300 * US, device=H100),
        open_call(helper, "cudaStreamSynchronize", 6 * SECOND, 18 * SECOND),
        snapshot(
            9,
            calls(trainer, "cudaMalloc", [300 * US, 7 * US], size_bytes=4096, device=H100),
            copies(trainer, [4096]),
            forks(helper, 2),
        ),
        counters(9, lost_ring_full=1),
        ended(trainer, 10),
        snapshot(11, calls(trainer, "cudaMalloc", [300 * US, 7 * US, 9 * US], size_bytes=5000)),
        counters(12, lost_ring_full=1),
    ]


def observe_all(metrics, activities):
    for activity in activities:
        metrics.observe(activity)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_metrics_arrive_over_the_protocol_that_is_named(receiver, open_metrics, protocol):
    """Endpoint, protocol and headers are the standard variables."""
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    metrics = open_metrics(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue",
        },
        live=True,
    )
    observe_all(metrics, stream())

    assert metrics.flush(10.0)

    assert receiver.requests("metrics")[0].protocol == protocol
    assert receiver.requests("metrics")[0].headers["x-tenant"] == "blue"
    points = {(key.service, key.name): point.point for key, point in receiver.metrics().items()}
    assert points["trainer", "gpu.cuda.memory.in_use"].as_int in (4096, 5000)
    assert points["helper", "process.forks"].as_int == 2
    assert points["helper", "gpu.cuda.call.open.age"].as_double == 12.0
    assert ("otel-gpu", "otel_gpu.records.lost") in points


def test_an_interval_exports_while_live(receiver, open_metrics):
    """``OTEL_METRIC_EXPORT_INTERVAL`` is in milliseconds."""
    metrics = open_metrics(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        },
        live=True,
    )
    observe_all(metrics, stream())

    assert receiver.wait_for(lambda: len(receiver.requests("metrics")) >= 2)


def test_deltas_are_sent_when_preferred(receiver, open_metrics):
    """
    ``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta`` gives differences, and
    a receiver that adds them up has the totals.
    """
    metrics = open_metrics(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        }
    )
    trainer = image()
    counts = []
    observe_all(metrics, [capture(), snapshot(9, calls(trainer, "cudaFree", [US] * 5))])
    for at_s, total in ((10, 7), (20, 12)):
        assert metrics.flush(10.0)
        metrics.observe(snapshot(at_s, calls(trainer, "cudaFree", [US] * total)))
    assert metrics.flush(10.0)

    for request in receiver.requests("metrics"):
        for resource in ExportMetricsServiceRequest.FromString(request.body).resource_metrics:
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                if metric.name == "gpu.cuda.call.duration":
                    histogram = metric.exponential_histogram
                    assert histogram.aggregation_temporality == (
                        AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                    )
                    point = histogram.data_points[0]
                    assert not point.HasField("min")
                    assert not point.HasField("max")
                    counts.append(point.count)
    assert counts == [5, 2, 5]


def test_low_memory_wants_deltas_of_histograms_only():
    """Our counters are observable ones in the SDK's words: read, not incremented."""

    class Exporter:
        def __init__(self):
            self._preferred_temporality = {
                Counter: SdkTemporality.DELTA,
                Histogram: SdkTemporality.DELTA,
                ObservableCounter: SdkTemporality.CUMULATIVE,
            }

    assert preferred_temporality(Exporter()) == {
        "counter": SdkTemporality.CUMULATIVE,
        "histogram": SdkTemporality.DELTA,
    }


def test_an_endpoint_that_was_away_gets_everything(receiver, open_metrics):
    """Cumulative points survive an outage, those of a process that ended meanwhile too."""
    receiver.stop()
    metrics = open_metrics(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
        }
    )
    observe_all(metrics, stream())
    assert not metrics.flush(5.0)
    receiver.start()

    assert metrics.flush(10.0)

    totals = {
        key.name: point.point.count
        for key, point in receiver.metrics().items()
        if key.service == "trainer" and key.name.endswith("call.duration")
    }
    assert totals == {"gpu.cuda.call.duration": 3}


def test_a_replay_gives_the_same_bytes_twice(open_metrics):
    """No clock of the replaying host reaches the output."""

    def replay():
        file = File()
        metrics = open_metrics({}, file=file)
        observe_all(metrics, stream())
        metrics.shutdown(10.0)
        return [request.SerializeToString() for request in file.requests]

    first = replay()

    assert len(first) == 1
    assert replay() == first


def test_the_whole_output_of_a_replay(open_metrics):
    """Scopes, versions, units and Resources are as declared."""
    file = File()
    metrics = open_metrics({}, file=file)
    observe_all(metrics, stream())
    assert metrics.flush(10.0)

    (request,) = file.requests
    agent, trainer, helper = request.resource_metrics
    scopes = {s.scope.name: s for r in (agent, trainer, helper) for s in r.scope_metrics}
    assert scopes.keys() == {"otel_gpu.agent", "otel_gpu.cuda", "otel_gpu.process"}
    assert {scope.scope.version for scope in scopes.values()} == {"0.1.0"}
    assert trainer.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert {a.key for a in trainer.resource.attributes} == {
        "service.name",
        "service.instance.id",
        "process.pid",
    }
    assert {name: metric.unit for name, metric in file.metrics().items()} == {
        "gpu.cuda.call.duration": "s",
        "gpu.cuda.memory.allocations": "By",
        "gpu.cuda.memory.in_use": "By",
        "gpu.cuda.memory.copies": "By",
    }


def test_a_long_replay_flushes_what_has_ended(open_metrics, monkeypatch):
    """A recording of thousands of processes is replayed in bounded memory, completely."""
    monkeypatch.setattr("otel_gpu.export.metrics.exporter._LEAST_WAITING_SERIES", 64)
    file = File()
    config = Config(capture=CaptureConfig(max_series=64))
    metrics = open_metrics({}, file=file, config=config)
    metrics.observe(capture())
    for number in range(300):
        process = image(pid=100 + number, name=f"p{number}")
        metrics.observe(snapshot(9 + number, calls(process, "cudaFree", [US])))
        metrics.observe(ended(process, 9 + number))
    metrics.shutdown(10.0)

    assert len(file.requests) > 2
    assert [f"p{n}" for n in range(300) if not file.metrics(f"p{n}")] == []
    assert "otel_gpu.series.dropped" not in file.metrics("otel-gpu")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, ["OTLPMetricExporter"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, ["OTLPMetricExporter"]),
        (
            {"OTEL_METRICS_EXPORTER": "otlp, console"},
            ["OTLPMetricExporter", "ConsoleMetricExporter"],
        ),
        (
            {"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
            [],
        ),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, []),
    ],
)
def test_which_exporters_are_opened(environ, expected):
    """OTLP where an endpoint is named, nothing without, and what is asked for otherwise."""
    exporters = open_exporters(environ, 30.0)

    assert [type(exporter).__name__ for exporter in exporters] == expected
    for exporter in exporters:
        exporter.shutdown()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "sometimes"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "nan"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1e12"),
    ],
)
def test_values_that_are_not_known_are_refused(variable, value):
    """A typing error ends the start, with the variable's name and a hint."""
    environ = {"OTEL_METRICS_EXPORTER": "otlp"} | {variable: value}

    with pytest.raises(ConfigError, match=variable) as raised:
        MetricExports(Config(), environ, live=False)

    assert raised.value.hint


def test_nothing_is_kept_where_nothing_is_exported(open_metrics):
    """Without exporters, observing costs nothing and flushing succeeds."""
    metrics = open_metrics({})
    observe_all(metrics, stream())

    assert metrics.flush(0.0)
    assert metrics._store.agent is None


def test_the_console_writes_to_standard_error(open_metrics, capsys):
    """Standard output belongs to the command that is run."""
    metrics = open_metrics({"OTEL_METRICS_EXPORTER": "console"})
    observe_all(metrics, stream())
    assert metrics.flush(10.0)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(json.loads(captured.err)["resource_metrics"]) == 3


def durations():
    edges = duration_bounds_ns(Config())[20:140:7]
    return [value for bound in edges for value in (bound, bound + 1)] + [1_000_000] * 3


@pytest.mark.parametrize(
    "bounds_s",
    [(), (0.000001, 0.0001, 0.001, 1.0)],
    ids=["exponential", "explicit"],
)
def test_histograms_are_those_that_the_sdk_would_have_made(open_metrics, bounds_s):
    """
    The same durations, recorded one by one in seconds with the SDK, give the same
    buckets, count and extremes.
    """
    histograms = HistogramsConfig(
        layout="explicit" if bounds_s else "exponential", duration_bounds_s=bounds_s
    )
    config = Config(histograms=histograms)
    file = File()
    metrics = open_metrics({}, file=file, config=config)
    counted = calls(image(), "cudaFree", durations(), bounds=duration_bounds_ns(config))
    observe_all(metrics, [capture(config), snapshot(9, counted)])
    assert metrics.flush(10.0)
    aggregation = (
        ExplicitBucketHistogramAggregation(bounds_s)
        if bounds_s
        else ExponentialBucketHistogramAggregation(max_size=wire.MAX_BUCKETS, max_scale=2)
    )

    reader = InMemoryMetricReader()
    views = [View(instrument_name="*", aggregation=aggregation)]
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    recorded = provider.get_meter("sdk").create_histogram("h", "s")
    for duration_ns in durations():
        recorded.record(duration_ns / 1e9)
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data
    (expected,) = data.data_points

    ours = file.metrics()["gpu.cuda.call.duration"]
    if bounds_s:
        (point,) = ours.histogram.data_points
        assert list(point.bucket_counts) == list(expected.bucket_counts)
        assert tuple(point.explicit_bounds) == bounds_s
    else:
        (point,) = ours.exponential_histogram.data_points
        assert point.scale == expected.scale == 2
        assert point.positive.offset == expected.positive.offset
        # The SDK sends empty buckets after the last full one.
        counts = list(point.positive.bucket_counts)
        sdk_counts = list(expected.positive.bucket_counts)
        assert counts == sdk_counts[: len(counts)]
        assert not any(sdk_counts[len(counts) :])
    assert point.count == expected.count
    assert (point.min, point.max) == (expected.min, expected.max)
    assert point.sum == pytest.approx(expected.sum, rel=1e-12)
