"""
Growth: lines of a program that hold more and more memory, and how fast.

A straight line is fitted to the minimum that each line of code held in windows, as memory that a
step of a program takes and releases is not growth. Growth that does not fit is not reported, and
none while the program only builds up: growth is what stays while the rest comes and goes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from otel_gpu.wire.frames import Frame

MAX_WINDOWS: Final = 128
"""Windows kept of one device. Beyond that, pairs are merged."""
LEAST_READINGS: Final = 8
"""The least number of windows for a fit."""
LEAST_FIT: Final = 0.9
"""The least R squared of a fit."""
LEAST_GROWN_BYTES: Final = 8 << 20
"""Less growth is not reported."""
HORIZON: Final = 10
"""The limit of a forecast, as a multiple of the observed time."""

_MAX_LINES = 64
# What a program builds once, it builds in the beginning.
_WARM_UP = 0.25
# In this share of the windows something else was freed: the program runs in steps.
_STEPPING = 0.75
_LEAST_SHARE = 0.01
_NS_PER_S = 1_000_000_000


class Trend(NamedTuple):
    """
    The growth of what a line holds.

    ``readings`` is the number of windows, over ``span_s``; ``grown_bytes`` is the growth in all.
    """

    place: Frame
    bytes_per_s: float
    r_squared: float
    readings: int
    span_s: float
    grown_bytes: int


class _Window(NamedTuple):
    unix_ns: int
    frees: int
    least_bytes: Mapping[Frame, int]


class Growths:
    """What the lines of one device held over time; bounded."""

    def __init__(self) -> None:
        self._windows: list[_Window] = []

    def add(self, unix_ns: int, frees: int, held: Iterable[tuple[Frame, int]]) -> None:
        """
        Add a reading.

        Args:
            unix_ns: When it was made.
            frees: How many blocks were freed until then.
            held: Places, and what each holds.
        """
        most = sorted(held, key=lambda item: -item[1])[:_MAX_LINES]
        self._windows.append(_Window(unix_ns, frees, dict(most)))
        if len(self._windows) > MAX_WINDOWS:
            pairs = zip(self._windows[::2], self._windows[1::2], strict=False)
            rest = self._windows[-1:] if len(self._windows) % 2 else []
            self._windows = [_merge(*pair) for pair in pairs] + rest

    def trends(self) -> tuple[Trend, ...]:
        """Return the lines that hold more and more, the fastest first."""
        windows = self._windows[int(len(self._windows) * _WARM_UP) :]
        if len(windows) < LEAST_READINGS or not _is_stepping(windows):
            return ()
        found = sorted(_trends(windows), key=lambda trend: (-trend.bytes_per_s, trend.place))
        return tuple(found)


def _merge(one: _Window, other: _Window) -> _Window:
    least = {
        place: min(size_bytes, other.least_bytes[place])
        for place, size_bytes in one.least_bytes.items()
        if place in other.least_bytes
    }
    return other._replace(least_bytes=least)


def _is_stepping(windows: Sequence[_Window]) -> bool:
    freeing = sum(one.frees < other.frees for one, other in pairwise(windows))
    return freeing >= _STEPPING * (len(windows) - 1)


def _trends(windows: Sequence[_Window]) -> Iterator[Trend]:
    last = windows[-1].least_bytes
    times_s = [(one.unix_ns - windows[0].unix_ns) / _NS_PER_S for one in windows]
    if times_s[-1] <= 0:
        return
    least_bytes = max(LEAST_GROWN_BYTES, _LEAST_SHARE * sum(last.values()))
    for place in last:
        sizes = [one.least_bytes.get(place, 0) for one in windows]
        if sizes[-1] - sizes[0] < least_bytes:
            continue
        slope, fit = fit_line(times_s, sizes)
        if slope > 0 and fit >= LEAST_FIT:
            grown_bytes = sizes[-1] - sizes[0]
            yield Trend(
                place=place,
                bytes_per_s=slope,
                r_squared=fit,
                readings=len(sizes),
                span_s=times_s[-1],
                grown_bytes=grown_bytes,
            )


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the straight line through points, and its R squared."""
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    across = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread_x = sum((x - mean_x) ** 2 for x in xs)
    spread_y = sum((y - mean_y) ** 2 for y in ys)
    if not spread_x or not spread_y:
        return 0.0, 0.0
    return across / spread_x, min(1.0, across * across / (spread_x * spread_y))


def full_in_s(trends: Sequence[Trend], free_bytes: int | None) -> float | None:
    """
    Return when a device is full at the present rates, in seconds; None: not known, or too far away.

    Args:
        trends: The growth on it.
        free_bytes: What is left.
    """
    per_s = sum(trend.bytes_per_s for trend in trends)
    if free_bytes is None or per_s <= 0:
        return None
    in_s = max(0, free_bytes) / per_s
    return in_s if in_s <= HORIZON * max(trend.span_s for trend in trends) else None
