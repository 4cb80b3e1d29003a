"""
Flame graphs: folded stacks as one picture, in SVG or as a page that needs nothing else.

A box is a frame, its width what all stacks through it weigh, and below it lie the frames
that it called; the process is at the top. Boxes that lie side by side are in alphabetical
order: from left to right there is no time.

The page holds one script and one style, which never change, and a policy that allows those
by their hashes and loads nothing.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from markupsafe import Markup

from otel_gpu.faces.folded import FoldedFrame, FoldedStack, fold
from otel_gpu.faces.html.markup import ENVIRONMENT, as_source, hash_of, source
from otel_gpu.findings.words import format_duration, format_size, printable

__all__ = ["SCRIPT", "draw_flamegraph", "draw_key", "flamegraph_page", "fold"]

WIDTH = 1200
ROW = 17
MAX_BOXES = 10_000
"""More cannot be distinguished; the narrowest are left out, and counted."""
MAX_CHARACTERS = 640
"""Of the text of one box; a longer one loses its middle."""

_LEAST_WIDTH = 0.5
_CHARACTER = 6.6
_PADDING = 3
# What a frame is, in a word and in hue, saturation and lightness, which its name varies.
_TYPES: Mapping[str, tuple[str, tuple[int, int, int]]] = {
    "process": ("process", (0, 0, 82)),
    "cpython": ("Python", (211, 65, 70)),
    "native": ("native", (35, 80, 68)),
    "cuda": ("CUDA", (93, 50, 60)),
    "kernel": ("kernel", (0, 60, 70)),
    "cut": ("left out", (0, 0, 90)),
}
_OTHER_COLOUR = (280, 30, 75)
_UNITS = {"time": format_duration, "bytes": format_size}

SCRIPT = source("flamegraph.js")
"""For pages with flame graphs: fits them to the screen, and lets a click enlarge a box."""

_STYLE = as_source("""
body { font: 14px sans-serif; margin: 1em; color: #222; background: #fff; }
h1 { font-size: 1.2em; } p { margin: .4em 0; overflow-wrap: anywhere; }
svg.flamegraph { width: 100%; height: auto; } svg.flamegraph g { cursor: pointer; }
.flame-key { list-style: none; padding: 0; } .flame-key li { display: inline; margin-right: 1em; }
""")


class _Box(NamedTuple):
    frame: FoldedFrame
    weight: int
    depth: int
    x: float
    width: float


def draw_flamegraph(stacks: Iterable[FoldedStack], by: str, *, most: int = MAX_BOXES) -> Markup:
    """
    Return the picture, by ``time``, ``calls`` or ``bytes``, as an SVG element without inline style.

    Without ``SCRIPT`` it still shows the whole text of a box that is pointed at.
    """
    ordered = sorted(stacks)
    total = sum(stack.weight for stack in ordered)
    every = list(_lay_out(ordered, WIDTH / total)) if total > 0 else []
    wide = [box for box in every if box.width >= _LEAST_WIDTH]
    # Nothing is narrower than what lies below it, and the sort is stable.
    boxes = sorted(wide, key=lambda box: -box.width)[:most]
    rows = 1 + max((box.depth for box in boxes), default=0)
    drawn = [_draw(box, total, by) for box in boxes]
    return _render("picture", drawn, by, WIDTH, rows * ROW, len(every) - len(boxes))


def draw_key(stacks: Iterable[FoldedStack]) -> Markup:
    """Return what the colours of a picture mean, as a list for a page of HTML."""
    kinds = {frame.type for stack in stacks for frame in stack.frames}
    keys = [(_colour(kind, ""), word) for kind, (word, _) in _TYPES.items() if kind in kinds]
    return _render("key", keys)


def flamegraph_page(stacks: Iterable[FoldedStack], by: str, title: str) -> str:
    """Return a whole page with the picture, which a click enlarges."""
    drawn = list(stacks)
    policy = f"default-src 'none'; style-src {hash_of(_STYLE)}; script-src {hash_of(SCRIPT)}"
    key, picture = draw_key(drawn), draw_flamegraph(drawn, by)
    return _render("page", title, by, policy, _STYLE, SCRIPT, key, picture)


def _render(macro: str, *values: object) -> Markup:
    found = getattr(ENVIRONMENT.get_template("flamegraph.html").module, macro)(*values)
    return Markup(found)  # noqa: S704 -- a macro's, which has escaped what is in it


def _lay_out(stacks: list[FoldedStack], scale: float) -> Iterator[_Box]:
    # No recursion: a stack may be deep. What is too narrow is not looked into.
    waiting = [(FoldedFrame("all", "process"), stacks, 0, 0.0)]
    while waiting:
        frame, through, depth, x = waiting.pop()
        weight = sum(stack.weight for stack in through)
        yield _Box(frame, weight, depth, x, weight * scale)
        if weight * scale >= _LEAST_WIDTH:
            deeper = [stack for stack in through if len(stack.frames) > depth]
            children = [stack.frames[depth] for stack in deeper]
            for child, group in itertools.groupby(
                zip(children, deeper, strict=True), itemgetter(0)
            ):
                inside = [stack for _, stack in group]
                waiting.append((child, inside, depth + 1, x))
                x += sum(stack.weight for stack in inside) * scale


def _draw(box: _Box, total: int, by: str) -> dict[str, Any]:
    """Return a box as the template writes it."""
    room = int((box.width - 2 * _PADDING) / _CHARACTER)
    name = _clip(printable(box.frame.text))
    short = printable(box.frame.short)
    label = short or name
    shown = label if len(label) <= room else label[: room - 1] + "…"
    return {
        "x": box.x,
        "y": box.depth * ROW,
        "width": box.width,
        "depth": box.depth,
        "whole": name,
        "amount": _UNITS.get(by, str)(box.weight),
        "share": box.weight / total,
        "colour": _colour(box.frame.type, name),
        "shown": shown if room >= _PADDING else "",
        "short": short,
    }


def _colour(kind: str, name: str) -> str:
    _, (hue, saturation, lightness) = _TYPES.get(kind, ("", _OTHER_COLOUR))
    return f"hsl({hue} {saturation}% {lightness + zlib.crc32(name.encode()) % 9}%)"


def _clip(text: str) -> str:
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[: half - 1]}…{text[-half:]}"
