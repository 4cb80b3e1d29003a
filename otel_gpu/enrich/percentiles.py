"""
Percentiles, estimated from the buckets that the kernel counted in.

A histogram has the bucket of a percentile, and not its place there. The estimate is the bucket's
geometric middle, limited to the smallest and largest value seen: with four buckets per doubling it
is at most 9 % off.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

from otel_gpu import wire
from otel_gpu.options import BucketLayout
from otel_gpu.wire.bodies import Buckets, Layout

_NS_PER_S = 1e9


def bucket_middles_ns(durations: Buckets) -> tuple[float, ...]:
    """
    Return the value that stands for each bucket, in nanoseconds.

    Args:
        durations: ``layout.durations`` of a capture. The bucket above the last explicit bound has
            no middle;
          infinity stands for it.
    """
    if durations["kind"] == BucketLayout.EXPONENTIAL:
        per_doubling = 2.0 ** durations["scale"]
        return tuple(
            2.0 ** ((durations["offset"] + bucket + 0.5) / per_doubling) * _NS_PER_S
            for bucket in range(wire.MAX_BUCKETS)
        )
    bounds_ns = durations["bounds_ns"]
    between = (math.sqrt(low * high) for low, high in itertools.pairwise(bounds_ns))
    middles = [bounds_ns[0] / 2, *between]
    return (*middles, *[math.inf] * (wire.MAX_BUCKETS - len(middles)))


def known_middles(layout: Layout, name: Literal["durations", "sizes"]) -> Sequence[float]:
    """
    Return the value that stands for each bucket; empty: none can be computed.

    Args:
        layout: That of a capture.
        name: ``durations``, in nanoseconds, or ``sizes``, in bytes.
    """
    try:
        if name == "durations":
            return bucket_middles_ns(layout["durations"])
        part = layout["sizes"]
        middles = bucket_middles_ns({**part, "bounds_ns": part.get("bounds_bytes", [])})
    except (KeyError, IndexError, OverflowError):
        return ()
    # Exponential ones are in nanoseconds, whatever they measure.
    scale = 1 / _NS_PER_S if part["kind"] == BucketLayout.EXPONENTIAL else 1
    return [middle * scale for middle in middles]


def percentile_ns(
    share: float, buckets: Sequence[int], middles_ns: Sequence[float], min_ns: int, max_ns: int
) -> float:
    """
    Return the duration that this share (0 to 1) of the calls does not exceed.

    At least one call must have been counted.
    """
    rank = max(1, math.ceil(share * sum(buckets)))
    reached = itertools.accumulate(buckets)
    bucket = next(index for index, count in enumerate(reached) if count >= rank)
    return min(max(middles_ns[bucket], min_ns), max_ns)
