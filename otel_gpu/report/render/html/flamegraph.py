"""
Flame graphs: folded stacks as one picture, in SVG or as a page that loads nothing.

A box is a frame. Its width is the weight of all stacks through it, and the frames that it called
are below it; the process is at the top. Boxes side by side are in alphabetical order: the
horizontal axis is not time.

In a difference, the width of a box is the mean of its shares before and after, so that both removed
and new frames are visible: blue shrank, red grew, and the colour is stronger for larger changes.

The page has one script and one style, which never change, and a policy that allows those by their
hashes and loads nothing.
"""

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from markupsafe import Markup

from otel_gpu.report.render.html.markup import ENVIRONMENT, as_source, hash_of, source
from otel_gpu.report.render.text.stacks import describe_change
from otel_gpu.report.stacks.diff import Change, StackDiff
from otel_gpu.report.stacks.folding import FoldedFrame, FoldedStack, fold
from otel_gpu.report.stacks.top_stacks import StackMeasure, StackRow
from otel_gpu.report.wording.formats import format_duration, format_size, printable
from otel_gpu.wire.frames import FrameType

__all__ = [
    "FLAME_SCRIPT",
    "difference_page",
    "draw_difference",
    "draw_flamegraph",
    "draw_key",
    "flamegraph_page",
    "fold",
    "format_weight",
    "weight_of",
]

FLAME_WIDTH = 1200
ROW = 17
MAX_BOXES = 10_000
"""More cannot be distinguished; the narrowest are omitted, and counted."""
MAX_CHARACTERS = 640
"""Of the text of one box; a longer one loses its middle."""

_LEAST_WIDTH = 0.5
_CHARACTER = 6.6
_PADDING = 3
# The type of a frame in a word, and its hue, saturation and lightness, which its name varies.
_TYPES: Mapping[str, tuple[str, tuple[int, int, int]]] = {
    FrameType.PROCESS: ("process", (0, 0, 82)),
    FrameType.THREAD: ("thread", (0, 0, 74)),
    FrameType.DEVICE: ("device", (0, 0, 78)),
    FrameType.PYTHON: ("Python", (211, 65, 70)),
    FrameType.NATIVE: ("native", (35, 80, 68)),
    FrameType.CUDA: ("CUDA", (93, 50, 60)),
    FrameType.KERNEL: ("kernel", (0, 60, 70)),
    FrameType.WAIT: ("waiting", (260, 45, 74)),
    FrameType.CUT: ("left out", (0, 0, 90)),
    FrameType.UNKNOWN: ("not known", (0, 0, 88)),
}
_OTHER_COLOUR = (280, 30, 75)
_GREW, _SHRANK, _SAME = 4, 222, "hsl(0 0% 93%)"
_UNITS = {StackMeasure.TIME: format_duration, StackMeasure.BYTES: format_size}

FLAME_SCRIPT = source("flamegraph.js")
"""For pages with flame graphs: fits them to the screen, and enlarges a clicked box."""

_STYLE = as_source("""
body { font: 14px sans-serif; margin: 1em; color: #222; background: #fff; }
h1 { font-size: 1.2em; } p { margin: .4em 0; overflow-wrap: anywhere; }
svg.flamegraph { width: 100%; height: auto; } svg.flamegraph g { cursor: pointer; }
.flame-key { list-style: none; padding: 0; } .flame-key li { display: inline; margin-right: 1em; }
""")


class _Changed(NamedTuple):
    # Sortable like a folded stack. Two scales have no common one except the product of their sums.
    frames: tuple[FoldedFrame, ...]
    weight: int
    before: int
    after: int


_Stack = FoldedStack | _Changed


class _Box(NamedTuple):
    frame: FoldedFrame
    weight: int
    depth: int
    x: float
    width: float
    through: Sequence[_Stack]


def draw_flamegraph(
    stacks: Iterable[FoldedStack], by: StackMeasure, *, most: int = MAX_BOXES
) -> Markup:
    """
    Return the picture, by a measure, as an SVG element without inline style.

    Without ``FLAME_SCRIPT`` it still shows the full text of a box on hover.
    """
    ordered = sorted(stacks)
    total = sum(stack.weight for stack in ordered)

    def describe(box: _Box, name: str) -> tuple[str, str]:
        title = f"{format_weight(box.weight, by)} ({box.weight / total * 100:.1f}%)"
        return title, _colour(box.frame.type, name)

    return _picture(ordered=ordered, by=by, most=most, describe=describe)


def draw_difference(diff: StackDiff, *, most: int = MAX_BOXES) -> Markup:
    """Return the picture of a difference, as ``draw_flamegraph`` does."""
    before_total, after_total = diff.totals
    ordered = sorted(
        _Changed(
            frames=frames,
            weight=before * (after_total or 1) + after * (before_total or 1),
            before=before,
            after=after,
        )
        for frames, before, after in diff.stacks
    )

    def describe(box: _Box, _: str) -> tuple[str, str]:
        pairs = [(one.before, one.after) for one in box.through if isinstance(one, _Changed)]
        before, after = map(sum, zip(*pairs, strict=True))
        change = Change((), before / (before_total or 1), after / (after_total or 1))
        return describe_change(change).strip(), _colour_of_change(change)

    return _picture(ordered=ordered, by="change", most=most, describe=describe)


def format_weight(weight: int, by: StackMeasure) -> str:
    """Return a weight by a measure in words."""
    return _UNITS.get(by, str)(weight)


def weight_of(rows: Iterable[StackRow], by: StackMeasure) -> int:
    """Return the total weight of rows."""
    return sum(row.measure(by) for row in rows)


def _picture(
    ordered: Sequence[_Stack], by: str, most: int, describe: Callable[[_Box, str], tuple[str, str]]
) -> Markup:
    total = sum(stack.weight for stack in ordered)
    every = list(_lay_out(ordered, total)) if total > 0 else []
    wide = [box for box in every if box.width >= _LEAST_WIDTH]
    # A box is at least as wide as its children, and the sort is stable.
    boxes = sorted(wide, key=lambda box: -box.width)[:most]
    rows = 1 + max((box.depth for box in boxes), default=0)
    drawn = [_draw(box, describe) for box in boxes]
    return _render("picture", drawn, by, FLAME_WIDTH, rows * ROW, len(every) - len(boxes))


def draw_key(stacks: Iterable[FoldedStack]) -> Markup:
    """Return the meaning of a picture's colours, as a list for an HTML page."""
    kinds = {frame.type for stack in stacks for frame in stack.frames}
    keys = [(_colour(kind, ""), word) for kind, (word, _) in _TYPES.items() if kind in kinds]
    return _render("key", keys)


def flamegraph_page(
    stacks: Iterable[FoldedStack], by: StackMeasure, title: str, about: Sequence[str] = ()
) -> str:
    """Return a page with the picture, where a click enlarges a box; ``about``: its source."""
    drawn = list(stacks)
    return _page(
        title=title,
        width=f"Width is {by}.",
        about=about,
        key=draw_key(drawn),
        picture=draw_flamegraph(drawn, by),
    )


def difference_page(diff: StackDiff, title: str, about: Sequence[str] = ()) -> str:
    """Return a whole page with the picture of a difference."""
    colours = (f"hsl({hue} 90% 60%)" for hue in (_GREW, _SHRANK))
    key = _render("key", [*zip(colours, ("grew", "shrank"), strict=True), (_SAME, "as before")])
    width = "Width is the mean of both shares; the figures are the shares of A and B."
    return _page(title=title, width=width, about=about, key=key, picture=draw_difference(diff))


def _page(title: str, width: str, about: Sequence[str], key: Markup, picture: Markup) -> str:
    policy = f"default-src 'none'; style-src {hash_of(_STYLE)}; script-src {hash_of(FLAME_SCRIPT)}"
    return _render("page", title, width, about, policy, _STYLE, FLAME_SCRIPT, key, picture)


def _render(macro: str, *values: object) -> Markup:
    found = getattr(ENVIRONMENT.get_template("flamegraph.html").module, macro)(*values)
    return Markup(found)  # noqa: S704 -- a macro's output, with its values escaped


def _lay_out(stacks: Sequence[_Stack], total: int) -> Iterator[_Box]:
    # No recursion: a stack can be deep. Boxes that are too narrow are not expanded.
    waiting = [(FoldedFrame("all", FrameType.PROCESS), stacks, 0, 0.0)]
    while waiting:
        frame, through, depth, x = waiting.pop()
        weight = sum(stack.weight for stack in through)
        # One division of integers, so that it is exact however large those of a difference are.
        width = weight * FLAME_WIDTH / total
        yield _Box(frame=frame, weight=weight, depth=depth, x=x, width=width, through=through)
        if width >= _LEAST_WIDTH:
            deeper = [stack for stack in through if len(stack.frames) > depth]
            children = [stack.frames[depth] for stack in deeper]
            for child, group in itertools.groupby(
                zip(children, deeper, strict=True), itemgetter(0)
            ):
                inside = [stack for _, stack in group]
                waiting.append((child, inside, depth + 1, x))
                x += sum(stack.weight for stack in inside) * FLAME_WIDTH / total


def _draw(box: _Box, describe: Callable[[_Box, str], tuple[str, str]]) -> dict[str, Any]:
    space = int((box.width - 2 * _PADDING) / _CHARACTER)
    name = _clip(printable(box.frame.text))
    short = printable(box.frame.short)
    label = short or name
    title, colour = describe(box, name)
    shown = label if len(label) <= space else label[: space - 1] + "…"
    return {
        "x": box.x,
        "y": box.depth * ROW,
        "width": box.width,
        "depth": box.depth,
        "whole": name,
        "told": title,
        "colour": colour,
        "shown": shown if space >= _PADDING else "",
        "short": short,
    }


def _colour(kind: str, name: str) -> str:
    _, (hue, saturation, lightness) = _TYPES.get(kind, ("", _OTHER_COLOUR))
    return f"hsl({hue} {saturation}% {lightness + zlib.crc32(name.encode()) % 9}%)"


def _colour_of_change(change: Change) -> str:
    strength = abs(change.change) / max(change.before, change.after, 1e-9)
    if not strength:
        return _SAME
    hue = _GREW if change.change > 0 else _SHRANK
    return f"hsl({hue} 90% {92 - 34 * strength:.0f}%)"


def _clip(text: str) -> str:
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[: half - 1]}…{text[-half:]}"
