"""
What a writer keeps of each process: its number, those of its series, and what they stand at.

All of it is in one object, which goes a little after the process ended, or when there are
too many. What is left then is the number, for records that come late.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpu.decode.events import SeriesKey
from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.store.losses import NOT_FOLLOWED, TOO_MANY_SERIES
from otel_gpu.store.totals import NO_TIME, NOTHING, ThreadTotal, Total

MAX_PROCESSES = 8_192
"""Processes that are followed at a time, those included that ended a moment ago."""
MAX_ENDED = 2_048
"""Those of them that ended."""
MAX_FOLLOWED = 65_536
"""Series, and entries of time accounts, that are followed at a time."""
MAX_NUMBERS = 4_096
"""Numbers remembered of processes that are not followed any more."""
GRACE_NS = 5_000_000_000
"""How long a process is followed after its end, by the time of the stream."""

_UNDATED = -1

ImageKey = tuple[int, int]
TimeKey = tuple[int, int, str]
"""State, context and reason."""


class End(NamedTuple):
    """When a process ended, and how."""

    unix_ns: int
    exit_code: int | None


@dataclass(slots=True, eq=False)
class FollowedSeries:
    """One series: its number, and what it stood at when it was last read."""

    number: int
    chunk: int = -1
    device: int | None = None
    total: Total = NOTHING
    is_changed: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """
    One process image.

    Attributes:
        number: In the store.
        image: What is known of it.
        chunk: The latest chunk that refers to it.
        end: None: it lives.
        is_followed: False: it was given up, so what it stands at is not known.
        series: Of each series, what it stands at.
        times: The time account.
        has_new_times: Whether the account changed since the chunk began.
    """

    number: int
    image: ProcessImage
    chunk: int = -1
    end: End | None = None
    is_followed: bool = True
    series: dict[SeriesKey, FollowedSeries] = field(default_factory=dict)
    times: dict[TimeKey, ThreadTotal] = field(default_factory=dict)
    has_new_times: bool = False


class Processes:
    """
    Finds what is kept of a process.

    Args:
        next_number: Gives a number for a new row of a table.
        lost: Counts what found no room.
    """

    def __init__(self, next_number: Callable[[str], int], lost: Counter[str]) -> None:
        self._next_number = next_number
        self._lost = lost
        # Those that were not referred to for longest come first.
        self._followed: OrderedDict[ImageKey, Process] = OrderedDict()
        # In the order of their ends, with the first moment of the stream after that.
        self._ended: OrderedDict[ImageKey, int] = OrderedDict()
        self._numbers: OrderedDict[ImageKey, tuple[int, End | None]] = OrderedDict()
        self._count = 0

    def __iter__(self) -> Iterator[Process]:
        return iter(self._followed.values())

    def clear(self) -> None:
        """Forget all: another capture began."""
        self._followed.clear()
        self._ended.clear()
        self._numbers.clear()
        self._count = 0

    def find(self, image: ProcessImage) -> Process:
        """Return what is kept of a process image."""
        key = (image.pid, image.image_ktime_ns)
        return self._followed.get(key) or self._add(key, image)

    def touch(self, process: Process) -> None:
        """Take in that a chunk refers to a process."""
        self._followed.move_to_end(_key_of(process))

    def end(self, process: Process, end: End) -> None:
        """Take in that a process ended; it is forgotten in a while."""
        process.end = end
        key = _key_of(process)
        self._ended.setdefault(key, _UNDATED)
        if len(self._ended) > MAX_ENDED:
            self._forget(next(iter(self._ended)))

    def advance(self, unix_ns: int) -> None:
        """Take in how late it is, by the stream, and forget those that ended long ago."""
        for key, since_unix_ns in reversed(self._ended.items()):
            if since_unix_ns != _UNDATED:
                break
            self._ended[key] = unix_ns
        while self._ended:
            key, since_unix_ns = next(iter(self._ended.items()))
            # A clock can be set back, too.
            if abs(unix_ns - since_unix_ns) <= GRACE_NS:
                return
            self._forget(key)

    def series(self, process: Process, key: SeriesKey) -> FollowedSeries | None:
        """Return what is kept of a series; None: it is lost, and counted."""
        known = process.series.get(key)
        if known is None and self._may_add(process):
            known = process.series[key] = FollowedSeries(self._next_number("series"))
        return known

    def exchange_time(self, process: Process, key: TimeKey, now: ThreadTotal) -> ThreadTotal | None:
        """Return what an account stood at, and take in what it does; None: it is lost, counted."""
        known = process.times.get(key)
        if known is None:
            if not self._may_add(process):
                return None
            known = NO_TIME
        if known != now:
            process.has_new_times = True
        process.times[key] = now
        return known

    def _add(self, key: ImageKey, image: ProcessImage) -> Process:
        if len(self._followed) >= MAX_PROCESSES:
            self._forget(self._first_to_go())
        number, end = self._numbers.pop(key, (0, None))
        process = self._followed[key] = Process(number or self._next_number("processes"), image)
        # It counts from its beginning, and what it had counted before is not known any more.
        process.is_followed = not number
        if end is not None:
            self.end(process, end)
        return process

    def _first_to_go(self) -> ImageKey:
        # Who was silent for longest has likely ended, and that was lost.
        return next(iter(self._ended or self._followed))

    def _may_add(self, process: Process) -> bool:
        if not process.is_followed:
            self._lost[NOT_FOLLOWED] += 1
            return False
        while self._count >= MAX_FOLLOWED:
            key = self._first_to_go()
            if key == _key_of(process):
                self._lost[TOO_MANY_SERIES] += 1
                return False
            self._forget(key)
        self._count += 1
        return True

    def _forget(self, key: ImageKey) -> None:
        process = self._followed.pop(key)
        process.is_followed = False
        self._ended.pop(key, None)
        self._count -= len(process.series) + len(process.times)
        self._numbers[key] = (process.number, process.end)
        if len(self._numbers) > MAX_NUMBERS:
            self._numbers.popitem(last=False)


def _key_of(process: Process) -> ImageKey:
    return process.image.pid, process.image.image_ktime_ns
