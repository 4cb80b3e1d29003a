"""Durations, sizes, shares and counts as text for people."""

import math

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_THREE_DIGITS = 100
_ROUNDED_TO_NOTHING = 0.005


def format_duration(duration_ns: float) -> str:
    """Return three digits and a unit; an unknown duration (NaN) is empty."""
    return "" if math.isnan(duration_ns) else _with_unit(duration_ns, _DURATIONS)


def format_size(size_bytes: float) -> str:
    """Return three digits and a decimal unit, as in 1.5 GB."""
    return _with_unit(size_bytes, _SIZES)


def format_share(share: float) -> str:
    """Return a share of 1 in percent; a small one is ``<1 %``, never ``0 %``."""
    if 0 < share < _ROUNDED_TO_NOTHING:
        return "<1 %"
    return f"{share * 100:.0f} %"


def count_of(count: int, singular: str) -> str:
    """Return a count with its unit: 1 call, 1,000 calls, 2 launches, 2 entries."""
    return f"{count:,} {singular if count == 1 else plural_of(singular)}"


def counted(count: int, plural: str) -> str:
    """
    Return the unit of a count from its plural: ``activities of devices``, for 1 ``activity of devices``.

    Only a first word in plural changes.
    """
    head, separator, rest = plural.partition(" ")
    if count != 1 or not head.endswith("s") or head.endswith("ss"):
        return plural
    singular = f"{head[:-3]}y" if head.endswith("ies") else head[:-1]
    return f"{singular}{separator}{rest}"


def plural_of(singular: str) -> str:
    """Return the plural of a word or phrase."""
    if singular.endswith("y") and not singular.endswith(("ay", "ey", "oy")):
        return f"{singular[:-1]}ies"
    return f"{singular}{'es' if singular.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def _with_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next((pair for pair in units if abs(amount) >= pair[0]), units[-1])
    value = amount / size
    if abs(value) >= _THREE_DIGITS or size == 1:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}"
