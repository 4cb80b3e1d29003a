"""
The period of a thread: by which calls its steps begin and end.

``iterations_of`` is what ``bpf/cuda/step_detection.bpf.h`` does with each call, on calls that are there as a whole.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

HISTORY_CALLS: Final = 4
"""Most calls by which the beginning or the end of a step is known."""

_SYMBOL_BITS = 16
_HISTORY = (1 << _SYMBOL_BITS * HISTORY_CALLS) - 1


class CallRole(enum.Enum):
    """What a call is between host and device."""

    LAUNCH = enum.auto()
    WAIT = enum.auto()
    TO_HOST = enum.auto()
    TO_DEVICE = enum.auto()
    OTHER = enum.auto()


class CallSequence(NamedTuple):
    """
    Outermost calls of one thread, in order.

    Attributes:
        symbols: Equal ones are the same call; 1 to 65,535.
        starts_ns: When each began.
        gaps_ns: How long before that the call before had returned.
        roles: By symbol.
    """

    symbols: Sequence[int]
    starts_ns: Sequence[int]
    gaps_ns: Sequence[int]
    roles: Mapping[int, CallRole]

    def folded(self) -> "CallSequence":
        """Return these calls without those that are made again at once."""
        symbols = self.symbols
        kept = [at for at in range(len(symbols)) if not at or symbols[at] != symbols[at - 1]]
        symbols, starts_ns, gaps_ns = ([column[at] for at in kept] for column in self[:3])
        return CallSequence(symbols, starts_ns, gaps_ns, self.roles)


class Period(NamedTuple):
    """
    How the steps of a thread are told from its calls.

    Attributes:
        starts: Histories at the latest of the first ``start_calls`` calls of a step.
        ends: Histories at its last call, of ``end_calls`` calls.
        folds: Whether the same call again at once is no other call.
        longest_calls: Calls of the longest step.
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
        """What tells where steps begin and end."""
        return self[:5]


class Turn(NamedTuple):
    """One step: the indices of its first and last calls."""

    first: int
    last: int


def iterations_of(period: Period, symbols: Sequence[int]) -> Iterator[Turn]:
    """Yield the steps among calls."""
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
    """Return the history after these calls, of which there are ``HISTORY_CALLS`` at most."""
    history = 0
    for symbol in symbols:
        history = history << _SYMBOL_BITS | symbol
    return history
