"""Which parts of a whole are shown, and in what order."""

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=str | tuple[str, str])
Amount = TypeVar("Amount", int, float)

SHOWN_SHARE = 0.005
"""Parts with a smaller share of a whole are omitted."""


def largest_first(amounts: Mapping[Key, Amount], least: float = 0) -> list[tuple[Key, Amount]]:
    """Return amounts, the largest first, except those below ``least``."""
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, amount) for name, amount in ranked if amount >= least]
