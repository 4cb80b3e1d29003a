"""
The end of a capture: after a request to end, records are read for one more second.

The rest of the rings can take minutes to process, so it is counted as unread. Series and totals are
still read after that, because reports promise them.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

# The whole end, with final readings and export, has to take less than 5 s.
_READS_S = 1.0
_AT_A_TIME = 64


class Ending:
    """
    The state of the end of one capture.

    Args:
        clock: A monotonic clock in seconds.

    Attributes:
        unread: How many records were not read, or not acted on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = math.inf
        self.unread = 0

    def begin(self) -> None:
        """Request the end; safe in a signal handler."""
        self._until_s = min(self._until_s, self._clock() + _READS_S)

    @property
    def has_begun(self) -> bool:
        """Whether the end was requested."""
        return self._until_s < math.inf

    @property
    def is_over(self) -> bool:
        """Whether the time for reading records is over."""
        return self._clock() >= self._until_s

    def within(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """Yield records while there is time; consume the rest, and count it as unread."""
        return chain.from_iterable(self._batches(iter(records)))

    def _batches(self, records: Iterator[bytes]) -> Iterator[list[bytes]]:
        while not self.is_over:
            batch = list(islice(records, _AT_A_TIME))
            if not batch:
                return
            yield batch
        self.unread += sum(1 for _ in records)
