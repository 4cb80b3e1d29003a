"""
Histogram layouts: the bucket bounds that the kernel side counts with.

The kernel side finds a bucket by binary search: the first bound that is not below
the value. With the bounds made here, its buckets are those of an OpenTelemetry
histogram of the same values in seconds, so nothing is estimated on the way out.
"""

# Some facts about bounds
# -----------------------
#
# Bucket k of an exponential histogram of scale 2 holds 2^(k/4) < seconds <=
# 2^((k+1)/4). Its upper bound in nanoseconds, 2^((k+1)/4) * 10^9, is irrational
# or whole, and durations are whole, so rounding it down moves no duration into
# another bucket. The rounding has to be exact, which floating point is not: x is
# at most the bound when x^4 <= 2^(k+1) * 10^36, and integers decide that.
#
# Near one nanosecond several bounds round to the same number. Binary search takes
# the first of them, which is the right one: the buckets between hold no whole
# nanosecond.

import math
from collections.abc import Iterable
from fractions import Fraction

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.errors import ConfigError
from otel_gpu.options import BucketLayout
from otel_gpu.wire.bodies import Layout

# Four buckets per doubling, from 1 ns to 61 hours.
DURATION_SCALE = 2
DURATION_OFFSET = -120
# One bucket per doubling, from 1 byte to 8 EiB.
SIZE_SCALE = 0
SIZE_OFFSET = -1

# For an explicit layout without bounds: 1 us to 67 s by doubling. The SDK's defaults would put
# nearly every CUDA call in one bucket.
EXPLICIT_DURATION_BOUNDS_NS = tuple(1_000 << k for k in range(27))
# 64 B to 64 GiB in steps of four.
EXPLICIT_SIZE_BOUNDS_BYTES = tuple(64 << 2 * k for k in range(16))

_NS_PER_SECOND = 10**9
_MAX_BOUND = 2**64 - 1


def duration_bounds_ns(config: Config) -> tuple[int, ...]:
    """
    Return the upper bounds of the duration buckets, in nanoseconds, ascending.

    A duration belongs to the first bucket whose bound is not below it, or to the one above the
    last bound.
    """
    if config.histograms.layout == BucketLayout.EXPONENTIAL:
        return tuple(
            _exponential_bound_ns(DURATION_OFFSET + bucket + 1) for bucket in range(wire.MAX_BOUNDS)
        )
    bounds_s = config.histograms.duration_bounds_s
    if not bounds_s:
        return EXPLICIT_DURATION_BOUNDS_NS
    # Through the decimal text: 0.0003 is exact there, unlike the binary number.
    bounds_ns = [math.floor(Fraction(str(bound_s)) * _NS_PER_SECOND) for bound_s in bounds_s]
    return _checked(bounds_ns, "histograms.duration_bounds_s", "whole nanoseconds")


def size_bounds_bytes(config: Config) -> tuple[int, ...]:
    """
    Return the upper bounds of the size buckets, in bytes, ascending.

    A size of 0 belongs to the first bucket.
    """
    if config.histograms.layout == BucketLayout.EXPONENTIAL:
        return tuple(1 << k for k in range(64))
    bounds = config.histograms.size_bounds_bytes
    if not bounds:
        return EXPLICIT_SIZE_BOUNDS_BYTES
    return _checked([int(bound) for bound in bounds], "histograms.size_bounds_bytes", "bytes")


def layout_description(config: Config) -> Layout:
    """Return ``layout`` of RECORD_CAPTURE."""
    if config.histograms.layout == BucketLayout.EXPONENTIAL:
        return {
            "durations": {
                "kind": BucketLayout.EXPONENTIAL,
                "scale": DURATION_SCALE,
                "offset": DURATION_OFFSET,
            },
            "sizes": {"kind": BucketLayout.EXPONENTIAL, "scale": SIZE_SCALE, "offset": SIZE_OFFSET},
        }
    return {
        "durations": {"kind": BucketLayout.EXPLICIT, "bounds_ns": list(duration_bounds_ns(config))},
        "sizes": {"kind": BucketLayout.EXPLICIT, "bounds_bytes": list(size_bounds_bytes(config))},
    }


def _exponential_bound_ns(power: int) -> int:
    # floor(2^(power/4) * 10^9): the fourth root, by two integer square roots.
    fourth_power = _NS_PER_SECOND**4
    fourth_power = fourth_power << power if power >= 0 else fourth_power >> -power
    return math.isqrt(math.isqrt(fourth_power))


def _checked(bounds: Iterable[int], option: str, unit: str) -> tuple[int, ...]:
    checked = tuple(bounds)
    if len(checked) > wire.MAX_BOUNDS:
        raise ConfigError(
            f"{option} has {len(checked)} bounds", hint=f"Give at most {wire.MAX_BOUNDS}."
        )
    if any(low >= high for low, high in zip((0, *checked), (*checked, _MAX_BOUND), strict=True)):
        raise ConfigError(
            f"{option} is not a rising list of positive numbers, in {unit}",
            hint="Give each bound once, the smallest first.",
        )
    return checked
