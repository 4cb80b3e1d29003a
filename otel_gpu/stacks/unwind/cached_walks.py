"""
Cached walks, which are not made again.

A training step makes the same calls from the same code thousands of times. Resolving a stack costs a
quarter of a millisecond and more, to read a few dozen words: return addresses and saved registers. A
walk is a function of the registers and of the words that it reads. If they are equal, the result is
known.

The frame pointer is handled separately: most functions keep a variable in it, which differs at each
call, and most walks do not depend on it.
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
    """The stacks of the ``limit`` most recently used walks, by their inputs."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._count = 0
        self._walks: OrderedDict[tuple[Hashable, ...], list[_Walk]] = OrderedDict()

    def find(
        self, key: tuple[Hashable, ...], words: Sequence[int], frame_pointer: int, ktime_ns: int
    ) -> int | None:
        """Return the stack that a walk would give, or None. See ``keep``."""
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
        """Evict the walks of some owners, the first items of keys."""
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
        Cache the stack of a walk that depended only on these arguments.

        The key starts with its owner; ``positions`` are the words that it read, from the stack pointer
        on. A ``frame_pointer`` of None: the walk did not depend on it. The entry expires at
        ``ends_ktime_ns``.
        """
        longest = max(positions, default=-1)
        if longest >= len(words) or min(positions, default=0) < 0:
            return
        read = _reader(positions)
        walks = self._walks.setdefault(key, [])
        self._walks.move_to_end(key)
        walks.insert(
            0,
            _Walk(
                read=read,
                values=read(words),
                longest=longest,
                frame_pointer=frame_pointer,
                stack=stack,
                ends_ktime_ns=ends_ktime_ns,
            ),
        )
        self._count += 1 - len(walks[_FEW:])
        del walks[_FEW:]
        while self._count > self._limit:
            self._count -= len(self._walks.popitem(last=False)[1])


# Walks of one shape share a reader, which is larger than the values that it reads.
@remembered("stack_readers", 512, 1_200)
def _reader(positions: tuple[int, ...]) -> Callable[[Sequence[int]], object]:
    return operator.itemgetter(*positions) if positions else lambda _: ()
