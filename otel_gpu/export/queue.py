"""
What waits to be sent: bounded by bytes, and every span accounted for.

When there is no room the oldest spans go. Whoever looks at a backend wants to know
what happens now, and after an outage the newest spans are those whose neighbours
still come.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from otel_gpu.caches import CACHES
from otel_gpu.export.finished import Origin


class Pending(NamedTuple):
    """What waits: the bytes of a span or log record, or a ``FinishedSpan`` as it is."""

    origin: Origin
    size_bytes: int
    content: Any


@dataclass(kw_only=True, eq=False)
class SpanQueue:
    """
    First in, first out, within a number of bytes; not safe between threads.

    A batch that was taken still counts in ``size_bytes`` until it is settled. ``header_size`` is
    what the first span of an origin adds to a batch, in bytes, and ``overhead_bytes`` what memory
    a waiting span takes beside its content. One span alone may be larger than a batch.
    """

    limit_bytes: int
    batch_bytes: int
    batch_spans: int
    header_size: Callable[[Origin], int]
    overhead_bytes: int = 0
    size_bytes: int = field(default=0, init=False)
    _waiting: deque[Pending] = field(default_factory=deque, init=False)
    _waiting_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        CACHES.register("span_queue", self, "_waiting", size_bytes="size_bytes")
        self._most_batch_bytes = self.batch_bytes = min(self.batch_bytes, self.limit_bytes)

    def __len__(self) -> int:
        return len(self._waiting)

    def has_batch(self) -> bool:
        """Say whether a whole batch waits."""
        return self._waiting_bytes >= self.batch_bytes or len(self._waiting) >= self.batch_spans

    def put(self, *arrived: Pending) -> int:
        """Append spans; return how many were dropped to make room, of them or before them."""
        self._waiting.extend(arrived)
        arrived_bytes = _size_of(arrived)
        self._waiting_bytes += arrived_bytes
        self.size_bytes += arrived_bytes + len(arrived) * self.overhead_bytes
        count = 0
        while self._waiting and self.size_bytes > self.limit_bytes:
            dropped_bytes = self._waiting.popleft().size_bytes
            self._waiting_bytes -= dropped_bytes
            self.size_bytes -= dropped_bytes + self.overhead_bytes
            count += 1
        return count

    def take(self) -> list[Pending]:
        """Take the oldest spans that fit into a batch."""
        count = size_bytes = 0
        origins: set[Origin] = set()
        for origin, added_bytes, _ in islice(self._waiting, self.batch_spans):
            size_bytes += added_bytes
            if origin not in origins:
                origins.add(origin)
                size_bytes += self.header_size(origin)
            if count and size_bytes > self.batch_bytes:
                break
            count += 1
        batch = [self._waiting.popleft() for _ in range(count)]
        self._waiting_bytes -= _size_of(batch)
        return batch

    def settle(self, batch: Sequence[Pending]) -> None:
        """Forget spans that were taken."""
        self.size_bytes -= _size_of(batch) + len(batch) * self.overhead_bytes

    def put_back(self, batch: list[Pending]) -> None:
        """Let a taken batch wait again, before all others; its room was kept."""
        self._waiting.extendleft(reversed(batch))
        self._waiting_bytes += _size_of(batch)

    def clear(self) -> int:
        """Drop all that waits; return how many spans that were."""
        count = len(self._waiting)
        self.settle(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return count

    def halve_batches(self, batch: Iterable[Pending]) -> None:
        """Make later batches half as large as one that a receiver found too large."""
        self.batch_bytes = max(1, _size_of(batch) // 2)

    def grow_batches(self) -> None:
        """Let batches that were halved grow back a little, after one that arrived."""
        if self.batch_bytes < self._most_batch_bytes:
            larger_bytes = self.batch_bytes + self.batch_bytes // 8 + 1
            self.batch_bytes = min(larger_bytes, self._most_batch_bytes)


def _size_of(batch: Iterable[Pending]) -> int:
    return sum([pending.size_bytes for pending in batch])
