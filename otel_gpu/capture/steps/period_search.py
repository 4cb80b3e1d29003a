"""
Searches the period of a thread's calls.

A thread that trains or serves makes the same calls in every step. There can be several kinds of steps, and
other calls between steps. So the calls are divided where host and device synchronize: after a wait, or
before a copy to the device. The parts are called words. A division is good if it has few different words,
and clearly fewer than the same calls in random order.

A division does not show where in an iteration the step begins. We take the place where other calls come in
between, where the host spends time, and where a wait ends or a copy begins.

The same calls can be one step of many equal layers, or many equal steps between two evaluations. The calls
do not show which. The unit that synchronizes with the device repeatedly is taken as the step.
"""

import enum
import random
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

from otel_gpu.capture.steps.period import (
    HISTORY_CALLS,
    CallRole,
    CallSequence,
    Period,
    history_of,
    iterations_of,
)

LEAST_STEPS: Final = 8
"""The fewest steps of a period."""

MOST_PATTERNS: Final = 4
"""The most patterns of calls by which steps begin, or end."""

LEAST_CONFIDENCE_PERCENT: Final = 60

_PRIME, _BASE = (1 << 61) - 1, 0x5BD1E9959D1F
_LEAST_SHARE = 0.8  # of known words among all
_LEAST_ADVANTAGE = 0.2  # of the real order over a random order
_ALMOST_ALL = 0.95
_FEWEST = 3  # occurrences of a word
_MOST_WORDS = 6
_PARTS, _LONGER = 4, 1.5  # a unit of at most this many parts, this much longer, is the step
_ROTATIONS, _SAMPLES = 6, 15
# Weight of calls between steps in choosing the start: the maximum, and per share.
_COME_BETWEEN, _MISSING = 2.0, 30.0
_SHUFFLED, _SHUFFLES = 4_096, 3
_WITHOUT_MEETINGS = 0.75

_ENDING = {CallRole.WAIT, CallRole.TO_HOST}
_MEETING = {*_ENDING, CallRole.TO_DEVICE}


class Reason(enum.StrEnum):
    """Why no period was found."""

    FEW_CALLS = "few_calls"
    NO_ITERATIONS = "no_iterations"
    BY_CHANCE = "by_chance"
    NO_EDGES = "no_edges"
    UNSURE = "unsure"


def find_period(calls: CallSequence) -> Period | Reason:
    """Return the period of a thread, or why there is none."""
    if len(calls.symbols) < LEAST_STEPS:
        return Reason.FEW_CALLS
    if not any(calls.roles[symbol] is CallRole.LAUNCH for symbol in set(calls.symbols)):
        # A step launches something. Checked first, because the search takes megabytes.
        return Reason.NO_ITERATIONS
    plain = _find(calls, calls.symbols, folds=False)
    if isinstance(plain, Period):
        return plain
    folded = calls.folded()
    if len(folded.symbols) == len(calls.symbols):
        return plain
    found = _find(folded, calls.symbols, folds=True)
    return found if isinstance(found, Period) else plain


class _Text:
    # Calls; any two segments are compared in constant time, by rolling hashes.

    def __init__(self, symbols: Sequence[int], roles: Mapping[int, CallRole]) -> None:
        self.symbols, self.roles = symbols, roles
        # Arrays: lists would take eight times the memory and fragment it.
        self._sums = array(
            "Q", accumulate(symbols, lambda sum_, one: (sum_ * _BASE + one) % _PRIME, initial=0)
        )
        self._powers = array(
            "Q", accumulate(symbols, lambda power, _: power * _BASE % _PRIME, initial=1)
        )
        launches = (roles[symbol] is CallRole.LAUNCH for symbol in symbols)
        self._launches = array("I", accumulate(launches, initial=0))

    def word(self, first: int, end: int) -> int:
        return (self._sums[end] - self._sums[first] * self._powers[end - first]) % _PRIME

    def has_launch(self, first: int, end: int) -> bool:
        return self._launches[end] > self._launches[first]

    def places(self) -> dict[int, list[int]]:
        places: dict[int, list[int]] = {}
        for at, symbol in enumerate(self.symbols):
            places.setdefault(symbol, []).append(at)
        return {symbol: found for symbol, found in places.items() if len(found) > LEAST_STEPS}

    def cuts(self, symbol: int, places: Iterable[int]) -> list[int]:
        # The cuts at a call: after it if it waits for the device, else before it.
        after = int(self.roles[symbol] in _ENDING)
        return [at + after for at in places]


class _Division(NamedTuple):
    # Calls, divided into words.
    # ``symbol``: the call at which they are divided. ``steps``: (first, end) of known words.
    # ``words``: their counts. ``examples``: one of each. ``share``: of known words among all since
    # the first known one. ``parts``: how many steps have other calls before or after them.

    symbol: int
    cuts: Sequence[int]
    steps: Sequence[tuple[int, int]]
    words: Mapping[int, int]
    examples: Mapping[int, tuple[int, int]]
    share: float
    parts: int

    @property
    def whole_share(self) -> float:
        return self.share * (1 - self.parts / len(self.steps)) if self.steps else 0.0

    def is_good(self, least_share: float) -> bool:
        # Calls between most of the steps are a part of the steps.
        return (
            self.share >= least_share
            and len(self.steps) >= LEAST_STEPS
            and 2 * self.parts < len(self.steps)
        )

    @property
    def mean_calls(self) -> float:
        return fmean(end - first for first, end in self.steps)


def _divide(text: _Text, symbol: int, cuts: Sequence[int]) -> _Division:
    segments = list(pairwise(cuts))
    words = [text.word(first, end) for first, end in segments]
    examples = dict(zip(words, segments, strict=True))
    frequent = Counter(words).most_common(_MOST_WORDS)
    known = {
        word for word, count in frequent if count >= _FEWEST and text.has_launch(*examples[word])
    }
    # Words that occur only before or after the most frequent word are not from the same loop.
    if known:
        places = {word: at for at, word in enumerate(words)}
        first_places = {word: -at for at, word in enumerate(reversed(words), 1 - len(words))}
        main = next(word for word, _ in frequent if word in known)
        known = {
            word
            for word in known
            if places[word] >= first_places[main] and first_places[word] <= places[main]
        }
    # A word that consists of another word and more calls is not a word of its own.
    for word, _ in reversed(frequent):
        if word in known and _part(
            text, segment=examples[word], known=known - {word}, examples=examples
        ):
            known.remove(word)
    steps: list[tuple[int, int]] = []
    began = parts = 0
    for index, (word, segment) in enumerate(zip(words, segments, strict=True)):
        step = segment if word in known else _part(text, segment, known=known, examples=examples)
        if step:
            began = began if steps else index
            steps.append(step)
            parts += step != segment
    counts = Counter(text.word(first, end) for first, end in steps)
    share = len(steps) / (len(segments) - began) if steps else 0.0
    return _Division(
        symbol=symbol,
        cuts=cuts,
        steps=steps,
        words=counts,
        examples=examples,
        share=share,
        parts=parts,
    )


def _part(
    text: _Text,
    segment: tuple[int, int],
    known: Collection[int],
    examples: Mapping[int, tuple[int, int]],
) -> tuple[int, int] | None:
    # The longest known word at the end or the start of a segment.
    first, end = segment
    found = None
    longest = 0
    for word in known:
        length = examples[word][1] - examples[word][0]
        if longest < length < end - first:
            for part in ((end - length, end), (first, first + length)):
                if text.word(*part) == word:
                    found, longest = part, length
                    break
    return found


def _find(calls: CallSequence, unfolded: Sequence[int], *, folds: bool) -> Period | Reason:
    text = _Text(calls.symbols, calls.roles)
    best, certainty = _where_they_meet(text), 1.0
    if best is None:
        best, certainty = _of_launches(text), _WITHOUT_MEETINGS
    if best is None:
        return Reason.NO_ITERATIONS
    chance = _share_by_chance(unfolded, calls.roles, best.symbol, folds=folds)
    if chance > best.whole_share - _LEAST_ADVANTAGE:
        return Reason.BY_CHANCE
    certainty *= (best.whole_share - chance) / (1 - chance) * best.share / best.whole_share
    best = _rotated(text, calls.gaps_ns, best)
    if len(best.steps) < LEAST_STEPS:
        return Reason.NO_ITERATIONS
    expected = {(first, end - 1) for first, end in best.steps}
    earliest, latest = min(expected)[0], max(expected)[0]
    for period in _by_edges(calls, best, folds=folds):
        turns = iterations_of(period, calls.symbols)
        found = {turn[:2] for turn in turns if earliest <= turn.first <= latest}
        alike = len(found & expected) / len(expected)
        # The period can find further steps of another kind.
        if alike >= _ALMOST_ALL and len(found) * _LEAST_SHARE <= len(expected):
            certainty *= alike * (1 - 1 / len(expected))
            percent = min(99, round(100 * certainty))
            is_sure = percent >= LEAST_CONFIDENCE_PERCENT
            return period._replace(confidence_percent=percent) if is_sure else Reason.UNSURE
    return Reason.NO_EDGES


def _where_they_meet(text: _Text) -> _Division | None:
    # The best division at calls that synchronize host and device.
    divisions = (
        _divide(text, symbol, text.cuts(symbol, places))
        for symbol, places in text.places().items()
        if text.roles[symbol] in _MEETING
    )
    found = [division for division in divisions if division.is_good(_LEAST_SHARE)]
    if not found:
        return None
    most = max(len(division.steps) for division in found)
    often = [division for division in found if len(division.steps) >= _ALMOST_ALL * most]
    best = min(often, key=lambda division: (len(division.words), -division.share))
    # A unit that always consists of the same few parts is one step.
    wholes = (
        whole
        for whole in found
        if len(whole.words) == 1 < len(best.words)
        and whole.share >= _ALMOST_ALL
        and whole.whole_share >= _LEAST_SHARE
        and len(best.steps) <= _PARTS * len(whole.steps)
        and whole.mean_calls >= _LONGER * best.mean_calls
    )
    return next(wholes, best)


def _of_launches(text: _Text) -> _Division | None:
    # The best division at other calls, which must have a single word.
    divisions = (_divide(text, symbol, places) for symbol, places in text.places().items())
    alike = (
        division
        for division in divisions
        if len(division.words) == 1 and division.is_good(_ALMOST_ALL)
    )
    return max(alike, key=lambda division: len(division.steps), default=None)


def _share_by_chance(
    symbols: Sequence[int], roles: Mapping[int, CallRole], symbol: int, *, folds: bool
) -> float:
    # The share of whole known words after the latest calls were shuffled.
    shuffler = random.Random(0)  # noqa: S311 -- the same each time
    order, shares = list(symbols[-_SHUFFLED:]), []
    for _ in range(_SHUFFLES):
        shuffler.shuffle(order)
        calls = [one for at, one in enumerate(order) if not (folds and at and one == order[at - 1])]
        text = _Text(calls, roles)
        places = (at for at, one in enumerate(calls) if one == symbol)
        shares.append(_divide(text, symbol, text.cuts(symbol, places)).whole_share)
    return fmean(shares)


def _rotated(text: _Text, gaps_ns: Sequence[int], division: _Division) -> _Division:
    # The same steps, moved to where in the iteration they begin.
    symbols, roles = text.symbols, text.roles
    main = max(division.words, key=division.words.__getitem__)
    begins = [at for at, end in division.steps if text.word(at, end) == main][-_SAMPLES:]
    usual_ns = {
        shift: median(gaps_ns[at + shift] for at in begins if at + shift < len(gaps_ns))
        for shift in _shifts(symbols, division, main)
    }
    longest_ns = max(usual_ns.values()) or 1

    def inviting(shift: int) -> float:
        at = begins[0] + shift
        before, after = roles[symbols[at - 1]], roles[symbols[at]]
        ends = before in _ENDING and after not in _ENDING
        copies = after is CallRole.TO_DEVICE is not before
        return usual_ns[shift] / longest_ns + ends + copies

    likely = sorted(usual_ns, key=inviting, reverse=True)[:_ROTATIONS]
    rotations = [
        _divide(text, division.symbol, _moved(division.cuts, shift, len(symbols)))
        for shift in likely
    ]
    most = max(len(rotation.steps) for rotation in rotations)

    def fitting(at: int) -> float:
        # One step more or less is due to the ends of the sequence. More are due to calls between steps.
        missing = max(0, most - len(rotations[at].steps) - 1) / most
        return inviting(likely[at]) - min(_COME_BETWEEN, _MISSING * missing)

    return rotations[max(range(len(likely)), key=fitting)]


def _moved(cuts: Sequence[int], shift: int, calls: int) -> list[int]:
    return [cut + shift for cut in cuts if 0 <= cut + shift <= calls]


def _shifts(symbols: Sequence[int], division: _Division, main: int) -> range:
    # By how much all cuts can move without more words.
    if len(division.words) == 1:
        first, end = division.examples[main]
        return range(end - first)
    words = [symbols[slice(*division.examples[word])] for word in division.words]
    return range(-_alike(word[::-1] for word in words), _alike(words) + 1)


def _alike(words: Iterable[Sequence[int]]) -> int:
    # How many calls all words have in common at the start.
    return next((at for at, ones in enumerate(zip(*words, strict=False)) if len(set(ones)) > 1), 0)


def _by_edges(calls: CallSequence, division: _Division, *, folds: bool) -> Iterator[Period]:
    # Periods by the first and last calls of steps, with the fewest calls first.
    steps = [calls.symbols[slice(*division.examples[word])] for word in division.words]
    lengths = [len(step) for step in steps]
    for length in range(1, min(HISTORY_CALLS, *lengths) + 1):
        starts = {history_of(step[:length]) for step in steps}
        ends = {history_of(step[-length:]) for step in steps}
        if max(len(starts), len(ends)) <= MOST_PATTERNS:
            yield Period(
                *(tuple(sorted(starts)), length, tuple(sorted(ends)), length),
                folds=folds,
                confidence_percent=0,
                longest_calls=max(lengths),
            )
