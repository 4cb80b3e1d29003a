"""
One memory bound for all caches of the agent.

Each cache has a bound of its own, and the sum of these bounds is far more than an agent should take.
So a cache registers here under a name, with a function that evicts its oldest entries. The sizes are
estimated regularly. While the sum is too large, the largest cache evicts a quarter of its entries.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_Owner = TypeVar("_Owner")
_Result = TypeVar("_Result")
_Type = TypeVar("_Type", bound=type)

_SAMPLED = 8
# Iterating far into a large collection takes time.
_MOST_STEP = 512
# Objects counted for one entry. What it refers to beyond that is probably shared with others.
_MOST_OBJECTS = 1_024
_PLAIN = (str, bytes, bytearray, int, float, bool, type(None))
_PRUNED_EVERY = 64
# Entries are measured again when their number changed by more than this, and at every 16th request.
_SAME_COUNT = 0.125
_FEW = 8
_MEASURED_EVERY = 16
# Between two measurements of an agent at rest.
_AT_REST_S = 20.0
# Of a cache that is too large: the share that is evicted at a time at most, and the share beyond the excess.
# Smaller steps leave fewer holes in Python's memory, which stays mapped.
_RELEASED_SHARE, _SPARE_SHARE = 0.25, 0.03


_shared: set[type] = set()


def shared(kind: _Type) -> _Type:
    """Exclude objects of a class from the sizes of entries, as many entries refer to one object."""
    _shared.add(kind)
    return kind


class Held(NamedTuple):
    """Entries of all caches of one name; ``size_bytes`` is estimated from a few of them."""

    entries: int
    size_bytes: int


@dataclass(slots=True)
class _Cache:
    name: str
    owner: "ref[Any]"
    attribute: str
    release: Callable[[Any, int], object] | None
    size_bytes: str
    entry_bytes: int
    least: int
    # Of the last measurement: the entries, their size, and how many requests it has answered.
    measured: tuple[int, int, int] = (0, 0, 0)

    def held(self) -> Held:
        owner = self.owner()
        if owner is None:
            return Held(0, 0)
        entries = getattr(owner, self.attribute) if self.attribute else owner
        count = len(entries)
        if self.size_bytes or self.entry_bytes:
            known_bytes = getattr(owner, self.size_bytes) if self.size_bytes else 0
            return Held(count, known_bytes + self.entry_bytes * count)
        counted, counted_bytes, asked = self.measured
        if (
            asked >= _MEASURED_EVERY
            or abs(count - counted) > max(_FEW, _SAME_COUNT * counted)
            or (count and not counted)
        ):
            counted, counted_bytes, asked = count, estimated_bytes(entries), 0
        self.measured = counted, counted_bytes, asked + 1
        return Held(count, counted_bytes * count // max(1, counted))


class Caches:
    """
    The caches of one process.

    Args:
        clock: A monotonic clock in seconds.

    Attributes:
        held: Entries and size by name, at the last measurement.
        released: Entries evicted because all caches together were too large, by name.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = -math.inf
        self._caches: list[_Cache] = []
        self.held: Mapping[str, Held] = {}
        self.released: dict[str, int] = {}

    def register(
        self,
        name: str,
        owner: _Owner,
        attribute: str = "",
        *,
        release: Callable[[_Owner, int], object] | None = None,
        size_bytes: str = "",
        entry_bytes: int = 0,
        least: int = 0,
    ) -> None:
        """
        Count a cache for as long as its owner lives.

        Args:
            name: Its name in telemetry; several caches can share one.
            owner: The object that has the entries; must allow weak references.
            attribute: The owner's attribute with the entries; empty: the owner is a collection.
            release: Evicts the given number of oldest entries; without it, only the cache's own
                bound holds.
            size_bytes: The owner's attribute with the size, if it knows its size.
            entry_bytes: Bytes of each entry, added to ``size_bytes``; 0 without ``size_bytes``: a
                few entries are measured.
            least: Entries that are never evicted.
        """
        if len(self._caches) % _PRUNED_EVERY == 0:
            self._prune()
        self._caches.append(
            _Cache(*(name, ref(owner), attribute, release, size_bytes, entry_bytes, least))
        )

    def keep_within(self, most_bytes: int, *, is_at_rest: bool = False) -> None:
        """
        Estimate the size of all caches, and evict from the largest while the sum is too large.

        Args:
            most_bytes: The bound for all caches together.
            is_at_rest: Nearly nothing is added at present: measure a few times a minute only.
        """
        now_s = self._clock()
        if is_at_rest and now_s < self._due_s:
            return
        self._due_s = now_s + _AT_REST_S
        self._prune()
        sizes = [cache.held() for cache in self._caches]
        total = sum(held.size_bytes for held in sizes)
        can = {at for at, cache in enumerate(self._caches) if cache.release is not None}
        while can and total > most_bytes:
            at = max(can, key=lambda at: sizes[at].size_bytes)
            before, sizes[at] = (
                sizes[at],
                self._release(self._caches[at], sizes[at], total - most_bytes),
            )
            total -= before.size_bytes - sizes[at].size_bytes
            if sizes[at].entries == before.entries:
                can.remove(at)
        held: dict[str, Held] = {}
        for cache, one in zip(self._caches, sizes, strict=True):
            entries, size_bytes = held.get(cache.name, (0, 0))
            held[cache.name] = Held(entries + one.entries, size_bytes + one.size_bytes)
        self.held = held

    def figures(self) -> dict[str, dict[str, int]]:
        """Return entries, bytes and evicted entries by name, for the agent's status."""
        return {
            "cache_entries": {name: held.entries for name, held in self.held.items()},
            "cache_bytes": {name: held.size_bytes for name, held in self.held.items()},
            "cache_released": dict(self.released),
        }

    def _prune(self) -> None:
        self._caches = [cache for cache in self._caches if cache.owner() is not None]

    def _release(self, cache: _Cache, before: Held, excess_bytes: int) -> Held:
        owner = cache.owner()
        if owner is None or cache.release is None:
            return Held(0, 0)
        most = before.entries - cache.least
        if most <= 0:
            return before
        share = min(excess_bytes / max(1, before.size_bytes) + _SPARE_SHARE, _RELEASED_SHARE)
        cache.release(owner, min(most, math.ceil(before.entries * share)))
        after = cache.held()
        gone = max(0, before.entries - after.entries)
        self.released[cache.name] = self.released.get(cache.name, 0) + gone
        return after


CACHES = Caches()
"""The caches of this process."""


class _Remembered:
    # The results of a function. ``lru_cache`` can only evict all at once.
    def __init__(self, function: "_lru_cache_wrapper[object]") -> None:
        self._function = function

    def __len__(self) -> int:
        return self._function.cache_info().currsize

    def release(self, _: int) -> None:
        self._function.cache_clear()


_functions: list[_Remembered] = []


def remembered(
    name: str, most: int, entry_bytes: int
) -> Callable[[Callable[..., _Result]], "_lru_cache_wrapper[_Result]"]:
    """
    Decorate a function with ``lru_cache``, and register its results with ``CACHES``.

    Args:
        name: Of the cache; several functions can share one.
        most: Results that are kept.
        entry_bytes: Approximate size of one result and its arguments.
    """

    def remember(function: Callable[..., _Result]) -> "_lru_cache_wrapper[_Result]":
        found = lru_cache(most)(function)
        _functions.append(_Remembered(found))
        CACHES.register(name, _functions[-1], release=_Remembered.release, entry_bytes=entry_bytes)
        return found

    return remember


def estimated_bytes(entries: Collection[object]) -> int:
    """Estimate the size of a collection and of what only it refers to, from a few entries."""
    count = len(entries)
    if not count:
        return sys.getsizeof(entries)
    pairs: Iterable[object] = entries.items() if isinstance(entries, Mapping) else entries
    step = max(1, min(count // _SAMPLED, _MOST_STEP))
    sampled = list(islice(pairs, 0, step * _SAMPLED, step))
    # Objects that several of them refer to are counted once.
    seen: set[int] = set()
    size_bytes = sum(_deep_bytes(one, seen) for one in sampled)
    return sys.getsizeof(entries) + size_bytes * count // len(sampled)


def _deep_bytes(entry: object, seen: set[int]) -> int:
    size_bytes, left = 0, _MOST_OBJECTS
    waiting = [entry]
    while waiting and left:
        one = waiting.pop()
        if id(one) in seen or type(one) in _shared or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        left -= 1
        size_bytes += sys.getsizeof(one)
        if not isinstance(one, _PLAIN):
            waiting += _parts(one)
    return size_bytes


def _parts(one: object) -> Iterable[object]:
    if isinstance(one, Mapping):
        return [part for pair in one.items() for part in pair]
    if isinstance(one, tuple | list | set | frozenset | deque):
        return list(one)
    attributes: Mapping[str, object] | None = getattr(one, "__dict__", None)
    if attributes is not None:
        return list(attributes.values())
    names = getattr(type(one), "__slots__", ())
    return [getattr(one, name, None) for name in ((names,) if isinstance(names, str) else names)]
