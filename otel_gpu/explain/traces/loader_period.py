"""
Whether a program waits for its data loader at regular steps, as for workers that end together.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

LONG: Final = 3.0
"""Times the usual wait of a step: from there on a wait is long."""

_FEWEST = 3
_SHARE = 0.8
_LEAST_NS = 100_000


class LoaderPeriod(NamedTuple):
    """Every ``period``-th step waits: ``long`` of ``steps``."""

    period: int
    long: int
    steps: int


def find_loader_period(waits_ns: Sequence[int]) -> LoaderPeriod | None:
    """
    Return the period of long waits; None: there is none, or there are too few waits.

    Args:
        waits_ns: How long each step waited, in order.
    """
    if not waits_ns:
        return None
    # With a period of two, half of the waits are long.
    usual_ns = sorted(waits_ns)[len(waits_ns) // 3]
    least_ns = max(LONG * usual_ns, _LEAST_NS)
    long = [step for step, wait_ns in enumerate(waits_ns) if wait_ns > least_ns]
    distances = [after - before for before, after in pairwise(long)]
    if len(long) < _FEWEST:
        return None
    period = round(median(distances))
    alike = sum(distance == period for distance in distances)
    # Irregular distances count against a period.
    if period < 2 or alike < _SHARE * len(distances):  # noqa: PLR2004 -- not a period
        return None
    return LoaderPeriod(period, len(long), len(waits_ns))
