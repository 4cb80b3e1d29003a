"""What was used last, in bounded memory."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Recent(OrderedDict[_Key, _Value]):
    """
    A mapping of so many entries; of one too many, the entry that was not used for longest goes.

    To set an entry is a use, and so is ``use``; all other ways to read it are not. The order is
    that of use.

        >>> squares = Recent(2)
        >>> squares[1], squares[2] = 1, 4
        >>> squares.use(1)
        1
        >>> squares[3] = 9
        >>> list(squares)
        [1, 3]
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self.popitem(last=False)

    def use(self, key: _Key) -> _Value | None:
        """Return what is under a key; None: nothing."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self[key]

    def release(self, count: int) -> None:
        """Let go of so many of the entries that were not used for longest."""
        for _ in range(min(count, len(self))):
            self.popitem(last=False)

    @property
    def oldest(self) -> _Key:
        """The entry that was not used for longest, of at least one."""
        return next(iter(self))
