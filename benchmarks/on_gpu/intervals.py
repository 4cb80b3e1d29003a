"""How sure a figure is that was measured a few times."""

import random
from collections.abc import Sequence
from statistics import median
from typing import TypedDict

_RESAMPLES = 2_000


class Interval(TypedDict):
    """The median of some rounds, and between which bounds it lies with 95 % confidence."""

    median: float
    low: float
    high: float
    rounds: int


def interval_of(values: Sequence[float]) -> Interval:
    """Return the median and its bootstrap interval; at least one value."""
    # The same values give the same bounds.
    chooser = random.Random(1)  # noqa: S311
    medians = sorted(median(chooser.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    edge = len(medians) // 40
    return {
        "median": median(values),
        "low": medians[edge],
        "high": medians[-edge - 1],
        "rounds": len(values),
    }
