"""Folded stacks: each distinct path once, from the process inwards, with its weight."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu.report.document import Frame, FrameType
from otel_gpu.report.stacks.top_stacks import StackMeasure, StackRow
from otel_gpu.report.wording.formats import (
    frame_line,
    frame_type,
    printable,
    process_name,
    service_of,
    thread_name,
    whole_line,
)


class FoldedFrame(NamedTuple):
    """
    A frame's text, its type, and its short text, if any.
    """

    text: str
    type: FrameType
    short: str = ""


class FoldedStack(NamedTuple):
    """A stack below its process, outermost frame first, and its weight."""

    frames: tuple[FoldedFrame, ...]
    weight: int


def fold(
    rows: Iterable[StackRow], by: StackMeasure, *, numbered: bool = True
) -> Iterator[FoldedStack]:
    """
    Yield the distinct stacks of each process with a weight above 0 by one measure.

    ``numbered``: processes and threads have their ids, which differ between runs.
    """
    weights: Counter[tuple[FoldedFrame, ...]] = Counter()
    # Most stacks share most of their frames.
    known: dict[Frame, FoldedFrame] = {}
    for row in rows:
        weight = row.measure(by)
        if weight > 0:
            weights[tuple(_frames_of(row, known, numbered=numbered))] += weight
    yield from itertools.starmap(FoldedStack, weights.items())


def _frames_of(
    row: StackRow, known: dict[Frame, FoldedFrame], *, numbered: bool
) -> Iterator[FoldedFrame]:
    process, thread = row.process, row.thread
    name = process_name(process) if numbered else printable(service_of(process))
    yield FoldedFrame(name, FrameType.PROCESS)
    if thread is not None:
        yield FoldedFrame(
            thread_name(thread) if numbered else printable(thread.comm), FrameType.THREAD
        )
    if row.device is not None:
        yield FoldedFrame(row.name, FrameType.DEVICE)
    for frame in reversed(row.stack.frames):
        if frame not in known:
            whole, short = whole_line(frame), frame_line(frame)
            shown = "" if short == whole else short
            known[frame] = FoldedFrame(whole, frame_type(frame), shown)
        yield known[frame]
