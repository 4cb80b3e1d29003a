"""
The send queue: bounded by bytes, with every span accounted for.

When it is full, the oldest spans of the user and program with most bytes are dropped, so that a
flood costs the one that makes it. After an outage the newest spans are the useful ones: the rest of
their traces still comes.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from otel_gpu.enrich.identity.cut_programs import CutPrograms
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.export.spans.finished import Origin
from otel_gpu.limits.caches import CACHES

# The program with most bytes is determined anew after such a part of them is dropped.
_PARTS = 8
# Dropping ranks all programs in the queue, so with many programs more is dropped at a time.
_PROGRAMS_PER_SPAN = 16
# A program's names are kept while one of its spans waits. They take this many times the bytes that
# they add to a batch.
_NAMES_BYTES = 5

# Bytes (negative, so that the most come first), a number that breaks ties, the program.
_Ranked: TypeAlias = tuple[int, int, Program | None]


class QueuedItem(NamedTuple):
    """One item of the queue: the bytes of a span or log record, or a ``FinishedSpan``."""

    origin: Origin
    size_bytes: int
    content: Any


@dataclass(kw_only=True, eq=False)
class SpanQueue:
    """
    A FIFO queue bounded by bytes; not safe between threads.

    A batch that was taken counts in ``size_bytes`` until it is settled. ``header_size`` returns the
    bytes that the first span of an origin adds to a batch; ``overhead_bytes`` is the memory of a
    waiting span besides its content. Names of programs count, too. A single span can be larger than
    a batch.

    ``cut`` counts each program's spans that were dropped while other programs had spans here.
    """

    limit_bytes: int
    batch_bytes: int
    batch_spans: int
    header_size: Callable[[Origin], int]
    overhead_bytes: int = 0
    size_bytes: int = field(default=0, init=False)
    cut: CutPrograms = field(default_factory=CutPrograms, init=False)
    # The order of programs. Turns of dropped spans stay until they are skipped: the first of their
    # program.
    _turns: deque[Program | None] = field(default_factory=deque, init=False)
    _missed_turns: Counter[Program | None] = field(default_factory=Counter, init=False)
    _missed: int = field(default=0, init=False)
    _waiting: dict[Program | None, deque[QueuedItem]] = field(default_factory=dict, init=False)
    # Includes batches that are not settled, and the names.
    _bytes: Counter[Program | None] = field(default_factory=Counter, init=False)
    _names_bytes: dict[Program | None, int] = field(default_factory=dict, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        CACHES.register("span_queue", self, "", size_bytes="size_bytes")
        self._most_batch_bytes = self.batch_bytes = min(self.batch_bytes, self.limit_bytes)

    def __len__(self) -> int:
        return self._count

    def has_batch(self) -> bool:
        """Return whether a whole batch waits."""
        return self._count >= self.batch_spans or self._waiting_bytes >= self.batch_bytes

    def put(self, *arrived: QueuedItem) -> int:
        """Append spans; return how many old or new ones were dropped because the queue was full."""
        for process, group in groupby(arrived, _process_of):
            pending = list(group)
            size_bytes = _size_of(pending)
            held_bytes = size_bytes + len(pending) * self.overhead_bytes
            if process not in self._bytes:
                names_bytes = _NAMES_BYTES * self.header_size(pending[0].origin) if process else 0
                self._names_bytes[process] = names_bytes
                held_bytes += names_bytes
            self._turns.extend([process] * len(pending))
            self._waiting_of(process).extend(pending)
            self._count += len(pending)
            self._waiting_bytes += size_bytes
            self._bytes[process] += held_bytes
            self.size_bytes += held_bytes
        return self._drop_excess() if self.size_bytes > self.limit_bytes else 0

    def take(self) -> list[QueuedItem]:
        """Take the oldest spans that fit into a batch."""
        batch: list[QueuedItem] = []
        size_bytes = 0
        origins: set[Origin] = set()
        turns, missed_turns, waiting = self._turns, self._missed_turns, self._waiting
        for _ in range(min(self._count, self.batch_spans)):
            while missed_turns and missed_turns[turns[0]]:
                self._miss(turns.popleft(), -1)
            pending = waiting[turns[0]][0]
            origin, added_bytes, _ = pending
            size_bytes += added_bytes
            if origin not in origins:
                origins.add(origin)
                size_bytes += self.header_size(origin)
            if batch and size_bytes > self.batch_bytes:
                break
            waiting[turns.popleft()].popleft()
            batch.append(pending)
        self._count -= len(batch)
        self._waiting_bytes -= _size_of(batch)
        self._forget_empty(origin.process for origin in origins)
        return batch

    def settle(self, batch: Sequence[QueuedItem]) -> None:
        """Release a batch that was taken."""
        for process, group in groupby(batch, _process_of):
            pending = list(group)
            held_bytes = _size_of(pending) + len(pending) * self.overhead_bytes
            if self._bytes[process] - held_bytes <= self._names_bytes[process]:
                held_bytes = self._bytes.pop(process)
                del self._names_bytes[process]
            else:
                self._bytes[process] -= held_bytes
            self.size_bytes -= held_bytes

    def put_back(self, batch: list[QueuedItem]) -> None:
        """Return a taken batch to the front of the queue; its bytes were still counted."""
        self._forget_missed_turns()
        for pending in reversed(batch):
            process = pending.origin.process
            self._turns.appendleft(process)
            self._waiting_of(process).appendleft(pending)
        self._count += len(batch)
        self._waiting_bytes += _size_of(batch)

    def clear(self) -> int:
        """Drop all that waits; return the number of spans."""
        count = self._count
        for waiting in self._waiting.values():
            self.settle(waiting)
        for counts in (self._turns, self._missed_turns, self._waiting):
            counts.clear()
        self._count = self._waiting_bytes = self._missed = 0
        return count

    def halve_batches(self, batch: Iterable[QueuedItem]) -> None:
        """Halve the size of later batches, after a receiver found this one too large."""
        self.batch_bytes = max(1, _size_of(batch) // 2)

    def grow_batches(self) -> None:
        """Let batches that were halved grow back a little, after a delivery."""
        if self.batch_bytes < self._most_batch_bytes:
            larger_bytes = self.batch_bytes + self.batch_bytes // 8 + 1
            self.batch_bytes = min(larger_bytes, self._most_batch_bytes)

    def _waiting_of(self, process: Program | None) -> deque[QueuedItem]:
        waiting = self._waiting.get(process)
        if waiting is None:
            waiting = self._waiting[process] = deque()
        return waiting

    def _forget_empty(self, processes: Iterable[Program | None]) -> None:
        for process in processes:
            if not self._waiting.get(process, True):
                del self._waiting[process]

    def _drop_excess(self) -> int:
        before = self._count
        enough = before - len(self._waiting) // _PROGRAMS_PER_SPAN
        users, programs = self._rank()
        while self._count and (self.size_bytes > self.limit_bytes or self._count > enough):
            user = max(programs, key=users.__getitem__)
            largest = programs[user]
            _, number, process = largest[0]
            has_others, held_bytes = len(self._bytes) > 1, self._bytes[process]
            dropped = self._drop_oldest(process)
            users[user] -= held_bytes - self._bytes[process]
            if has_others:
                self.cut.add(process, dropped)
            if process in self._waiting:
                heapreplace(largest, (-self._bytes[process], number, process))
            else:
                heappop(largest)
            if not largest:
                del programs[user]
        if self._missed > len(self._turns) // 2:
            self._forget_missed_turns()
        return before - self._count

    def _rank(self) -> tuple[Counter[str], dict[str, list[_Ranked]]]:
        # Bytes by user, and for each user a heap of its programs that wait, the largest first.
        users: Counter[str] = Counter()
        programs: dict[str, list[_Ranked]] = {}
        for process, held_bytes in self._bytes.items():
            users[_user_of(process)] += held_bytes
        for number, process in enumerate(self._waiting):
            ranked = (-self._bytes[process], number, process)
            programs.setdefault(_user_of(process), []).append(ranked)
        for largest in programs.values():
            heapify(largest)
        return users, programs

    def _drop_oldest(self, process: Program | None) -> int:
        # Drops at least one of the program's oldest spans; returns how many.
        waiting = self._waiting[process]
        most = len(waiting) // _PARTS + 1
        dropped: list[QueuedItem] = []
        excess_bytes = max(1, self.size_bytes - self.limit_bytes)
        while excess_bytes > 0 and len(dropped) < most and waiting:
            dropped.append(waiting.popleft())
            excess_bytes -= dropped[-1].size_bytes + self.overhead_bytes
        self.settle(dropped)
        self._count -= len(dropped)
        self._waiting_bytes -= _size_of(dropped)
        self._miss(process, len(dropped))
        self._forget_empty([process])
        return len(dropped)

    def _miss(self, process: Program | None, turns: int) -> None:
        self._missed += turns
        self._missed_turns[process] += turns
        if not self._missed_turns[process]:
            del self._missed_turns[process]

    def _forget_missed_turns(self) -> None:
        if self._missed_turns:
            turns, self._turns = self._turns, deque()
            for process in turns:
                if self._missed_turns[process]:
                    self._miss(process, -1)
                else:
                    self._turns.append(process)


def _size_of(batch: Iterable[QueuedItem]) -> int:
    return sum([pending.size_bytes for pending in batch])


def _process_of(pending: QueuedItem) -> Program | None:
    return pending.origin.process


def _user_of(process: Program | None) -> str:
    return process.user if process is not None else ""
