"""An SDK for the process of a test."""

from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_gpu.instrumentation.thread_context import load_publisher


class Telemetry:
    """What an application with an SDK exports."""

    def __init__(self, **provider):
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(**provider)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def spans(self, name=None):
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if name is None or span.name == name]

    def points(self, name):
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@contextmanager
def installed(monkeypatch, telemetry):
    """Make it the SDK of this process, whose threads publish their context; None: there is no SDK."""
    inner = contexts._RUNTIME_CONTEXT
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", telemetry and telemetry.tracers)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", telemetry and telemetry.meters)
    try:
        yield telemetry
    finally:
        contexts._RUNTIME_CONTEXT = inner
        load_publisher().clear()
