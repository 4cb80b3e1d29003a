"""Mappings of bounded size, which evict by use or by age."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from otel_gpu.limits.caches import CACHES

_Group = TypeVar("_Group", bound=Hashable)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")

# Half as expensive as super(), and these mappings are on hot paths.
_set = OrderedDict.__setitem__


class Fifo(OrderedDict[_Key, _Value]):
    """
    A mapping of at most ``limit`` entries; one too many evicts the entry that was added first.

    Setting an existing key keeps its position.

    Args:
        limit: Most entries.
        cache: Register it with ``CACHES`` under this name, so that it shrinks when memory is short.
        entry_bytes: Size of one entry, as for ``Caches.register``.
        evict: Called with the key and value of each entry that ``limit`` or memory evicts, after
            it was removed: to count it, or to free what belongs to it.

    >>> squares = Fifo(2)
    >>> squares[1], squares[2], squares[1], squares[3] = 1, 4, 1, 9
    >>> list(squares)
    [2, 3]
    """

    def __init__(
        self,
        limit: int,
        *,
        cache: str = "",
        entry_bytes: int = 0,
        evict: Callable[[_Key, _Value], object] | None = None,
    ) -> None:
        super().__init__()
        self.limit = limit
        self._evict = evict
        if cache:
            CACHES.register(cache, self, release=Fifo.release, entry_bytes=entry_bytes)

    def __setitem__(self, key: _Key, value: _Value) -> None:
        _set(self, key, value)
        if len(self) > self.limit:
            self._evict_oldest()

    def release(self, count: int) -> None:
        """Evict the first ``count`` entries."""
        for _ in range(min(count, len(self))):
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        evicted = self.popitem(last=False)
        if self._evict is not None:
            self._evict(*evicted)

    @property
    def oldest(self) -> _Key:
        """The key that is evicted next; ``StopIteration`` if there is none."""
        return next(iter(self))


class Recent(Fifo[_Key, _Value]):
    """
    A mapping of at most ``limit`` entries; one too many evicts the least recently used entry.

    Setting an entry and ``use`` are uses; other ways to read it are not.

    >>> squares = Recent(2)
    >>> squares[1], squares[2] = 1, 4
    >>> squares.use(1)
    1
    >>> squares[3] = 9
    >>> list(squares)
    [1, 3]
    """

    def __setitem__(self, key: _Key, value: _Value) -> None:
        _set(self, key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self._evict_oldest()

    def use(self, key: _Key) -> _Value | None:
        """Return the value of a key, or None."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self[key]


class GroupedRecent(Generic[_Group, _Key, _Value]):
    """
    A ``Recent`` with keys of groups, such as programs, whose entries are forgotten together.

    Args:
        limit: Most entries of all groups.
        cache: As for ``Recent``.

    >>> names = GroupedRecent(3)
    >>> names["a", 1], names["b", 1], names["b", 2] = "one", "uno", "due"
    >>> names.forget("b")
    >>> len(names), names.use(("a", 1)), names.use(("b", 1))
    (1, 'one', None)
    """

    def __init__(self, limit: int, *, cache: str = "") -> None:
        self._entries: Recent[tuple[_Group, _Key], _Value] = Recent(
            limit, cache=cache, evict=self._unlist
        )
        self._keys: dict[_Group, set[tuple[_Group, _Key]]] = {}
        self.use = self._entries.use

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, key: tuple[_Group, _Key], value: _Value) -> None:
        self._keys.setdefault(key[0], set()).add(key)
        self._entries[key] = value

    def get(self, key: tuple[_Group, _Key]) -> _Value | None:
        """Return the value of a key, or None; this does not count as a use."""
        return self._entries.get(key)

    def discard(self, key: tuple[_Group, _Key]) -> None:
        """Remove an entry, if there is one."""
        if key in self._entries:
            self._unlist(key, self._entries.pop(key))

    def forget(self, group: _Group) -> None:
        """Remove the entries of a group."""
        for key in self._keys.pop(group, ()):
            del self._entries[key]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._keys.clear()

    def _unlist(self, key: tuple[_Group, _Key], _: _Value) -> None:
        keys = self._keys[key[0]]
        keys.remove(key)
        if not keys:
            del self._keys[key[0]]
