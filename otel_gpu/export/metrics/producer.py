"""
The producer: the metric store's content as points for one sink.

``produce`` is the method of the specification's MetricProducer, which the Python SDK does not have
yet. The sink also reports what arrived (``commit``), because deltas start where the last successful
export ended.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import AggregationTemporality, DataPointT

from otel_gpu.enrich.identity.identities import ProcessKey
from otel_gpu.export import semconv
from otel_gpu.export.metrics.metric_store import MetricStore
from otel_gpu.export.metrics.points import Attributes, Given, Measurement, PointAccumulator
from otel_gpu.export.metrics.snapshots import Snapshot
from otel_gpu.export.semconv import Instrument

# The SDK's own default limit of attribute sets per metric, including the overflow.
CARDINALITY_LIMIT = 2000
_OVERFLOW = ((semconv.OTEL_METRIC_OVERFLOW, True),)


# The sink's preference by kind of instrument. Our counters are read, not incremented: observable
# counters in the SDK's terms. All others are cumulative.
Temporality = Mapping[str, AggregationTemporality]


class Point(NamedTuple):
    """An SDK data point, with its snapshot, instrument and measurements."""

    snapshot: Snapshot
    instrument: Instrument
    temporality: AggregationTemporality
    data: DataPointT
    measurements: Sequence[Measurement]


@dataclass(slots=True)
class _GivenProgram:
    # The values of one program that a delta sink has, and the time of the last complete export.

    unix_ns: int | None = None
    values: dict[tuple[str, Hashable], Given] = field(default_factory=dict)


class MetricProducer:
    """One sink's view of the store; not thread-safe: each ``produce`` before its ``commit``."""

    def __init__(self, store: MetricStore, temporality: Temporality) -> None:
        self._store = store
        self._sink = store.add_sink()
        self._temporality = temporality
        self._given: dict[ProcessKey, _GivenProgram] = {}
        self._exemplars_given = 0
        self._exemplars_produced = 0
        # Points of the last collection that have not arrived.
        self._missing: dict[ProcessKey, int] = {}
        self._is_complete = False

    def produce(self) -> Iterator[Point]:
        """
        Yield all current points for the sink, grouped by Resource.

        Points can be committed while others are still to come.
        """
        for key in [key for key in self._given if not self._store.holds(key)]:
            del self._given[key]
        self._missing.clear()
        self._is_complete = False
        for snapshot in self._store.snapshots(self._sink, self._exemplars_given):
            self._exemplars_produced = snapshot.exemplars_seen
            points = list(self._points(snapshot))
            if points:
                self._missing[snapshot.key] = len(points)
                yield from points
            else:
                self._finish(snapshot)
        self._is_complete = True

    def commit(self, points: Iterable[Point]) -> None:
        """Record that points of the last collection were exported."""
        for point in points:
            snapshot = point.snapshot
            # Only deltas begin where the last export ended.
            if point.temporality is AggregationTemporality.DELTA:
                given = self._given.setdefault(snapshot.key, _GivenProgram())
                for measurement in point.measurements:
                    key = (point.instrument.name, measurement.source)
                    given.values[key] = Given(measurement.value, snapshot.time_unix_ns)
            self._missing[snapshot.key] -= 1
            if not self._missing[snapshot.key]:
                del self._missing[snapshot.key]
                self._finish(snapshot)
        if self._is_complete and not self._missing:
            self._exemplars_given = self._exemplars_produced

    def _finish(self, snapshot: Snapshot) -> None:
        if given := self._given.get(snapshot.key):
            given.unix_ns = snapshot.time_unix_ns
        if snapshot.is_final:
            self._store.release(snapshot.key, self._sink)

    def _points(self, snapshot: Snapshot) -> Iterator[Point]:
        # One point per instrument and attribute set, grouped by instrument.
        given = self._given.get(snapshot.key) or _GivenProgram()
        cells: dict[Instrument, dict[Attributes, PointAccumulator]] = {}
        for measurement in snapshot.measurements:
            instrument, attributes, source, _ = measurement
            by_attributes = cells.setdefault(instrument, {})
            cell = by_attributes.get(attributes)
            if cell is None:
                if len(by_attributes) >= CARDINALITY_LIMIT - 1:
                    attributes = _OVERFLOW
                is_delta = self._temporality_of(instrument) is AggregationTemporality.DELTA
                cell = by_attributes.setdefault(
                    attributes, PointAccumulator(instrument, attributes, is_delta)
                )
            cell.add(measurement, given.values.get((instrument.name, source)))
        for cell in (cell for by_attributes in cells.values() for cell in by_attributes.values()):
            start_unix_ns = snapshot.start_unix_ns
            if cell.is_delta:
                if not (cell.count or cell.number):
                    continue
                start_unix_ns = cell.given_unix_ns or given.unix_ns or start_unix_ns
            time_unix_ns = snapshot.time_unix_ns
            data = cell.point(
                snapshot.agent.layouts,
                (min(start_unix_ns, time_unix_ns), time_unix_ns),
                snapshot.exemplars.get((cell.instrument.name, cell.attributes), ()),
            )
            temporality = self._temporality_of(cell.instrument)
            yield Point(
                snapshot,
                cell.instrument,
                temporality=temporality,
                data=data,
                measurements=cell.measurements,
            )

    def _temporality_of(self, instrument: Instrument) -> AggregationTemporality:
        return self._temporality.get(instrument.kind, AggregationTemporality.CUMULATIVE)
