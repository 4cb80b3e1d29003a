"""
Folded stacks: one line per stack, frames joined by semicolons, outermost first.

    train.py (4242);<module> (train.py:102);step (train.py:74);cudaMalloc (libcudart.so.12) 820

This is the format of Brendan Gregg's FlameGraph scripts, which most tools read. It has no
way to escape a semicolon, so one in a name becomes a colon.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu.findings.document import Frame
from otel_gpu.findings.top_stacks import StackRow
from otel_gpu.findings.words import frame_line, frame_type, process_name, whole_line

PROCESS = "process"


class FoldedFrame(NamedTuple):
    """A frame's text, its type (``process`` or as of frames), and a short text if it has one."""

    text: str
    type: str
    short: str = ""


class FoldedStack(NamedTuple):
    """A stack with the process below it, outermost first, and what it weighs."""

    frames: tuple[FoldedFrame, ...]
    weight: int


def fold(rows: Iterable[StackRow], by: str) -> Iterator[FoldedStack]:
    """Yield the stacks that weigh anything by one of ``MEASURES``, each of a process once."""
    weights: Counter[tuple[FoldedFrame, ...]] = Counter()
    # Most stacks share most of their frames.
    known: dict[Frame, FoldedFrame] = {}
    for row in rows:
        weight = row.measure(by)
        if weight > 0:
            weights[tuple(_frames_of(row, known))] += weight
    yield from itertools.starmap(FoldedStack, weights.items())


def folded_line(stack: FoldedStack) -> str:
    """Return the line of a stack; times are nanoseconds."""
    names = (frame.text.replace(";", ":") for frame in stack.frames)
    return f"{';'.join(names)} {stack.weight}"


def _frames_of(row: StackRow, known: dict[Frame, FoldedFrame]) -> Iterator[FoldedFrame]:
    yield FoldedFrame(process_name(row.process), PROCESS)
    for frame in reversed(row.stack.frames):
        if frame not in known:
            whole, short = whole_line(frame), frame_line(frame)
            shown = "" if short == whole else short
            known[frame] = FoldedFrame(whole, frame_type(frame), shown)
        yield known[frame]
