"""Which parts of a whole are shown, and in what order."""

from collections.abc import Mapping
from typing import TypeVar

from otel_gpu.formatting.printable import printable
from otel_gpu.formatting.units import format_share

Key = TypeVar("Key", bound=str | tuple[str, str])
Amount = TypeVar("Amount", int, float)
Name = TypeVar("Name", bound=str)

SHOWN_SHARE = 0.005
"""Parts with a smaller share of a whole are omitted."""


def largest_first(amounts: Mapping[Key, Amount], least: float = 0) -> list[tuple[Key, Amount]]:
    """Return amounts, the largest first, except those below ``least``."""
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, amount) for name, amount in ranked if amount >= least]


def describe_shares(shares: Mapping[Name, float], most: int | None = None) -> str:
    """Return the largest shares in brackets, to follow what they are of; empty: none is shown."""
    ranked = largest_first(shares, SHOWN_SHARE)[:most]
    texts = (f"{printable(name)} {format_share(share)}" for name, share in ranked)
    return f" ({', '.join(texts)})" if ranked else ""
