"""
From which duration a call is slow, by series, learnt from the live histograms.

A call is slow when it takes at least three times the median of its series, and never
below the configured floor. Until a series has enough calls to say what is usual, the
floor stands in for it. A percentile of the tail would not do: once more than that share
of the calls is slow, it lies among them, and nothing would be chosen any more. How many
spans a long tail makes is bounded by the rate of the process.
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
    Return a threshold in ns for each series of successful calls that has enough of them.

    By the fields of ``struct threshold_key``.

    Args:
        series: Keys and values as the kernel has them.
        bounds_ns: Upper bounds of the duration buckets.
        floor_ns: No threshold is lower.
    """
    counts: dict[tuple[int, int, int, int], list[int]] = defaultdict(lambda: [0] * wire.MAX_BUCKETS)
    for key, value in series:
        fields = wire.AGGREGATE_KEY.named(key)
        if fields["metric"] in _METRICS and not fields["status"]:
            # Gaps have no API: their threshold is under number 0.
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
