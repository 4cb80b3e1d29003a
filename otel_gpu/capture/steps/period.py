"""
The period of a thread: the calls by which its steps begin and end.

``iterations_of`` does on a whole sequence what ``bpf/cuda/step_detection.bpf.h`` does with each call.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

HISTORY_CALLS: Final = 4
"""The most calls that mark the start or the end of a step."""

_SYMBOL_BITS = 16
_HISTORY = (1 << _SYMBOL_BITS * HISTORY_CALLS) - 1


class CallRole(enum.Enum):
    """The role of a call between host and device."""

    LAUNCH = enum.auto()
    WAIT = enum.auto()
    TO_HOST = enum.auto()
    TO_DEVICE = enum.auto()
    OTHER = enum.auto()


class CallSequence(NamedTuple):
    """
    Outermost calls of one thread, in order.

    Attributes:
        symbols: One number per kind of call, 1 to 65,535.
        starts_ns: Start times.
        gaps_ns: Times from the return of the previous call to the start.
        roles: By symbol.
    """

    symbols: Sequence[int]
    starts_ns: Sequence[int]
    gaps_ns: Sequence[int]
    roles: Mapping[int, CallRole]

    def folded(self) -> "CallSequence":
        """Return the calls without immediate repetitions."""
        symbols = self.symbols
        kept = [at for at in range(len(symbols)) if not at or symbols[at] != symbols[at - 1]]
        symbols, starts_ns, gaps_ns = ([column[at] for at in kept] for column in self[:3])
        return CallSequence(symbols, starts_ns, gaps_ns=gaps_ns, roles=self.roles)


class Period(NamedTuple):
    """
    The calls that mark the steps of a thread.

    Attributes:
        starts: Packed histories of the first ``start_calls`` calls of a step.
        ends: Packed histories of its last ``end_calls`` calls.
        folds: Whether immediate repetitions of a call count once.
        longest_calls: Number of calls of the longest step.
    """

    starts: tuple[int, ...]
    start_calls: int
    ends: tuple[int, ...]
    end_calls: int
    folds: bool
    confidence_percent: int
    longest_calls: int

    @property
    def edges(self) -> tuple[object, ...]:
        """The fields that determine where steps begin and end."""
        return self[:5]


class Turn(NamedTuple):
    """One step: the indices of its first and last calls."""

    first: int
    last: int


def iterations_of(period: Period, symbols: Sequence[int]) -> Iterator[Turn]:
    """Yield the steps in a sequence of calls."""
    start_mask = (1 << _SYMBOL_BITS * period.start_calls) - 1
    end_mask = (1 << _SYMBOL_BITS * period.end_calls) - 1
    starts, ends, folds = frozenset(period.starts), frozenset(period.ends), period.folds
    history = before = 0
    first, is_over = -1, False
    latest = [0] * period.start_calls
    for index, symbol in enumerate(symbols):
        if folds and symbol == before:
            continue
        before = symbol
        if is_over:
            yield Turn(first, index - 1)
            first, is_over = -1, False
        history = (history << _SYMBOL_BITS | symbol) & _HISTORY
        latest.append(index)
        del latest[0]
        if history & start_mask in starts:
            first = latest[0]
        is_over = first >= 0 and history & end_mask in ends
    if is_over:
        yield Turn(first, len(symbols) - 1)


def history_of(symbols: Sequence[int]) -> int:
    """Return the packed history of at most ``HISTORY_CALLS`` calls."""
    history = 0
    for symbol in symbols:
        history = history << _SYMBOL_BITS | symbol
    return history
