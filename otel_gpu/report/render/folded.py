"""
Folded stacks: one line per stack, frames joined by semicolons, outermost first.

    train.py (4242);<module> (train.py:102);step (train.py:74);cudaMalloc (libcudart.so.12) 820

This is the format of Brendan Gregg's FlameGraph scripts, which most tools read. It cannot escape
a semicolon, so one in a name becomes a colon. A difference has two weights, as in difffolded.pl.
"""

from collections.abc import Iterable, Iterator

from otel_gpu.report.stacks.diff import StackDiff
from otel_gpu.report.stacks.folding import FoldedFrame, FoldedStack


def folded_line(stack: FoldedStack) -> str:
    """Return the line of a stack; times are nanoseconds."""
    return f"{_path(stack.frames)} {stack.weight}"


def folded_differences(diff: StackDiff) -> Iterator[str]:
    """
    Yield a line for each stack of a difference: its weights before and after.

    The weights before are scaled, so that both have the same sum (as ``difffolded.pl -n`` does).
    """
    before, after = diff.totals
    for stack in diff.stacks:
        scaled = round(stack.before * after / before) if before and after else stack.before
        yield f"{_path(stack.frames)} {scaled} {stack.after}"


def _path(frames: Iterable[FoldedFrame]) -> str:
    return ";".join(frame.text.replace(";", ":") for frame in frames)
