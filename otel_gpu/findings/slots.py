"""Time slots: what happened when, in bounded memory however long a capture is."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from otel_gpu import wire
from otel_gpu.enrich.identities import ProcessImage
from otel_gpu.findings.document import ImageKey, Slot, key_of
from otel_gpu.ledger.differences import grown
from otel_gpu.ledger.ledger import Growth

MAX_SLOTS = 512
MAX_ROWS = 20
_FIRST_WIDTH_NS = 100_000_000
_DIGITS = 6


class Totals(NamedTuple):
    """What is added up in each slot; the names are those of ``Slot``."""

    calls: float = 0
    call_ns: float = 0
    synchronize_ns: float = 0
    allocate_calls: float = 0
    allocate_ns: float = 0
    run_queue_ns: float = 0
    lost_ns: float = 0

    def plus(self, other: Self, part: float = 1) -> Self:
        """These and a part of others."""
        # For every series of every reading: written out, it takes a fifth of the time.
        return type(self)(
            self.calls + other.calls * part,
            self.call_ns + other.call_ns * part,
            self.synchronize_ns + other.synchronize_ns * part,
            self.allocate_calls + other.allocate_calls * part,
            self.allocate_ns + other.allocate_ns * part,
            self.run_queue_ns + other.run_queue_ns * part,
            self.lost_ns + other.lost_ns * part,
        )


_NOTHING = Totals()


class Slots:
    """
    Sums per process image in equal stretches of time.

    When there would be more than ``MAX_SLOTS``, two become one.
    """

    def __init__(self, origin_unix_ns: int = 0) -> None:
        self.origin_unix_ns = origin_unix_ns
        self.width_ns = _FIRST_WIDTH_NS
        self._sums: dict[int, dict[ImageKey, Totals]] = {}

    def follow(self, growth: Growth) -> None:
        """Add what a reading of a series added to the one before."""
        totals = _totals(growth)
        if totals is not None:
            process = growth.series.process
            since_unix_ns = growth.since_unix_ns
            if since_unix_ns is None:
                since_unix_ns = max(process.start_unix_ns, self.origin_unix_ns)
            since_unix_ns = min(since_unix_ns, growth.unix_ns)
            self.spread(key_of(process), since_unix_ns, growth.unix_ns, totals)

    def spread(self, image: ImageKey, start_unix_ns: int, end_unix_ns: int, totals: Totals) -> None:
        """Add what happened evenly between two moments, as far as is known."""
        # What took no time belongs to what it ends, so that the last moment is in the last slot.
        end = max(end_unix_ns - self.origin_unix_ns, 1)
        start = min(max(start_unix_ns - self.origin_unix_ns, 0), end - 1)
        while (end - 1) // self.width_ns >= MAX_SLOTS:
            self._halve()
        width_ns = self.width_ns
        for number in range(start // width_ns, (end - 1) // width_ns + 1):
            inside_ns = min(end, (number + 1) * width_ns) - max(start, number * width_ns)
            sums = self._sums.setdefault(number, {})
            part = inside_ns / (end - start)
            sums[image] = sums.get(image, _NOTHING).plus(totals, part)

    def sum_up(self, into: Mapping[ImageKey, ProcessImage | None]) -> set[ImageKey]:
        """
        Add the sums of images that ended to those of others; None: they are let go.

        Returns:
            The images that had any.
        """
        seen: set[ImageKey] = set()
        for sums in self._sums.values():
            for image in sums.keys() & into.keys():
                totals, whole = sums.pop(image), into[image]
                if whole is not None:
                    seen.add(image)
                    name = key_of(whole)
                    sums[name] = sums.get(name, _NOTHING).plus(totals)
        return seen

    def rows(
        self, processes: dict[ImageKey, ProcessImage], end_unix_ns: int, least_ns: int
    ) -> Iterator[Slot]:
        """
        Yield at most ``MAX_ROWS`` rows for all images together, then for each image.

        Stretches in which nothing happened are rows too.

        Args:
            processes: The images to tell of.
            end_unix_ns: The end of the last row.
            least_ns: About how long a row is at least: finer than the counters are read,
                there is nothing to see.
        """
        length_ns = max(0, end_unix_ns - self.origin_unix_ns)
        count = max(1, math.ceil(length_ns / self.width_ns))
        slots_per_row = max(math.ceil(count / MAX_ROWS), round(least_ns / self.width_ns), 1)
        row_ns = slots_per_row * self.width_ns
        images = sorted({i for sums in self._sums.values() for i in sums} & set(processes))
        # Only slots that hold something are looked at: a clock that stepped leaves a gap
        # of any length.
        merged: dict[tuple[int, ImageKey | None], Totals] = {}
        for number, sums in self._sums.items():
            for image in sums.keys() & processes.keys():
                for key in ((number // slots_per_row, None), (number // slots_per_row, image)):
                    merged[key] = merged.get(key, _NOTHING).plus(sums[image])
        for chosen in (None, *images):
            for number in range(math.ceil(count / slots_per_row)):
                start_ns = number * row_ns
                yield Slot(
                    processes[chosen] if chosen else None,
                    self.origin_unix_ns + start_ns,
                    self.origin_unix_ns + min(start_ns + row_ns, length_ns),
                    # In whatever order it was added up.
                    *(round(one, _DIGITS) for one in merged.get((number, chosen), _NOTHING)),
                )

    def _halve(self) -> None:
        merged: dict[int, dict[ImageKey, Totals]] = {}
        for number, sums in self._sums.items():
            into = merged.setdefault(number // 2, {})
            for image, totals in sums.items():
                into[image] = into.get(image, _NOTHING).plus(totals)
        self._sums = merged
        self.width_ns *= 2


def _totals(growth: Growth) -> Totals | None:
    (_, key, api, _, now), before = growth.series, growth.before
    sum_ns = grown(now.sum, before.sum if before else 0)
    if key.metric == wire.METRIC_RUN_QUEUE:
        return Totals(run_queue_ns=sum_ns)
    if key.nested or api is None:
        return None
    calls = grown(now.counted, before.counted if before else 0)
    allocates = api.family in (wire.FAMILY_ALLOCATE, wire.FAMILY_FREE)
    return Totals(
        calls=calls,
        call_ns=sum_ns,
        synchronize_ns=sum_ns if api.family == wire.FAMILY_SYNCHRONIZE else 0,
        allocate_calls=calls if allocates else 0,
        allocate_ns=sum_ns if allocates else 0,
    )
