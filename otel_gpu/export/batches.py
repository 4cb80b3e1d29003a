"""
Batches: metrics merged so that nothing is lost in encoding, and cut to size.

The stock encoder keys by Resource and by scope: of two items with an equal one it
sends the last and forgets the first, without a word. And a gRPC receiver refuses
requests above 4 MiB, after which the exporter retries in vain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.sdk.metrics.export import (
    DataPointT,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

# Upper bounds of encoded sizes in bytes: of a message's own fields and framing, of
# one attribute beside its text, of one exemplar, of one bucket.
_MESSAGE_BYTES = 128
_ATTRIBUTE_BYTES = 24
_EXEMPLAR_BYTES = 64
_BUCKET_BYTES = 10


def merge(resource_metrics: Iterable[ResourceMetrics]) -> list[ResourceMetrics]:
    """Return the same metrics with each Resource once, and in it each scope once."""
    merged: dict[Resource, tuple[ResourceMetrics, dict[InstrumentationScope, ScopeMetrics]]] = {}
    for item in resource_metrics:
        _, scopes = merged.setdefault(item.resource, (item, {}))
        for scope_metrics in item.scope_metrics:
            known = scopes.get(scope_metrics.scope)
            metrics = [*known.metrics, *scope_metrics.metrics] if known else scope_metrics.metrics
            scopes[scope_metrics.scope] = replace(scope_metrics, metrics=metrics)
    return [replace(item, scope_metrics=list(scopes.values())) for item, scopes in merged.values()]


def points_in(data: MetricsData) -> Iterator[DataPointT]:
    """Yield every data point."""
    for resource_metrics in data.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                yield from metric.data.data_points


def split(resource_metrics: Iterable[ResourceMetrics], max_bytes: int) -> Iterator[MetricsData]:
    """
    Yield requests that encode to at most ``max_bytes``, with every point in one of them.

    A point that is larger by itself is sent alone.
    """
    batch = _Batch(max_bytes)
    for item in resource_metrics:
        resource_bytes = _attributes_bytes(item.resource.attributes.items())
        for scope_metrics in item.scope_metrics:
            for metric in scope_metrics.metrics:
                around = (item, scope_metrics, metric)
                around_bytes = resource_bytes + _around_bytes(*around)
                for point in metric.data.data_points:
                    if not batch.add(around, around_bytes, point):
                        yield batch.take()
                        batch.add(around, around_bytes, point)
    if batch.size_bytes:
        yield batch.take()


_Around = tuple[ResourceMetrics, ScopeMetrics, Metric]


@dataclass(slots=True)
class _Batch:
    max_bytes: int
    size_bytes: int = 0
    # The nesting of the request, each level with the points below it.
    levels: list[tuple[_Around, list[DataPointT]]] = field(default_factory=list)

    def add(self, around: _Around, around_bytes: int, point: DataPointT) -> bool:
        """Add a point unless it would be one too many."""
        cost = _point_bytes(point)
        same = bool(self.levels) and all(
            now is then for now, then in zip(around, self.levels[-1][0], strict=True)
        )
        if not same:
            cost += around_bytes
        if self.size_bytes and self.size_bytes + cost > self.max_bytes:
            return False
        self.size_bytes += cost
        if same:
            self.levels[-1][1].append(point)
        else:
            self.levels.append((around, [point]))
        return True

    def take(self) -> MetricsData:
        """Return the request, and start another."""
        taken = merge(
            replace(
                item,
                scope_metrics=[
                    replace(
                        scope_metrics,
                        metrics=[replace(metric, data=_with_points(metric.data, points))],
                    )
                ],
            )
            for (item, scope_metrics, metric), points in self.levels
        )
        self.size_bytes = 0
        self.levels = []
        return MetricsData(taken)


def _with_points(data: Any, points: list[DataPointT]) -> Any:  # noqa: ANN401 - each kind of data
    return replace(data, data_points=points)


def _around_bytes(item: ResourceMetrics, scope_metrics: ScopeMetrics, metric: Metric) -> int:
    texts = (
        item.schema_url,
        scope_metrics.schema_url,
        scope_metrics.scope.name,
        scope_metrics.scope.version,
        metric.name,
        metric.description,
        metric.unit,
    )
    return 3 * _MESSAGE_BYTES + sum(_text_bytes(text or "") for text in texts)


def _point_bytes(point: DataPointT) -> int:
    size_bytes = _MESSAGE_BYTES + _attributes_bytes((point.attributes or {}).items())
    for exemplar in point.exemplars:
        size_bytes += _EXEMPLAR_BYTES
        size_bytes += _attributes_bytes((exemplar.filtered_attributes or {}).items())
    if isinstance(point, HistogramDataPoint):
        size_bytes += _BUCKET_BYTES * (len(point.bucket_counts) + len(point.explicit_bounds))
    elif isinstance(point, ExponentialHistogramDataPoint):
        buckets = len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
        size_bytes += _BUCKET_BYTES * buckets
    return size_bytes


def _attributes_bytes(attributes: Iterable[tuple[str, Any]]) -> int:
    return sum(
        _ATTRIBUTE_BYTES + _text_bytes(key) + _value_bytes(value) for key, value in attributes
    )


def _value_bytes(value: Any) -> int:  # noqa: ANN401 - any attribute value
    if isinstance(value, str):
        return _text_bytes(value)
    if isinstance(value, Sequence):
        return sum(_ATTRIBUTE_BYTES + _value_bytes(item) for item in value)
    return _BUCKET_BYTES


def _text_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
