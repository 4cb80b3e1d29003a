"""Shapes: parts of a whole, and blocks in a picture."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from otel_gpu.report.document import Cause
from otel_gpu.report.wording.phrases import OTHER, tone_of
from otel_gpu.report.wording.sentences import Name, label_of
from otel_gpu.report.wording.shares import SHOWN_SHARE, largest_first

MOST_ROWS = 200
WIDTH = 100.0


class SharePart(NamedTuple):
    """One part of a whole; ``beside`` is the text after its share."""

    tone: str
    name: Any
    share: float
    beside: str = ""


class Rectangle(NamedTuple):
    """A rectangle in a picture 100 wide and 10 high, with its hover text."""

    tone: str
    left: float
    width: float
    top: float = 0.0
    height: float = 10.0
    kind: str = ""
    title: str = ""
    href: str = ""


class ShareBar(NamedTuple):
    """A bar in a cell, as a share of the longest in its column."""

    tone: str
    share: float


def blocks_of(parts: Iterable[SharePart]) -> list[Rectangle]:
    """Place parts one after another; the rest stays empty."""
    blocks = []
    left = 0.0
    for part in parts:
        width = min(max(part.share, 0.0) * WIDTH, WIDTH - left)
        if width > 0:
            blocks.append(Rectangle(part.tone, left, width))
            left += width
    return blocks


def bar_block(tone: str, share: float) -> list[Rectangle]:
    """Draw one share from the left edge."""
    return [Rectangle(tone, 0.0, min(max(share, 0.0), 1.0) * WIDTH)]


def cause_parts(causes: Iterable[Cause]) -> list[SharePart]:
    """Return the shares of causes."""
    return [SharePart(tone_of(cause.kind), label_of(cause.kind), cause.share) for cause in causes]


def named_parts(
    shares: Mapping[str, float], names: Mapping[str, tuple[str, str]]
) -> list[SharePart]:
    """Return shares by size, in words; those that are too small to matter are left out."""
    ranked = largest_first(shares, SHOWN_SHARE)
    return [SharePart(*names.get(name, (OTHER, Name(name))), share) for name, share in ranked]


def listed(parts: Iterable[object], separator: object = ", ") -> tuple[Any, ...]:
    """Return parts of a sentence with a separator between them."""
    return tuple(one for part in parts for one in (separator, part))[1:]
