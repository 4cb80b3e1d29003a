"""
Cached outer parts of walks, which are not walked again.

A tick interrupts a thread anywhere, so whole walks hardly repeat. But a few frames further out, its
calls have been open for long, and the return addresses and saved registers that a walk reads there are
unchanged. If so, the result of the walk from there is known.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_gpu.limits.caches import CACHES, remembered
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.frames import NativeStack

_TAIL_BYTES = 3_000
_MAX_SUFFIXES: Final = 4096
_FEW: Final = 4


class CachedSuffix:
    """
    A walk from a caller to the start of its thread.

    Attributes:
        addresses: Code addresses, innermost first.
        stack_pointers: The stack pointer in each frame, in words from the first of them.
        named: The functions at the addresses, and when they expire; None: not resolved yet.
    """

    __slots__ = (
        *("_frame_pointer", "_longest", "_read", "_values"),
        *("addresses", "named", "stack_pointers"),
    )

    def __init__(
        self, walk: NativeStack, words: Sequence[int], stack_pointer: int, frame_pointer: int
    ) -> None:
        self._longest = max(walk.words, default=-1)
        self._read = _reader(walk.words)
        self._values = self._read(words)
        self._frame_pointer = frame_pointer - stack_pointer if walk.uses_frame_pointer else None
        self.addresses = walk.addresses
        self.stack_pointers = tuple((one - stack_pointer) >> 3 for one in walk.stack_pointers)
        self.named: tuple[Any, float] | None = None

    def is_at(self, words: Sequence[int], frame_pointer: int) -> bool:
        """
        Whether a walk from here would be this one.

        ``words`` are the stack from the stack pointer on; ``frame_pointer`` is relative to it, in
        bytes.
        """
        return (
            self._longest < len(words)
            and self._frame_pointer in (None, frame_pointer)
            and bool(self._read(words) == self._values)
        )


# Walks of one shape share their reader.
@remembered("stack_readers", 512, 1_200)
def _reader(positions: tuple[int, ...]) -> Callable[[Sequence[int]], object]:
    return operator.itemgetter(*positions) if positions else lambda _: ()


class CachedSuffixes:
    """Suffixes by program and return address; evicts those of the least recently used program."""

    def __init__(self, limit: int = _MAX_SUFFIXES) -> None:
        self._limit = limit
        self._count = 0
        self._by_generation: Recent[int, dict[int, list[CachedSuffix]]] = Recent(limit)
        CACHES.register(
            "stack_tails",
            self,
            "_by_generation",
            release=CachedSuffixes._release,
            size_bytes="_size_bytes",
        )

    @property
    def _size_bytes(self) -> int:
        return _TAIL_BYTES * self._count

    def of(self, generation: int) -> dict[int, list[CachedSuffix]]:
        """Return the suffixes of a program, by the address before the return address."""
        found = self._by_generation.use(generation)
        if found is None:
            found = self._by_generation[generation] = {}
        return found

    def add(self, generation: int, lookup: int, suffix: CachedSuffix) -> None:
        """Add a suffix, and evict the oldest of several at one address."""
        suffixes = self.of(generation).setdefault(lookup, [])
        suffixes.insert(0, suffix)
        self._count += 1 - len(suffixes[_FEW:])
        del suffixes[_FEW:]
        while self._count > self._limit:
            self._release(1)

    def forget(self, generation: int) -> None:
        """Evict the suffixes of a program that ended."""
        self._count -= sum(map(len, self._by_generation.pop(generation, {}).values()))

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._by_generation))):
            self.forget(self._by_generation.oldest)
