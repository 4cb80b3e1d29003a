"""
Which kinds of steps a thread makes, where it makes two that differ as kinds do.

An evaluation launches some of what training launches, and comes after a fixed number of steps. A
prefill is longer than a decode, launches other kernels, and is followed by as many of them as the
answer is long. All else may be either, and has no kind.
"""

from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from otel_gpu import wire

_ALMOST_ALL = 0.95
_RUNS = 3
_DECODES_FASTER = 1.5


class Made(NamedTuple):
    """One step: what stands for its calls, its calls, and how long it took."""

    word: int
    symbols: Sequence[int]
    duration_ns: int


def kinds_of(steps: Sequence[Made]) -> dict[int, int]:
    """Return ``enum step_kind`` by word."""
    made: dict[int, list[Made]] = {}
    for step in steps:
        made.setdefault(step.word, []).append(step)
    kinds = dict.fromkeys(made, wire.STEP_UNKNOWN)
    often, seldom, *_ = [*sorted(made, key=lambda word: -len(made[word])), 0, 0]
    if not seldom or len(made[often]) + len(made[seldom]) < _ALMOST_ALL * len(steps):
        return kinds
    two = [step.word for step in steps if step.word in {often, seldom}]
    runs = [(word, sum(1 for _ in run)) for word, run in groupby(two)]
    often_runs, seldom_runs = (
        # The first and the last one may be longer.
        [length for word, length in runs[1:-1] if word == one]
        for one in (often, seldom)
    )
    if len(often_runs) < _RUNS or len(seldom_runs) < _RUNS:
        return kinds
    calls = {word: set(made[word][0].symbols) for word in (often, seldom)}
    if calls[seldom] < calls[often] and len(set(often_runs)) == 1 < often_runs[0]:
        kinds |= {often: wire.STEP_TRAINING, seldom: wire.STEP_EVALUATION}
    elif calls[often] < calls[seldom] and len(set(seldom_runs)) == 1 < seldom_runs[0]:
        kinds |= {seldom: wire.STEP_TRAINING, often: wire.STEP_EVALUATION}
    elif (
        not calls[seldom] <= calls[often]
        and not calls[often] <= calls[seldom]
        and max(seldom_runs) == 1 < len(set(often_runs))
        and _usual_ns(made[seldom]) > _DECODES_FASTER * _usual_ns(made[often])
    ):
        kinds |= {often: wire.STEP_DECODE, seldom: wire.STEP_PREFILL}
    return kinds


def _usual_ns(steps: Sequence[Made]) -> float:
    return median(step.duration_ns for step in steps)
