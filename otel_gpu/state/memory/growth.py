"""
Growth: lines of a program that hold more and more memory, and how fast.

A straight line is laid through what each line held at its least in stretches of time, as what a
step of a program takes and gives back is no growth. Nothing is said of what does not fit one, and
nothing while the program only builds up: growth is what stays while the rest comes and goes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from otel_gpu.wire.frames import Frame

MAX_STRETCHES: Final = 128
"""Stretches kept of one device; when there are more, two become one."""
LEAST_READINGS: Final = 8
"""Readings that a line through them needs."""
LEAST_FIT: Final = 0.9
"""R squared of a line that is believed."""
LEAST_GROWN_BYTES: Final = 8 << 20
"""What is less is not worth a word."""
HORIZON: Final = 10
"""How many times as far as was looked back it may be foretold."""

_MAX_LINES = 64
# What a program builds once, it builds in the beginning.
_WARM_UP = 0.25
# In so many of the stretches something else was freed: the program goes on in steps.
_STEPPING = 0.75
_LEAST_SHARE = 0.01
_NS_PER_S = 1_000_000_000


class Trend(NamedTuple):
    """
    How what a line holds grows.

    ``readings`` is how many there were, over ``span_s``; ``grown_bytes`` is by how much.
    """

    place: Frame
    bytes_per_s: float
    r_squared: float
    readings: int
    span_s: float
    grown_bytes: int


class _Stretch(NamedTuple):
    unix_ns: int
    frees: int
    least_bytes: Mapping[Frame, int]


class Growths:
    """What the lines of one device held over time; bounded."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []

    def add(self, unix_ns: int, frees: int, held: Iterable[tuple[Frame, int]]) -> None:
        """
        Take in a reading.

        Args:
            unix_ns: When it was made.
            frees: How many blocks were freed until then.
            held: Places, and what each holds.
        """
        most = sorted(held, key=lambda item: -item[1])[:_MAX_LINES]
        self._stretches.append(_Stretch(unix_ns, frees, dict(most)))
        if len(self._stretches) > MAX_STRETCHES:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=False)
            rest = self._stretches[-1:] if len(self._stretches) % 2 else []
            self._stretches = [_merge(*pair) for pair in pairs] + rest

    def trends(self) -> tuple[Trend, ...]:
        """Return the lines that hold more and more, the fastest first."""
        stretches = self._stretches[int(len(self._stretches) * _WARM_UP) :]
        if len(stretches) < LEAST_READINGS or not _is_stepping(stretches):
            return ()
        found = sorted(_trends(stretches), key=lambda trend: (-trend.bytes_per_s, trend.place))
        return tuple(found)


def _merge(one: _Stretch, other: _Stretch) -> _Stretch:
    least = {
        place: min(size_bytes, other.least_bytes[place])
        for place, size_bytes in one.least_bytes.items()
        if place in other.least_bytes
    }
    return other._replace(least_bytes=least)


def _is_stepping(stretches: Sequence[_Stretch]) -> bool:
    freeing = sum(one.frees < other.frees for one, other in pairwise(stretches))
    return freeing >= _STEPPING * (len(stretches) - 1)


def _trends(stretches: Sequence[_Stretch]) -> Iterator[Trend]:
    last = stretches[-1].least_bytes
    times_s = [(one.unix_ns - stretches[0].unix_ns) / _NS_PER_S for one in stretches]
    if times_s[-1] <= 0:
        return
    least_bytes = max(LEAST_GROWN_BYTES, _LEAST_SHARE * sum(last.values()))
    for place in last:
        sizes = [one.least_bytes.get(place, 0) for one in stretches]
        if sizes[-1] - sizes[0] < least_bytes:
            continue
        slope, fit = fit_line(times_s, sizes)
        if slope > 0 and fit >= LEAST_FIT:
            grown_bytes = sizes[-1] - sizes[0]
            yield Trend(place, slope, fit, len(sizes), times_s[-1], grown_bytes)


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


def full_in_s(trends: Sequence[Trend], room_bytes: int | None) -> float | None:
    """
    Return when a device is full if all goes on like that; None: not known, or too far away.

    Args:
        trends: What grows on it.
        room_bytes: What is left.
    """
    per_s = sum(trend.bytes_per_s for trend in trends)
    if room_bytes is None or per_s <= 0:
        return None
    in_s = max(0, room_bytes) / per_s
    return in_s if in_s <= HORIZON * max(trend.span_s for trend in trends) else None
