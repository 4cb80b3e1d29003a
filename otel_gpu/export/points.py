"""
Points: what the kernel counted, as data points of the OpenTelemetry SDK.

A measurement is one cumulative value from one place. Measurements with the same
instrument and attributes become one point. Values of instruments in seconds stay
nanoseconds until the point is made, so that sums and differences are exact.
"""

# Some facts about temporality
# ----------------------------
#
# The kernel side counts from the beginning of a process image and never forgets, so
# cumulative points are what it holds. A delta is the difference from what the sink
# was given before, and "given" means that the export succeeded: after a failure the
# next delta covers both intervals and starts where the last success ended.
#
# Differences are taken per measurement and summed afterwards. Attributes can change
# (a device's UUID becomes known later); a difference between points would then
# count everything before that moment again.
#
# The kernel's minimum and maximum are those of the whole life of a series. Nobody
# knows those of one interval, so delta points have none.

import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    DataPointT,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)

from otel_gpu.decode.events import Aggregate
from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.export import semconv
from otel_gpu.export.semconv import Instrument
from otel_gpu.ledger.differences import aggregate_since

# The SDK's own default limit of attribute sets per metric, the overflow included.
CARDINALITY_LIMIT = 2000

_NS_PER_SECOND = 10**9
_MAX_INTEGER = 2**63 - 1
_OVERFLOW = ((semconv.OTEL_METRIC_OVERFLOW, True),)
_NO_BUCKETS = Buckets(offset=0, bucket_counts=())

Attributes = tuple[tuple[str, str | int | bool], ...]


class Measurement(NamedTuple):
    """
    One cumulative value, or the present one for a gauge.

    ``source`` is where it was read, and stays the same when attributes change.
    """

    instrument: Instrument
    attributes: Attributes
    source: Hashable
    value: int | float | Aggregate


class Given(NamedTuple):
    """What a sink was given last of one measurement, and up to when."""

    value: int | float | Aggregate
    unix_ns: int


class Layout(NamedTuple):
    """
    Bounds of one kind of histogram, as the capture says.

    ``bounds`` are nanoseconds or bytes, and empty in an exponential layout. An explicit
    one without bounds has one bucket, which holds all: of these only count, sum, minimum
    and maximum are known.
    """

    scale: int
    offset: int
    bounds: tuple[int, ...]
    is_explicit: bool


@dataclass(frozen=True, slots=True)
class Layouts:
    """
    The layouts of one capture, by the unit of the instrument.

    ``knows_freed_bytes`` is false where what was freed is not in the series.
    """

    by_unit: Mapping[str, Layout]
    knows_freed_bytes: bool = True

    @classmethod
    def of_capture(cls, capture: CaptureActivity) -> "Layouts":
        """Read ``layout`` of RECORD_CAPTURE; ``capture/layout.py`` writes it."""
        layout = capture.info["layout"]
        by_unit = {
            "s": _read_layout(layout["durations"], "bounds_ns"),
            "By": _read_layout(layout["sizes"], "bounds_bytes"),
        }
        if capture.lacks("distributions"):
            by_unit = dict.fromkeys(by_unit, Layout(0, 0, (), is_explicit=True))
        return cls(by_unit, not capture.lacks("freed_bytes"))


def _read_layout(layout: Mapping[str, Any], bounds_field: str) -> Layout:
    if layout["kind"] == "explicit":
        return Layout(0, 0, tuple(layout[bounds_field]), is_explicit=True)
    return Layout(layout["scale"], layout["offset"], (), is_explicit=False)


@dataclass(frozen=True, slots=True)
class Temporality:
    """
    What a sink prefers.

    Our counters are read, not incremented, which makes them observable counters in
    the SDK's words; up-down counters are cumulative under every preference.
    """

    counter: AggregationTemporality = AggregationTemporality.CUMULATIVE
    histogram: AggregationTemporality = AggregationTemporality.CUMULATIVE

    def of(self, instrument: Instrument) -> AggregationTemporality:
        """Return the temporality of one instrument's points."""
        if instrument.kind == "histogram":
            return self.histogram
        if instrument.kind == "counter":
            return self.counter
        return AggregationTemporality.CUMULATIVE


@dataclass(slots=True)
class _Cell:
    """A point in the making."""

    instrument: Instrument
    attributes: Attributes
    given_unix_ns: int | None = None
    number: int | float = 0
    count: int = 0
    minimum: int | None = None
    maximum: int = 0
    buckets: list[int] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)


class Point(NamedTuple):
    """An SDK data point, and the measurements in it."""

    instrument: Instrument
    data: DataPointT
    measurements: Sequence[Measurement]


class PointBuilder:
    """
    Makes the points of one Resource.

    ``given`` is what the sink has of these measurements so far; it was given this Resource up
    to ``given_unix_ns``, and counting began at ``start_unix_ns``.
    """

    def __init__(
        self,
        layouts: Layouts,
        temporality: Temporality,
        given: Mapping[tuple[str, Hashable], Given],
        *,
        start_unix_ns: int,
        given_unix_ns: int,
        time_unix_ns: int,
    ) -> None:
        self._layouts = layouts
        self._temporality = temporality
        self._given = given
        self._start_unix_ns = min(start_unix_ns, time_unix_ns)
        self._given_unix_ns = given_unix_ns
        self._time_unix_ns = time_unix_ns

    def points(
        self,
        measurements: Iterable[Measurement],
        exemplars: Mapping[tuple[str, Attributes], Sequence[Exemplar]],
    ) -> Iterator[Point]:
        """Yield one point per instrument and attribute set, instruments together."""
        cells: dict[Instrument, dict[Attributes, _Cell]] = {}
        for measurement in measurements:
            self._add(cells.setdefault(measurement.instrument, {}), measurement)
        for instrument, by_attributes in cells.items():
            for attributes, cell in by_attributes.items():
                if self._is_delta(instrument) and not (cell.count or cell.number):
                    continue
                data = self._point(cell, exemplars.get((instrument.name, attributes), ()))
                yield Point(instrument, data, cell.measurements)

    def _add(self, cells: dict[Attributes, _Cell], measurement: Measurement) -> None:
        instrument, attributes, source, value = measurement
        given = self._given.get((instrument.name, source)) if self._is_delta(instrument) else None
        cell = cells.get(attributes)
        if cell is None:
            if len(cells) >= CARDINALITY_LIMIT - 1:
                attributes = _OVERFLOW
            cell = cells.setdefault(attributes, _Cell(instrument, attributes))
        if given is not None:
            cell.given_unix_ns = min(cell.given_unix_ns or given.unix_ns, given.unix_ns)
        if isinstance(value, Aggregate):
            before = given.value if given is not None else None
            if not _add_aggregate(cell, value, before if isinstance(before, Aggregate) else None):
                return
        elif instrument.kind == "gauge":
            cell.number = max(cell.number, value)
        else:
            cell.number += value
            if given is not None and not isinstance(given.value, Aggregate):
                # What runs backwards took nothing away.
                cell.number -= min(given.value, value)
        cell.measurements.append(measurement)

    def _is_delta(self, instrument: Instrument) -> bool:
        return self._temporality.of(instrument) is AggregationTemporality.DELTA

    def _point(self, cell: _Cell, exemplars: Sequence[Exemplar]) -> DataPointT:
        attributes = dict(cell.attributes)
        divisor = _NS_PER_SECOND if cell.instrument.unit == "s" else 1
        start_unix_ns = self._start_unix_ns
        if self._is_delta(cell.instrument):
            given_unix_ns = cell.given_unix_ns
            start_unix_ns = self._given_unix_ns if given_unix_ns is None else given_unix_ns
            start_unix_ns = min(start_unix_ns, self._time_unix_ns)
        if cell.instrument.kind != "histogram":
            return NumberDataPoint(
                attributes=attributes,
                # A gauge is what is now: it has no beginning.
                start_time_unix_nano=0 if cell.instrument.kind == "gauge" else start_unix_ns,
                time_unix_nano=self._time_unix_ns,
                value=cell.number / divisor if divisor > 1 else min(cell.number, _MAX_INTEGER),
            )
        minimum: Any = None
        maximum: Any = None
        if not self._is_delta(cell.instrument) and cell.minimum is not None:
            minimum, maximum = cell.minimum / divisor, cell.maximum / divisor
        layout = self._layouts.by_unit[cell.instrument.unit]
        common: dict[str, Any] = {
            "attributes": attributes,
            "start_time_unix_nano": start_unix_ns,
            "time_unix_nano": self._time_unix_ns,
            "count": cell.count,
            "sum": cell.number / divisor,
            "min": minimum,
            "max": maximum,
            "exemplars": exemplars,
        }
        if layout.is_explicit:
            buckets = cell.buckets[: len(layout.bounds) + 1] if layout.bounds else [cell.count]
            bounds = [bound / divisor for bound in layout.bounds]
            return HistogramDataPoint(**common, bucket_counts=buckets, explicit_bounds=bounds)
        return ExponentialHistogramDataPoint(
            **common,
            scale=layout.scale,
            zero_count=0,
            positive=_trim(layout.offset, cell.buckets),
            negative=_NO_BUCKETS,
            flags=0,
        )


def _add_aggregate(cell: _Cell, value: Aggregate, before: Aggregate | None) -> bool:
    # The kernel side adds to the sum first and to the bucket last, so a reading can hold
    # a sum without its count. Such a series has nothing to say until the next reading.
    added = value if before is None else aggregate_since(value, before)
    count = added.counted
    if count == 0:
        return False
    cell.count += count
    cell.number += added.sum
    cell.minimum = value.min if cell.minimum is None else min(cell.minimum, value.min)
    cell.maximum = max(cell.maximum, value.max)
    if cell.buckets:
        cell.buckets = list(map(operator.add, cell.buckets, added.buckets))
    else:
        cell.buckets = list(added.buckets)
    return True


def _trim(offset: int, buckets: Sequence[int]) -> Buckets:
    filled = [index for index, count in enumerate(buckets) if count]
    if not filled:
        return _NO_BUCKETS
    first, last = filled[0], filled[-1]
    return Buckets(offset=offset + first, bucket_counts=list(buckets[first : last + 1]))


def metrics_of(points: Iterable[Point], temporality: Temporality) -> dict[str, list[Metric]]:
    """Return points as SDK metrics, by scope name, in the order in which they come."""
    scopes: dict[str, dict[Instrument, list[Any]]] = {}
    for point in points:
        by_instrument = scopes.setdefault(point.instrument.scope, {})
        by_instrument.setdefault(point.instrument, []).append(point.data)
    return {
        scope: [
            _metric(instrument, data, temporality) for instrument, data in by_instrument.items()
        ]
        for scope, by_instrument in scopes.items()
    }


def _metric(instrument: Instrument, points: list[Any], temporality: Temporality) -> Metric:
    kept = temporality.of(instrument)
    data: Sum | Gauge | Histogram | ExponentialHistogram
    if instrument.kind == "gauge":
        data = Gauge(points)
    elif instrument.kind != "histogram":
        data = Sum(points, kept, is_monotonic=instrument.kind == "counter")
    elif isinstance(points[0], HistogramDataPoint):
        data = Histogram(points, kept)
    else:
        data = ExponentialHistogram(points, kept)
    return Metric(instrument.name, instrument.description, instrument.unit, data)
