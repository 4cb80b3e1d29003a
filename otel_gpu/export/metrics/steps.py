"""Steps of threads: a histogram of all, and spans of slow ones."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_gpu import wire
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import HistogramLayout, Measurement
from otel_gpu.export.spans.descriptions import Pairs, add_thread
from otel_gpu.state.steps import SlowStep, duration_of
from otel_gpu.wire.readings import Aggregate

_NS_PER_S: Final = 1e9
_UNKNOWN: Final = "unknown"
_KINDS: Final[Mapping[int, str]] = semconv.GPU_STEP_KIND_VALUES
_SOURCES: Final[Mapping[int, str]] = semconv.GPU_STEP_SOURCE_VALUES


@dataclass(slots=True, eq=False)
class _Totals:
    sum_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    count: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * wire.MAX_BUCKETS)


class StepHistograms:
    """The steps of one process, by kind and by source."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], _Totals] = {}

    def add(self, activity: StepActivity, layout: HistogramLayout) -> None:
        """Count a step; ``layout`` is that of durations."""
        event, duration_ns = activity.event, duration_of(activity)
        names = _KINDS.get(event.kind, _UNKNOWN), _SOURCES.get(event.source, _UNKNOWN)
        totals = self._totals.setdefault(names, _Totals())
        totals.min_ns = min(totals.min_ns, duration_ns) if totals.count else duration_ns
        totals.max_ns = max(totals.max_ns, duration_ns)
        totals.sum_ns += duration_ns
        totals.count += 1
        totals.buckets[bucket_of(duration_ns, layout)] += 1

    def measurements(self) -> Iterator[Measurement]:
        """Yield ``gpu.step.duration``."""
        for (kind, source), one in self._totals.items():
            attributes = ((semconv.GPU_STEP_KIND, kind), (semconv.GPU_STEP_SOURCE, source))
            counted = Aggregate(
                one.sum_ns, one.min_ns, max=one.max_ns, size_bytes=0, buckets=tuple(one.buckets)
            )
            yield Measurement(
                semconv.METRIC_GPU_STEP_DURATION,
                attributes,
                source=("steps", kind, source),
                value=counted,
            )


def bucket_of(duration_ns: int, layout: HistogramLayout) -> int:
    """
    Return the bucket of a duration; near a bound of an exponential layout it can be the next one.
    """
    if layout.bounds is not None:
        return min(bisect_left(layout.bounds, duration_ns), wire.MAX_BUCKETS - 1)
    per_doubling = 2.0**layout.scale
    position = math.ceil(math.log2(max(duration_ns, 1) / _NS_PER_S) * per_doubling) - 1
    return min(max(position - layout.offset, 0), wire.MAX_BUCKETS - 1)


def describe_slow(step: SlowStep) -> Pairs:
    """Return the attributes of the span of a slow step."""
    event = step.activity.event
    pairs: Pairs = [
        (semconv.GPU_STEP_KIND, _KINDS.get(event.kind, _UNKNOWN)),
        (semconv.GPU_STEP_SOURCE, _SOURCES.get(event.source, _UNKNOWN)),
        (semconv.GPU_STEP_NUMBER, event.number),
        (semconv.GPU_STEP_CONFIDENCE, event.confidence_percent / 100),
        (semconv.GPU_STEP_USUAL_TIME, step.usual_ns / _NS_PER_S),
    ]
    if event.name:
        pairs.append((semconv.GPU_STEP_NAME, event.name))
    if event.loader_wait_ns:
        pairs.append((semconv.GPU_STEP_LOADER_WAIT, event.loader_wait_ns / _NS_PER_S))
    add_thread(pairs, event.tid, event.comm)
    return pairs
