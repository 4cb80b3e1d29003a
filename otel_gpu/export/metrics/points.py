"""
Points: the kernel's counts as data points of the OpenTelemetry SDK.

A measurement is one cumulative value from one source. Measurements with the same instrument and
attributes become one point. Values of instruments in seconds stay nanoseconds until the point is
made, so that sums and differences are exact.
"""

# Some facts about temporality
# ----------------------------
# The kernel side counts from the start of a program and never forgets, so it holds cumulative
# points. A delta is the difference from what was last exported to the sink successfully: after a
# failure the next delta covers both intervals and starts where the last success ended.
# Differences are taken per measurement and summed afterwards. Attributes can change (a device's
# UUID becomes known later); a difference between points would then count everything before that
# time twice.
# The kernel's minimum and maximum cover the whole life of a series. Those of one interval are
# unknown, so delta points have none.

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics import export as sdk

from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.export.semconv import Instrument
from otel_gpu.options import BucketLayout
from otel_gpu.state.differences import aggregate_since
from otel_gpu.wire.bodies import Buckets
from otel_gpu.wire.readings import Aggregate

_NS_PER_SECOND = 10**9
_MAX_INTEGER = 2**63 - 1
_NO_BUCKETS = sdk.Buckets(offset=0, bucket_counts=())

Attributes = tuple[tuple[str, str | int | bool], ...]
Value = int | float | Aggregate


class Measurement(NamedTuple):
    """
    A cumulative value, or a gauge's current one; ``source`` stays the same when attributes change.
    """

    instrument: Instrument
    attributes: Attributes
    source: Hashable
    value: Value


class Given(NamedTuple):
    """The last value of a measurement that a sink received, and its time."""

    value: Value
    unix_ns: int


class HistogramLayout(NamedTuple):
    """Bounds of one kind of histogram, in nanoseconds or bytes; None: it is exponential."""

    scale: int
    offset: int
    bounds: tuple[int, ...] | None


def read_layouts(capture: CaptureActivity) -> Mapping[str, HistogramLayout]:
    """Return the layouts of RECORD_CAPTURE by unit; ``wire/histogram_layout.py`` writes them."""
    layout = capture.info["layout"]
    return {
        "s": _read_layout(layout["durations"], layout["durations"].get("bounds_ns")),
        "By": _read_layout(layout["sizes"], layout["sizes"].get("bounds_bytes")),
    }


def _read_layout(layout: Buckets, bounds: Sequence[int] | None) -> HistogramLayout:
    if bounds is not None and layout["kind"] == BucketLayout.EXPLICIT:
        return HistogramLayout(0, 0, tuple(bounds))
    return HistogramLayout(layout["scale"], layout["offset"], None)


@dataclass(slots=True, eq=False)
class PointAccumulator:
    """Accumulates the measurements of one instrument and attribute set into a point."""

    instrument: Instrument
    attributes: Attributes
    is_delta: bool
    given_unix_ns: int | None = None
    number: int | float = 0
    count: int = 0
    minimum: int | None = None
    maximum: int = 0
    buckets: list[int] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    def add(self, measurement: Measurement, given: Given | None) -> None:
        """Add a measurement; ``given`` is the value that a delta sink has of it."""
        value, before = measurement.value, None
        if given is not None:
            before = given.value
            self.given_unix_ns = min(self.given_unix_ns or given.unix_ns, given.unix_ns)
        if isinstance(value, Aggregate):
            if not self._add_aggregate(value, before):
                return
        elif self.instrument.kind == "gauge":
            self.number = max(self.number, value)
        else:
            self.number += value
            if before is not None and not isinstance(before, Aggregate):
                # A value that went backwards counts as unchanged.
                self.number -= min(before, value)
        self.measurements.append(measurement)

    def _add_aggregate(self, value: Aggregate, before: Value | None) -> bool:
        # The kernel side adds to the sum first and to the bucket last, so a reading can hold a sum
        # without its count. Such a series is skipped until the next reading.
        added = aggregate_since(value, before) if isinstance(before, Aggregate) else value
        count = added.counted
        if count == 0:
            return False
        self.count += count
        self.number += added.sum
        self.minimum = value.min if self.minimum is None else min(self.minimum, value.min)
        self.maximum = max(self.maximum, value.max)
        if self.buckets:
            self.buckets = list(map(operator.add, self.buckets, added.buckets))
        else:
            self.buckets = list(added.buckets)
        return True

    def point(
        self,
        layouts: Mapping[str, HistogramLayout],
        times_unix_ns: tuple[int, int],
        exemplars: Sequence[Exemplar],
    ) -> sdk.DataPointT:
        """Return the SDK's data point, from one time to another."""
        divisor = _NS_PER_SECOND if self.instrument.unit == "s" else 1
        start_unix_ns, time_unix_ns = times_unix_ns
        if self.instrument.kind != "histogram":
            return sdk.NumberDataPoint(
                attributes=dict(self.attributes),
                # A gauge is a current value: it has no start.
                start_time_unix_nano=0 if self.instrument.kind == "gauge" else start_unix_ns,
                time_unix_nano=time_unix_ns,
                value=self.number / divisor if divisor > 1 else min(self.number, _MAX_INTEGER),
            )
        has_extremes = not self.is_delta and self.minimum is not None
        layout = layouts[self.instrument.unit]
        common: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "start_time_unix_nano": start_unix_ns,
            "time_unix_nano": time_unix_ns,
            "count": self.count,
            "sum": self.number / divisor,
            "min": (self.minimum or 0) / divisor if has_extremes else None,
            "max": self.maximum / divisor if has_extremes else None,
            "exemplars": exemplars,
        }
        if layout.bounds is not None:
            buckets = self.buckets[: len(layout.bounds) + 1]
            bounds = [bound / divisor for bound in layout.bounds]
            return sdk.HistogramDataPoint(**common, bucket_counts=buckets, explicit_bounds=bounds)
        return sdk.ExponentialHistogramDataPoint(
            **common,
            scale=layout.scale,
            zero_count=0,
            positive=_trim(layout.offset, self.buckets),
            negative=_NO_BUCKETS,
            flags=0,
        )


def _trim(offset: int, buckets: Sequence[int]) -> sdk.Buckets:
    filled = [index for index, count in enumerate(buckets) if count]
    if not filled:
        return _NO_BUCKETS
    first, last = filled[0], filled[-1]
    return sdk.Buckets(offset=offset + first, bucket_counts=list(buckets[first : last + 1]))
