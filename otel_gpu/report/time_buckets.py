"""Time slots: what happened when, in bounded memory however long a capture is."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.report.document import ProcessKey, TimeBucket, Window, key_of
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.state.capture_state import SeriesDelta
from otel_gpu.state.differences import grown

MAX_SLOTS = 512
MAX_ROWS = 20
_FIRST_WIDTH_NS = 100_000_000
_DIGITS = 6


class Totals(NamedTuple):
    """What is added up in each slot; the names are those of ``TimeBucket``."""

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


class TimeBuckets:
    """
    Sums per process image in equal stretches of the time that captures cover.

    Each capture has stretches of its own, so that none reaches into time that no capture covers.
    When there would be more than ``MAX_SLOTS`` beside one for each capture, two become one.

    Args:
        extent: Which captures there are; it observes each activity before this does.
        window: What is shown. What was counted partly in it is in it, as in the ledger's figures.
    """

    def __init__(self, extent: CaptureExtent, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self.width_ns = _FIRST_WIDTH_NS
        self._extent = extent
        self._start_unix_ns = window.start_unix_ns or 0
        self._end_unix_ns = window.end_unix_ns
        # By capture, and the number of the stretch from its begin on.
        self._sums: defaultdict[int, dict[int, dict[ProcessKey, Totals]]] = defaultdict(dict)

    def follow(self, growth: SeriesDelta) -> None:
        """Add what a reading of a series of the latest capture added to the one before."""
        totals = _totals(growth)
        if totals is not None:
            process = growth.series.process
            since_unix_ns = max(growth.since_unix_ns or 0, process.start_unix_ns)
            self._spread(
                capture=max(0, len(self._extent) - 1),
                image=key_of(process),
                start_unix_ns=min(since_unix_ns, growth.unix_ns),
                end_unix_ns=growth.unix_ns,
                totals=totals,
            )

    def spread(
        self, image: ProcessKey, start_unix_ns: int, end_unix_ns: int, totals: Totals
    ) -> None:
        """Add what happened evenly between two moments of one capture, as far as is known."""
        self._spread(
            capture=self._capture_at(start_unix_ns, end_unix_ns),
            image=image,
            start_unix_ns=start_unix_ns,
            end_unix_ns=end_unix_ns,
            totals=totals,
        )

    def sum_up(self, into: Mapping[ProcessKey, Program | None]) -> set[ProcessKey]:
        """
        Add the sums of images that ended to those of others; None: they are let go.

        Returns:
            The images that had any.
        """
        seen: set[ProcessKey] = set()
        for slots in self._sums.values():
            for sums in slots.values():
                for image in sums.keys() & into.keys():
                    totals, whole = sums.pop(image), into[image]
                    if whole is not None:
                        seen.add(image)
                        name = key_of(whole)
                        sums[name] = sums.get(name, _NOTHING).plus(totals)
        return seen

    def captured(self, image: ProcessKey) -> Window:
        """Return from when to when there were captures in which an image did anything; open: in none."""
        times = [
            self._extent.capture(capture)
            for capture, slots in self._sums.items()
            if len(self._extent) and any(image in sums for sums in slots.values())
        ]
        if not times:
            return Window()
        return Window(min(start for start, _ in times), max(end for _, end in times))

    def rows(
        self, processes: dict[ProcessKey, Program], end_unix_ns: int, least_ns: int
    ) -> Iterator[TimeBucket]:
        """
        Yield rows for all images together, then for each image: where captures are, and nowhere else.

        They are at most ``MAX_ROWS``, and one more for each part of the window that captures cover
        without a break. An image has rows in those parts in which it did anything; stretches of
        these in which it did nothing are rows too.

        Args:
            processes: The images to tell of.
            end_unix_ns: The end of the last row.
            least_ns: About how long a row is at least: finer than the counters are read,
                there is nothing to see.
        """
        parts = self._extent.covered(Window(self._start_unix_ns, end_unix_ns))
        count = sum(max(1, math.ceil((end - start) / self.width_ns)) for start, end, _ in parts)
        slots_per_row = max(math.ceil(count / MAX_ROWS), round(least_ns / self.width_ns), 1)
        row_ns = slots_per_row * self.width_ns
        merged = [self._merged(*part, row_ns, processes) for part in parts]
        images = sorted({image for sums in merged for _, image in sums if image is not None})
        for chosen in (None, *images):
            for (first_unix_ns, last_unix_ns, _), sums in zip(parts, merged, strict=True):
                if chosen is not None and not any(image == chosen for _, image in sums):
                    continue
                for number in range(_rows_in(last_unix_ns - first_unix_ns, row_ns)):
                    row_unix_ns = first_unix_ns + number * row_ns
                    yield TimeBucket(
                        processes[chosen] if chosen else None,
                        row_unix_ns,
                        min(row_unix_ns + row_ns, last_unix_ns),
                        # In whatever order it was added up.
                        *(round(one, _DIGITS) for one in sums.get((number, chosen), _NOTHING)),
                    )

    def _merged(
        self,
        start_unix_ns: int,
        end_unix_ns: int,
        captures: list[int],
        row_ns: int,
        processes: Mapping[ProcessKey, Program],
    ) -> dict[tuple[int, ProcessKey | None], Totals]:
        """Return the sums of a covered part by the number of the row, and the image or None: all."""
        merged: dict[tuple[int, ProcessKey | None], Totals] = {}
        last = _rows_in(end_unix_ns - start_unix_ns, row_ns) - 1
        for capture in captures:
            shift_ns = self._origin(capture) - start_unix_ns
            # Only slots that hold something are looked at: a clock that stepped leaves a gap
            # of any length.
            for number, sums in self._sums.get(capture, {}).items():
                start_ns = shift_ns + number * self.width_ns
                length_ns = self._extent.capture(capture)[1] - start_unix_ns - start_ns
                end_ns = start_ns + max(1, min(self.width_ns, length_ns))
                for row, part in _shares(start_ns, end_ns, row_ns):
                    for image in sums.keys() & processes.keys():
                        for key in ((min(row, last), None), (min(row, last), image)):
                            merged[key] = merged.get(key, _NOTHING).plus(sums[image], part)
        return merged

    def _spread(
        self, capture: int, image: ProcessKey, start_unix_ns: int, end_unix_ns: int, totals: Totals
    ) -> None:
        origin_unix_ns = self._origin(capture)
        if self._end_unix_ns is not None:
            end_unix_ns = min(end_unix_ns, self._end_unix_ns)
        # What took no time belongs to what it ends, so that the last moment is in the last slot.
        end = max(end_unix_ns - origin_unix_ns, 1)
        start = min(max(start_unix_ns - origin_unix_ns, 0), end - 1)
        while (end - 1) // self.width_ns >= MAX_SLOTS:
            self._halve()
        slots = self._sums[capture]
        size = len(slots)
        for number, part in _shares(start, end, self.width_ns):
            sums = slots.setdefault(number, {})
            sums[image] = sums.get(image, _NOTHING).plus(totals, part)
        if len(slots) > size:
            while sum(map(len, self._sums.values())) > MAX_SLOTS + len(self._sums):
                self._halve()

    def _origin(self, capture: int) -> int:
        began_unix_ns = self._extent.capture(capture)[0] if len(self._extent) else 0
        return max(began_unix_ns, self._start_unix_ns)

    def _capture_at(self, start_unix_ns: int, end_unix_ns: int) -> int:
        """Return the latest capture that covers some of a time; the latest of all, where none does."""
        latest = max(0, len(self._extent) - 1)
        for number in range(latest, -1, -1):
            began_unix_ns, ended_unix_ns = self._extent.capture(number)
            if began_unix_ns <= end_unix_ns and start_unix_ns <= ended_unix_ns:
                return number
        return latest

    def _halve(self) -> None:
        for capture, slots in self._sums.items():
            merged: dict[int, dict[ProcessKey, Totals]] = {}
            for number, sums in slots.items():
                into = merged.setdefault(number // 2, {})
                for image, totals in sums.items():
                    into[image] = into.get(image, _NOTHING).plus(totals)
            self._sums[capture] = merged
        self.width_ns *= 2


def _rows_in(length_ns: int, row_ns: int) -> int:
    return max(1, math.ceil(length_ns / row_ns))


def _shares(start: int, end: int, width: int) -> Iterator[tuple[int, float]]:
    """Yield the stretches of a width that a time lies in, and which part of it in each."""
    for number in range(start // width, (end - 1) // width + 1):
        inside = min(end, (number + 1) * width) - max(start, number * width)
        yield number, inside / (end - start)


def _totals(growth: SeriesDelta) -> Totals | None:
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
