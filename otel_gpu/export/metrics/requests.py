"""
Requests of metrics: points grouped by Resource and scope, and split by size.

The stock encoder keys by Resource and by scope: of two items with an equal one it sends the last
and silently drops the first. And a gRPC receiver refuses requests above 4 MiB, which the exporter
then retries in vain.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource

from otel_gpu.export import semconv
from otel_gpu.export.metrics.producer import Point
from otel_gpu.export.resources import scope

# Upper bounds of encoded sizes in bytes: a message's own fields and framing, one attribute without
# its text, one exemplar, one bucket.
_MESSAGE_BYTES = 128
_ATTRIBUTE_BYTES = 24
_EXEMPLAR_BYTES = 64
_BUCKET_BYTES = 10


def split(points: Iterable[Point], max_bytes: int) -> Iterator[list[Point]]:
    """Yield points that together encode to at most ``max_bytes``; a larger one goes alone."""
    batch: list[Point] = []
    size_bytes = resource_bytes = 0
    last: Point | None = None
    # Points come grouped by Resource, then by metric.
    for point in points:
        cost_bytes = own_bytes = _point_bytes(point.data)
        if last is None or last.snapshot is not point.snapshot:
            resource_bytes = _resource_bytes(point)
            cost_bytes += resource_bytes + _metric_bytes(point)
        elif last[1] is not point[1]:
            cost_bytes += _metric_bytes(point)
        if batch and size_bytes + cost_bytes > max_bytes:
            yield batch
            batch, size_bytes = [], 0
            cost_bytes = own_bytes + resource_bytes + _metric_bytes(point)
        batch.append(point)
        size_bytes += cost_bytes
        last = point
    if batch:
        yield batch


def request_of(points: Iterable[Point]) -> sdk.MetricsData:
    """Return a request with each Resource once, in it each scope once, and its metrics."""
    resources: dict[Resource, dict[tuple[str, str], dict[str, list[Point]]]] = {}
    scopes: dict[tuple[str, str], dict[str, list[Point]]] = {}
    last: Resource | None = None
    for point in points:
        snapshot, instrument, *_ = point
        # The hash of a Resource is a JSON dump.
        if last is not snapshot.resource:
            last = snapshot.resource
            scopes = resources.setdefault(last, {})
        metrics = scopes.setdefault((_scope_of(instrument), snapshot.agent.version), {})
        metrics.setdefault(instrument.name, []).append(point)
    return sdk.MetricsData(
        [
            sdk.ResourceMetrics(
                resource,
                [
                    sdk.ScopeMetrics(
                        scope(*name), [*map(_metric, metrics.values())], semconv.SCHEMA_URL
                    )
                    for name, metrics in scopes.items()
                ],
                semconv.SCHEMA_URL,
            )
            for resource, scopes in resources.items()
        ]
    )


def _metric(points: Sequence[Point]) -> sdk.Metric:
    _, instrument, temporality, *_ = points[0]
    data: list[Any] = [point.data for point in points]
    kept: sdk.Sum | sdk.Gauge | sdk.Histogram | sdk.ExponentialHistogram
    if instrument.kind == "gauge":
        kept = sdk.Gauge(data)
    elif instrument.kind != "histogram":
        kept = sdk.Sum(data, temporality, is_monotonic=instrument.kind == "counter")
    elif isinstance(data[0], sdk.HistogramDataPoint):
        kept = sdk.Histogram(data, temporality)
    else:
        kept = sdk.ExponentialHistogram(data, temporality)
    return sdk.Metric(instrument.name, instrument.description, instrument.unit, kept)


def _resource_bytes(point: Point) -> int:
    return _MESSAGE_BYTES + _attributes_bytes(point.snapshot.resource.attributes.items())


def _metric_bytes(point: Point) -> int:
    return _instrument_bytes(point.instrument) + _text_bytes(point.snapshot.agent.version)


# Called for each of hundreds of points in a request.
@functools.cache
def _scope_of(instrument: semconv.Instrument) -> str:
    return instrument.scope


@functools.cache
def _instrument_bytes(instrument: semconv.Instrument) -> int:
    schemas = (semconv.SCHEMA_URL,) * 2
    texts = (*instrument, instrument.description, instrument.scope, *schemas)
    return sum(map(_text_bytes, texts)) + 2 * _MESSAGE_BYTES


def _point_bytes(point: sdk.DataPointT) -> int:
    size_bytes = _MESSAGE_BYTES + _attributes_bytes((point.attributes or {}).items())
    for exemplar in point.exemplars:
        size_bytes += _EXEMPLAR_BYTES
        size_bytes += _attributes_bytes((exemplar.filtered_attributes or {}).items())
    if isinstance(point, sdk.HistogramDataPoint):
        size_bytes += _BUCKET_BYTES * (len(point.bucket_counts) + len(point.explicit_bounds))
    elif isinstance(point, sdk.ExponentialHistogramDataPoint):
        buckets = len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
        size_bytes += _BUCKET_BYTES * buckets
    return size_bytes


def _attributes_bytes(attributes: Iterable[tuple[str, object]]) -> int:
    return sum(
        _ATTRIBUTE_BYTES + _text_bytes(key) + _value_bytes(value) for key, value in attributes
    )


def _value_bytes(value: object) -> int:
    if isinstance(value, str):
        return _text_bytes(value)
    if isinstance(value, Sequence):
        return sum(_ATTRIBUTE_BYTES + _value_bytes(item) for item in value)
    return _BUCKET_BYTES


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
