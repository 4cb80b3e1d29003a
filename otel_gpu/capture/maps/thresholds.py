"""
The duration from which calls of a series are slow, computed from the live histograms.

The threshold is three times the median of the series, and at least the configured floor. Until a series
has ``MINIMUM_CALLS`` calls, the floor applies. A high percentile would not work: once more than that
share of the calls is slow, the percentile is among them and no call is slow any more. The rate limit
of the process bounds how many spans a long tail makes.
"""

from collections import defaultdict
from collections.abc import Iterable

from otel_gpu import wire

MINIMUM_CALLS = 100
_MEDIAN_FACTOR = 3
_METRICS = (wire.METRIC_CALL_DURATION, wire.METRIC_LAUNCH_GAP)


def find_thresholds(
    series: Iterable[tuple[bytes, bytes]], bounds_ns: tuple[int, ...], floor_ns: int
) -> dict[tuple[int, int, int, int], int]:
    """
    Return thresholds in ns of series with enough successful calls, by the fields of ``struct threshold_key``.

    Args:
        series: Keys and values as in the kernel's map.
        bounds_ns: Upper bounds of the duration buckets.
        floor_ns: The lowest threshold.
    """
    counts: dict[tuple[int, int, int, int], list[int]] = defaultdict(lambda: [0] * wire.MAX_BUCKETS)
    for key, value in series:
        fields = wire.AGGREGATE_KEY.named(key)
        if fields["metric"] in _METRICS and not fields["status"]:
            # Launch gaps have no API; their number is 0.
            name = (fields["program_ktime_ns"], fields["pid"], fields["api"], fields["copy_kind"])
            buckets = wire.AGGREGATE.unpack(value)[-wire.MAX_BUCKETS :]
            counts[name] = [a + b for a, b in zip(counts[name], buckets, strict=True)]
    return {
        name: max(floor_ns, _MEDIAN_FACTOR * _upper_bound(merged, sum(merged) / 2, bounds_ns))
        for name, merged in counts.items()
        if sum(merged) >= MINIMUM_CALLS
    }


def _upper_bound(buckets: list[int], rank: float, bounds_ns: tuple[int, ...]) -> int:
    seen = 0
    for count, bound_ns in zip(buckets, bounds_ns, strict=False):
        seen += count
        if seen >= rank:
            return bound_ns
    return bounds_ns[-1]
