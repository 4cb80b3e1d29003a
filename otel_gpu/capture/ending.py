"""
The end of a capture that was told to end: records are read for a moment more, and then no longer.

What programs leave in the rings can take minutes to explain and to keep. What was counted is read
after that all the same, as it is what reports promise.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final

END_UNREAD: Final = "end_unread"
"""The reason of losses of records that were not read any more."""

# A capture ends within 5 s, with all that is read and sent after this.
_READS_S = 1.0
_AT_A_TIME = 64


class Ending:
    """
    Says whether records are still read.

    Args:
        clock: A monotonic clock in seconds.

    Attributes:
        unread: How many records were not read any more, or nothing was done that they ask for.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = math.inf
        self.unread = 0

    def begin(self) -> None:
        """Take in that the capture is to end; safe in a signal handler."""
        self._until_s = min(self._until_s, self._clock() + _READS_S)

    @property
    def has_begun(self) -> bool:
        """Whether the capture was told to end."""
        return self._until_s < math.inf

    @property
    def is_over(self) -> bool:
        """Whether no records are read any more."""
        return self._clock() >= self._until_s

    def within(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """Yield records, and take and count the rest when it is over."""
        return chain.from_iterable(self._pieces(iter(records)))

    def _pieces(self, records: Iterator[bytes]) -> Iterator[list[bytes]]:
        while not self.is_over:
            piece = list(islice(records, _AT_A_TIME))
            if not piece:
                return
            yield piece
        self.unread += sum(1 for _ in records)
