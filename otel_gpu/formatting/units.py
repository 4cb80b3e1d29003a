"""How durations, sizes, shares and counts are written, wherever somebody reads them."""

import math

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_THREE_DIGITS = 100
_ROUNDED_TO_NOTHING = 0.005


def format_duration(duration_ns: float) -> str:
    """Three digits and a unit; nothing for a duration that is not known."""
    return "" if math.isnan(duration_ns) else _with_unit(duration_ns, _DURATIONS)


def format_size(size_bytes: float) -> str:
    """Three digits and a decimal unit, as in 1.5 GB."""
    return _with_unit(size_bytes, _SIZES)


def format_share(share: float) -> str:
    """A share of 1 in percent; what is there is never said to be nothing."""
    if 0 < share < _ROUNDED_TO_NOTHING:
        return "<1 %"
    return f"{share * 100:.0f} %"


def count_of(count: int, noun: str) -> str:
    """A count and what of: 1 call, 1,000 calls, 2 launches, 2 entries."""
    return f"{count:,} {noun if count == 1 else plural_of(noun)}"


def counted(count: int, plural: str) -> str:
    """
    What a count is of, from a phrase in plural.

    1 is of an ``activity of devices``, 2 of ``activities of devices``; of the first word in plural only.
    """
    head, separator, rest = plural.partition(" ")
    if count != 1 or not head.endswith("s") or head.endswith("ss"):
        return plural
    singular = f"{head[:-3]}y" if head.endswith("ies") else head[:-1]
    return f"{singular}{separator}{rest}"


def plural_of(noun: str) -> str:
    """A noun for any number but one."""
    if noun.endswith("y") and not noun.endswith(("ay", "ey", "oy")):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def _with_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next((pair for pair in units if abs(amount) >= pair[0]), units[-1])
    value = amount / size
    if abs(value) >= _THREE_DIGITS or size == 1:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}"
