"""
Walks that need not be done again.

A training step makes the same calls from the same places, thousands of times. To make a stack
of a sample costs a quarter of a millisecond and more, for reading a few dozen of its words:
return addresses and saved registers. A walk is a function of the registers and of the words
that it reads. So where those are as they were, its result is known.

The frame pointer is apart: most functions keep a variable in it, which is another at each call
and which most walks do not depend on.
"""

import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from otel_gpu.limits.caches import remembered

_FEW: Final = 8


class _Walk(NamedTuple):
    read: Callable[[Sequence[int]], object]
    values: object
    longest: int
    frame_pointer: int | None
    stack: int
    ends_ktime_ns: float


class Walks:
    """The stacks of the ``limit`` walks that were used last, by what they depend on."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._count = 0
        self._walks: OrderedDict[tuple[Hashable, ...], list[_Walk]] = OrderedDict()

    def find(
        self, key: tuple[Hashable, ...], words: Sequence[int], frame_pointer: int, ktime_ns: int
    ) -> int | None:
        """Return the stack that a walk would give; None if that is not known. See ``keep``."""
        count = len(words)
        for walk in self._walks.get(key, ()):
            if (
                walk.longest < count
                and walk.frame_pointer in (None, frame_pointer)
                and walk.read(words) == walk.values
                and ktime_ns < walk.ends_ktime_ns
            ):
                self._walks.move_to_end(key)
                return walk.stack
        return None

    def forget(self, owners: AbstractSet[Hashable]) -> None:
        """Forget the walks of some owners: what a key begins with."""
        for key in [key for key in self._walks if key[0] in owners]:
            self._count -= len(self._walks.pop(key))

    def keep(
        self,
        key: tuple[Hashable, ...],
        words: Sequence[int],
        positions: tuple[int, ...],
        stack: int,
        *,
        frame_pointer: int | None = None,
        ends_ktime_ns: float = math.inf,
    ) -> None:
        """
        Remember that a stack came of a walk, which depended on nothing but its arguments.

        The key begins with its owner; ``positions`` are those of the words that it read, from the
        stack pointer on. A ``frame_pointer`` of None says that it did not depend on that register,
        and ``ends_ktime_ns`` from when on it has to be done again.
        """
        longest = max(positions, default=-1)
        if longest >= len(words) or min(positions, default=0) < 0:
            return
        read = _reader(positions)
        walks = self._walks.setdefault(key, [])
        self._walks.move_to_end(key)
        walks.insert(0, _Walk(read, read(words), longest, frame_pointer, stack, ends_ktime_ns))
        self._count += 1 - len(walks[_FEW:])
        del walks[_FEW:]
        while self._count > self._limit:
            self._count -= len(self._walks.popitem(last=False)[1])


# Walks of one shape share their reader, which is larger than the values that it reads.
@remembered("stack_readers", 512, 1_200)
def _reader(positions: tuple[int, ...]) -> Callable[[Sequence[int]], object]:
    return operator.itemgetter(*positions) if positions else lambda _: ()
