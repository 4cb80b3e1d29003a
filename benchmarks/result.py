"""A measured figure, the floor it stands on, and the bound that it has to hold."""

from statistics import median
from typing import NamedTuple


class Result(NamedTuple):
    """
    One line of the report.

    ``value`` and ``floor`` were measured in the same run, in ``unit``. ``ratio`` is
    what the bound speaks of: value to floor where the bound is a share of the
    floor, else value to the bound itself. ``held`` is None where a decision hangs
    on the figure and no bound.
    """

    what: str
    value: float
    unit: str
    floor: float
    floor_is: str
    ratio: float
    bound: str
    held: bool | None
    note: str = ""

    def line(self) -> str:
        """Return the result as text of one line, and its note below."""
        verdict = {True: "held", False: "NOT HELD", None: "-"}[self.held]
        text = (
            f"{self.what:<44} {_number(self.value):>9} {self.unit:<8} "
            f"floor {_number(self.floor):>9} ({self.floor_is}); "
            f"ratio {self.ratio:.3f}; bound {self.bound}: {verdict}"
        )
        return f"{text}\n    {self.note}" if self.note else text


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(values: list[float]) -> str:
    """Say how far the rounds lie apart: the middle half of them."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    low, high = ordered[quarter], ordered[-quarter - 1]
    return (
        f"{_number(median(ordered))} (middle half {_number(low)} to {_number(high)}, "
        f"{len(ordered)} rounds)"
    )
