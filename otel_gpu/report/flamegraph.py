"""
Flame graphs: folded stacks as one picture, in SVG or as a page that needs nothing else.

A box is a frame, its width what all stacks through it weigh, and below it lie the frames
that it called; the process is at the top. Boxes that lie side by side are in alphabetical
order: from left to right there is no time.

The page holds one script, which never changes, and a policy that lets the browser run that
one and load nothing. Names come from other people's programs and from recordings of
strangers: they are escaped, and would be inert if they were not.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from otel_gpu.enrich.stack_text import printable
from otel_gpu.report.folded import FoldedStack
from otel_gpu.report.words import format_duration, format_size

WIDTH = 1200
ROW = 17
MAX_BOXES = 10_000
"""More cannot be told apart; the narrowest are left out, and that is said."""

_MAX_NODES = 200_000
_LEAST_WIDTH = 0.5
_CHARACTER = 6.6
_PADDING = 3
# Hue, saturation and lightness: what a frame is; its name varies the lightness.
_COLOURS: Mapping[str, tuple[int, int, int]] = {
    "process": (0, 0, 82),
    "cpython": (211, 65, 70),
    "native": (35, 80, 68),
    "cuda": (93, 50, 60),
    "kernel": (0, 60, 70),
    "cut": (0, 0, 90),
}
_OTHER_COLOUR = (280, 30, 75)
_UNITS = {"time": format_duration, "bytes": format_size}

_STYLE = """
body { font: 14px sans-serif; margin: 1em; color: #222; background: #fff; }
h1 { font-size: 1.2em; } p { margin: .4em 0; }
svg.flamegraph { width: 100%; height: auto; } svg.flamegraph g { cursor: pointer; }
.key { display: inline-block; padding: 0 .5em; margin-right: .5em; }
"""
_TEXT_STYLE = "font:11px monospace;fill:#111;pointer-events:none"
# A click on a box makes it as wide as the picture; one on what is above it goes back.
_SCRIPT = """
(() => {
  const svg = document.querySelector("svg.flamegraph");
  const width = svg.viewBox.baseVal.width;
  const boxes = [...svg.querySelectorAll("g")].map((g) => ({
    g, rect: g.querySelector("rect"), text: g.querySelector("text"),
    x: +g.dataset.x, w: +g.dataset.w, d: +g.dataset.d,
    name: g.querySelector("title").textContent.split("\\n")[0],
  }));
  const zoom = (to) => {
    for (const box of boxes) {
      const covers = box.d <= to.d && box.x <= to.x && box.x + box.w >= to.x + to.w;
      const x = covers ? 0 : ((box.x - to.x) / to.w) * width;
      const w = covers ? width : (box.w / to.w) * width;
      const seen = x > -0.01 && x < width && w >= 0.3 && (covers || box.d > to.d);
      box.g.style.display = seen ? "" : "none";
      if (!seen) continue;
      box.rect.setAttribute("x", x);
      box.rect.setAttribute("width", w);
      const room = Math.floor((w - 6) / 6.6);
      box.text.setAttribute("x", x + 3);
      box.text.textContent = room < 3 ? "" :
        box.name.length <= room ? box.name : box.name.slice(0, room - 1) + "\\u2026";
    }
  };
  for (const box of boxes) box.g.addEventListener("click", () => zoom(box));
})();
"""


class _Node:
    __slots__ = ("children", "name", "type", "weight")

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.type = kind
        self.weight = 0
        self.children: dict[tuple[str, str], _Node] = {}


class _Box(NamedTuple):
    node: _Node
    depth: int
    x: float
    width: float


def draw_flamegraph(stacks: Iterable[FoldedStack], by: str) -> str:
    """
    Return the picture as an SVG element, for a page of HTML.

    Without a script it still shows each box's whole text when it is pointed at.

    Args:
        stacks: What to draw.
        by: What they weigh: ``time``, ``calls`` or ``bytes``.
    """
    root = _grow(stacks)
    boxes, left_out = _choose(root)
    rows = 1 + max((box.depth for box in boxes), default=0)
    drawn = "".join(_draw(box, root.weight, by) for box in boxes)
    note = f"<p>Too narrow to be drawn: {left_out:,}, and all below them.</p>" if left_out else ""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="flamegraph" '
        f'viewBox="0 0 {WIDTH} {rows * ROW}" role="img">{drawn}</svg>{note}'
    )


def flamegraph_page(stacks: Iterable[FoldedStack], by: str, title: str) -> str:
    """
    Return a whole page with the picture, which a click makes larger.

    Args:
        stacks: What to draw.
        by: What they weigh.
        title: What they are of.
    """
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    heading = _text(title)
    keys = "".join(
        f'<span class="key" style="background:{_colour(kind, "")}">{kind}</span>'
        for kind in _COLOURS
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f"<title>{heading}</title><style>{_STYLE}</style></head><body><h1>{heading}</h1>"
        f"<p>Width is {_text(by)}. Click a box to look into it, and one above it to go back."
        f"</p><p>{keys}</p>{draw_flamegraph(stacks, by)}<script>{_SCRIPT}</script></body></html>\n"
    )


def _grow(stacks: Iterable[FoldedStack]) -> _Node:
    root = _Node("all", "process")
    left = _MAX_NODES
    for stack in sorted(stacks, key=lambda stack: (-stack.weight, stack.frames)):
        node = root
        node.weight += stack.weight
        for frame in stack.frames:
            child = node.children.get(frame)
            if child is None:
                if not left:
                    break
                left -= 1
                child = node.children[frame] = _Node(*frame)
            child.weight += stack.weight
            node = child
    return root


def _choose(root: _Node) -> tuple[list[_Box], int]:
    """Return the boxes that can be seen, and how many cannot."""
    boxes = list(_lay_out(root)) if root.weight > 0 else []
    wide = [box for box in boxes if box.width >= _LEAST_WIDTH]
    # Nothing is narrower than what lies below it, and the sort is stable.
    widest = sorted(wide, key=lambda box: -box.width)[:MAX_BOXES]
    return widest, len(boxes) - len(widest)


def _lay_out(root: _Node) -> Iterator[_Box]:
    # No recursion: a stack may be deep.
    scale = WIDTH / root.weight
    waiting = [_Box(root, 0, 0.0, float(WIDTH))]
    while waiting:
        box = waiting.pop()
        yield box
        if box.width < _LEAST_WIDTH:
            continue
        x = box.x
        for _, child in sorted(box.node.children.items()):
            width = child.weight * scale
            waiting.append(_Box(child, box.depth + 1, x, width))
            x += width


def _draw(box: _Box, total: int, by: str) -> str:
    node, y = box.node, box.depth * ROW
    amount = _UNITS.get(by, str)(node.weight)
    share = f"{node.weight / total:.1%}"
    room = int((box.width - 2 * _PADDING) / _CHARACTER)
    name = printable(node.name)
    shown = name if len(name) <= room else name[: room - 1] + "…"
    return (
        f'<g data-x="{box.x:.3f}" data-w="{box.width:.3f}" data-d="{box.depth}">'
        f"<title>{_text(name)}\n{_text(amount)} ({share})</title>"
        f'<rect x="{box.x:.3f}" y="{y}" width="{box.width:.3f}" height="{ROW - 1}" '
        f'fill="{_colour(node.type, name)}"/>'
        f'<text x="{box.x + _PADDING:.3f}" y="{y + 12}" style="{_TEXT_STYLE}">'
        f"{_text(shown) if room >= _PADDING else ''}</text></g>"
    )


def _colour(kind: str, name: str) -> str:
    hue, saturation, lightness = _COLOURS.get(kind, _OTHER_COLOUR)
    return f"hsl({hue} {saturation}% {lightness + zlib.crc32(name.encode()) % 9}%)"


def _text(text: str) -> str:
    return escape(printable(text), quote=True)
