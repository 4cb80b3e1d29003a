"""
The difference of two reports of stacks: what grew, and what shrank, as shares of the whole.

A capture that was longer, or had more threads, has more of everything. So a stack's share of its
own report is what is compared. Processes have their names and no numbers here, which no other run
has; a frame is the same where its text is, so a function that moved to another line is another one.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu.report.stacks.folding import DEVICE, PROCESS, THREAD, FoldedFrame, fold
from otel_gpu.report.stacks.top_stacks import StackReport


class DiffStack(NamedTuple):
    """A stack, outermost frame first, and what it weighs in both reports."""

    frames: tuple[FoldedFrame, ...]
    before: int
    after: int


class Change(NamedTuple):
    """What is compared, and its shares of both reports, 0 to 1."""

    frames: tuple[FoldedFrame, ...]
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much the share grew; less than 0: it shrank."""
        return self.after - self.before


class StackDiff(NamedTuple):
    """Two reports of one kind and measure, and their stacks; those that changed most come first."""

    before: StackReport
    after: StackReport
    stacks: tuple[DiffStack, ...]

    @property
    def totals(self) -> tuple[int, int]:
        """What all stacks weigh, before and after."""
        return self.before.total(), self.after.total()

    def changes(self) -> list[Change]:
        """Return the shares of each stack."""
        totals = self.totals
        return [Change(stack.frames, *_shares(stack[1:], totals)) for stack in self.stacks]

    def by_frame(self) -> list[Change]:
        """Return the shares of all that runs through each frame; what changed most comes first."""
        weights: defaultdict[FoldedFrame, list[int]] = defaultdict(lambda: [0, 0])
        for stack in self.stacks:
            # One that calls itself is in a stack more than once.
            for frame in set(stack.frames):
                if frame.type not in (PROCESS, THREAD, DEVICE):
                    weights[frame][0] += stack.before
                    weights[frame][1] += stack.after
        totals = self.totals
        found = (Change((frame,), *_shares(pair, totals)) for frame, pair in weights.items())
        return sorted(found, key=_most_changed)


def compare(before: StackReport, after: StackReport) -> StackDiff:
    """Compare two reports of one kind, by the measure that the first one is in order of."""
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
