"""
The difference of two stack reports: growth and shrinkage, as shares of the whole.

A longer capture, or one with more threads, has more of everything, so shares of each report are
compared. Processes appear by name only, since pids differ between runs. Frames are equal if their
texts are, so a function that moved to another line is a different frame.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu.report.stacks.folding import FoldedFrame, fold
from otel_gpu.report.stacks.top_stacks import StackReport
from otel_gpu.wire.frames import FrameType


class DiffStack(NamedTuple):
    """A stack, outermost frame first, and its weight in both reports."""

    frames: tuple[FoldedFrame, ...]
    before: int
    after: int


class Change(NamedTuple):
    """A compared stack or frame, with its shares of both reports, 0 to 1."""

    frames: tuple[FoldedFrame, ...]
    before: float
    after: float

    @property
    def change(self) -> float:
        """The growth of the share; below 0: it shrank."""
        return self.after - self.before


class StackDiff(NamedTuple):
    """Two reports of one kind and measure, and their stacks, most changed first."""

    before: StackReport
    after: StackReport
    stacks: tuple[DiffStack, ...]

    @property
    def totals(self) -> tuple[int, int]:
        """The weight of all stacks, before and after."""
        return self.before.total(), self.after.total()

    def changes(self) -> list[Change]:
        """Return the shares of each stack."""
        totals = self.totals
        return [Change(stack.frames, *_shares(stack[1:], totals)) for stack in self.stacks]

    def by_frame(self) -> list[Change]:
        """Return the shares of all stacks that contain each frame, most changed first."""
        weights: defaultdict[FoldedFrame, list[int]] = defaultdict(lambda: [0, 0])
        for stack in self.stacks:
            # A recursive function is in a stack more than once.
            for frame in set(stack.frames):
                if frame.type not in (FrameType.PROCESS, FrameType.THREAD, FrameType.DEVICE):
                    weights[frame][0] += stack.before
                    weights[frame][1] += stack.after
        totals = self.totals
        found = (Change((frame,), *_shares(pair, totals)) for frame, pair in weights.items())
        return sorted(found, key=_most_changed)


def compare(before: StackReport, after: StackReport) -> StackDiff:
    """Compare two reports of one kind, by the first one's measure."""
    weights: defaultdict[tuple[FoldedFrame, ...], list[int]] = defaultdict(lambda: [0, 0])
    for place, report in enumerate((before, after)):
        for stack in fold(report.rows, before.by, numbered=False):
            weights[stack.frames][place] += stack.weight
    diff = StackDiff(before, after, tuple(DiffStack(one, *pair) for one, pair in weights.items()))
    order = sorted(
        zip(diff.changes(), diff.stacks, strict=True), key=lambda pair: _most_changed(pair[0])
    )
    return diff._replace(stacks=tuple(stack for _, stack in order))


def _shares(pair: Iterable[int], totals: Iterable[int]) -> tuple[float, float]:
    before, after = (part / (total or 1) for part, total in zip(pair, totals, strict=True))
    return before, after


def _most_changed(change: Change) -> tuple[float, tuple[FoldedFrame, ...]]:
    return -abs(change.change), change.frames
