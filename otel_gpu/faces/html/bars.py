"""
Bars: shares of a whole, drawn without a word of their own.

A drawing has no inline style, which the page's policy forbids: lengths are attributes of
SVG, and colours come by class.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_gpu.faces.html.elements import Child, Markup, element, number
from otel_gpu.findings.words import format_share

_WIDTH = 100.0


class Part(NamedTuple):
    """One part of a whole; ``told`` is what a reader is told beside its share."""

    tone: str
    name: Child
    share: float
    told: Child = None


def stack(parts: Iterable[Part], about: str) -> Markup:
    """Draw parts one after the other; what they do not fill stays empty."""
    drawn = []
    left = 0.0
    for part in parts:
        width = min(max(part.share, 0.0) * _WIDTH, _WIDTH - left)
        if width > 0:
            drawn.append(block(part.tone, left, width))
            left += width
    return drawing("stack", about, drawn)


def block(tone: str, left: float, width: float, *, kind: str = "") -> Markup:
    """Draw one block, from the left edge in hundredths of the width."""
    return element(
        "rect",
        class_=f"tone-{tone} {kind}".rstrip(),
        x=number(left),
        width=number(width),
        y="0",
        height="10",
    )


def drawing(kind: str, about: str, drawn: Child, *, height: int | None = None) -> Markup:
    """
    Put blocks into a picture as wide as there is room.

    Args:
        kind: Its class.
        about: What it shows, for those who do not see it; empty: it is decoration.
        drawn: What is in it.
        height: In pixels, where its class does not say.
    """
    return element(
        "svg",
        drawn,
        class_=kind,
        height=height,
        viewBox=f"0 0 {_WIDTH:.0f} 10",
        preserveAspectRatio="none",
        role="img" if about else None,
        aria_label=about or None,
        aria_hidden=None if about else "true",
    )


def swatch(tone: str) -> Markup:
    """A dab of colour, for a legend."""
    return element("span", class_=f"swatch tone-{tone}")


def legend(parts: Sequence[Part]) -> Markup:
    """Name the parts of a bar, with their shares."""
    return element(
        "ul",
        [
            element(
                "li",
                swatch(part.tone),
                element("span", part.name, class_="name"),
                " ",
                element("b", format_share(part.share)),
                [" ", element("span", part.told, class_="quiet")] if part.told else None,
            )
            for part in parts
        ],
        class_="legend",
    )
