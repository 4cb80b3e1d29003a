"""
The producer: what the metric store holds, as the metrics that one sink wants.

``produce`` is the method of the specification's MetricProducer, which the Python SDK
does not have yet. Beside it the sink says what arrived (``commit``), because deltas
start where the last successful export ended.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataPointT,
    ResourceMetrics,
    ScopeMetrics,
)

from otel_gpu.enrich.activities import ImageKey
from otel_gpu.export import semconv
from otel_gpu.export.metric_store import MetricStore, Snapshot
from otel_gpu.export.points import Given, Point, PointBuilder, Temporality, metrics_of
from otel_gpu.export.resources import scope


@dataclass(slots=True)
class _Progress:
    """How much of one snapshot has arrived at the sink."""

    snapshot: Snapshot
    missing: int = 0


class MetricProducer:
    """
    One sink's view of the store.

    Not thread-safe: one collection at a time, ``produce`` before its ``commit``.
    """

    def __init__(self, store: MetricStore, temporality: Temporality) -> None:
        self._store = store
        self._sink = store.add_sink()
        self._temporality = temporality
        self._given: dict[ImageKey, dict[tuple[str, Hashable], Given]] = {}
        self._given_unix_ns: dict[ImageKey, int] = {}
        self._exemplars_given = 0
        self._exemplars_produced = 0
        # By the identity of the SDK's data point, which splitting a request keeps.
        self._pending: dict[int, tuple[Point, _Progress]] = {}

    def produce(self) -> list[ResourceMetrics]:
        """Return everything that the sink should have now, one item per Resource."""
        self._prune()
        self._pending.clear()
        self._exemplars_produced = self._store.exemplars_seen
        produced = []
        for snapshot in self._store.snapshots(self._sink, self._exemplars_given):
            points = list(self._points(snapshot))
            progress = _Progress(snapshot, len(points))
            self._pending.update((id(point.data), (point, progress)) for point in points)
            if points:
                produced.append(self._resource_metrics(snapshot, points))
            else:
                self._finish(snapshot)
        return produced

    def commit(self, points: Iterable[DataPointT]) -> None:
        """Note that points of the last collection were exported."""
        for data in points:
            found = self._pending.pop(id(data), None)
            if found is None:
                continue
            point, progress = found
            # Only deltas begin where the last export ended.
            if self._temporality.of(point.instrument) is AggregationTemporality.DELTA:
                given = self._given.setdefault(progress.snapshot.key, {})
                for measurement in point.measurements:
                    key = (point.instrument.name, measurement.source)
                    given[key] = Given(measurement.value, progress.snapshot.time_unix_ns)
            progress.missing -= 1
            if progress.missing == 0:
                self._finish(progress.snapshot)
        if not self._pending:
            self._exemplars_given = self._exemplars_produced

    def _points(self, snapshot: Snapshot) -> Iterable[Point]:
        layouts = self._store.layouts
        if layouts is None:
            return ()
        builder = PointBuilder(
            layouts,
            self._temporality,
            self._given.get(snapshot.key, {}),
            start_unix_ns=snapshot.start_unix_ns,
            given_unix_ns=self._given_unix_ns.get(snapshot.key, snapshot.start_unix_ns),
            time_unix_ns=snapshot.time_unix_ns,
        )
        return builder.points(snapshot.measurements, snapshot.exemplars)

    def _resource_metrics(self, snapshot: Snapshot, points: list[Point]) -> ResourceMetrics:
        scopes = [
            ScopeMetrics(scope(name, self._store.version), metrics, semconv.SCHEMA_URL)
            for name, metrics in metrics_of(points, self._temporality).items()
        ]
        return ResourceMetrics(snapshot.resource, scopes, semconv.SCHEMA_URL)

    def _finish(self, snapshot: Snapshot) -> None:
        self._given_unix_ns[snapshot.key] = snapshot.time_unix_ns
        if snapshot.is_final:
            self._store.release(snapshot.key, self._sink)

    def _prune(self) -> None:
        for key in [key for key in self._given_unix_ns if not self._store.holds(key)]:
            del self._given_unix_ns[key]
        for key in [key for key in self._given if not self._store.holds(key)]:
            del self._given[key]
