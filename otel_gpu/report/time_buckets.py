"""Time buckets: sums over time, in bounded memory however long a capture is."""

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

MAX_BUCKETS = 512
MAX_ROWS = 20
_FIRST_WIDTH_NS = 100_000_000
_DIGITS = 6


class Totals(NamedTuple):
    """The sums of one bucket; names as in ``TimeBucket``."""

    calls: float = 0
    call_ns: float = 0
    synchronize_ns: float = 0
    allocate_calls: float = 0
    allocate_ns: float = 0
    run_queue_ns: float = 0
    lost_ns: float = 0

    def plus(self, other: Self, part: float = 1) -> Self:
        """Return these plus a part of others."""
        # Runs for every series of every reading: written out, it takes a fifth of the time.
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
    Sums per program in equal intervals of the time that captures cover.

    Each capture has its own intervals, so that none extends into time without a capture. Beyond
    ``MAX_BUCKETS``, plus one for each capture, pairs are merged.

    Args:
        extent: The captures; it observes each activity before this does.
        window: The shown time. Counts partly in it are in it, as in the figures.
    """

    def __init__(self, extent: CaptureExtent, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self.width_ns = _FIRST_WIDTH_NS
        self._extent = extent
        self._start_unix_ns = window.start_unix_ns or 0
        self._end_unix_ns = window.end_unix_ns
        # By capture, and the index of the interval in it.
        self._sums: defaultdict[int, dict[int, dict[ProcessKey, Totals]]] = defaultdict(dict)

    def follow(self, growth: SeriesDelta) -> None:
        """Add the growth of a series since the previous reading, in the latest capture."""
        totals = _totals(growth)
        if totals is not None:
            process = growth.series.process
            since_unix_ns = max(growth.since_unix_ns or 0, process.start_unix_ns)
            self._spread(
                capture=max(0, len(self._extent) - 1),
                program=key_of(process),
                start_unix_ns=min(since_unix_ns, growth.unix_ns),
                end_unix_ns=growth.unix_ns,
                totals=totals,
            )

    def spread(
        self, program: ProcessKey, start_unix_ns: int, end_unix_ns: int, totals: Totals
    ) -> None:
        """Spread totals evenly over a time of one capture."""
        self._spread(
            capture=self._capture_at(start_unix_ns, end_unix_ns),
            program=program,
            start_unix_ns=start_unix_ns,
            end_unix_ns=end_unix_ns,
            totals=totals,
        )

    def sum_up(self, into: Mapping[ProcessKey, Program | None]) -> set[ProcessKey]:
        """
        Add the sums of ended programs to those of others; None: drop them.

        Returns:
            The programs that had any.
        """
        seen: set[ProcessKey] = set()
        for buckets in self._sums.values():
            for sums in buckets.values():
                for program in sums.keys() & into.keys():
                    totals, whole = sums.pop(program), into[program]
                    if whole is not None:
                        seen.add(program)
                        name = key_of(whole)
                        sums[name] = sums.get(name, _NOTHING).plus(totals)
        return seen

    def captured(self, program: ProcessKey) -> Window:
        """Return the time of the captures in which a program did anything; open: none."""
        times = [
            self._extent.capture(capture)
            for capture, buckets in self._sums.items()
            if len(self._extent) and any(program in sums for sums in buckets.values())
        ]
        if not times:
            return Window()
        return Window(min(start for start, _ in times), max(end for _, end in times))

    def rows(
        self, processes: dict[ProcessKey, Program], end_unix_ns: int, least_ns: int
    ) -> Iterator[TimeBucket]:
        """
        Yield rows for all programs together, then for each program, only where captures are.

        There are at most ``MAX_ROWS``, plus one for each continuous part of the window that
        captures cover. A program has rows in the parts in which it did anything, including empty
        rows.

        Args:
            processes: The programs.
            end_unix_ns: The end of the last row.
            least_ns: Roughly the minimal length of a row: the interval of readings.
        """
        parts = self._extent.covered(Window(self._start_unix_ns, end_unix_ns))
        count = sum(max(1, math.ceil((end - start) / self.width_ns)) for start, end, _ in parts)
        buckets_per_row = max(math.ceil(count / MAX_ROWS), round(least_ns / self.width_ns), 1)
        row_ns = buckets_per_row * self.width_ns
        merged = [self._merged(*part, row_ns, processes) for part in parts]
        programs = sorted(
            {program for sums in merged for _, program in sums if program is not None}
        )
        for chosen in (None, *programs):
            for (first_unix_ns, last_unix_ns, _), sums in zip(parts, merged, strict=True):
                if chosen is not None and not any(program == chosen for _, program in sums):
                    continue
                for number in range(_rows_in(last_unix_ns - first_unix_ns, row_ns)):
                    row_unix_ns = first_unix_ns + number * row_ns
                    yield TimeBucket(
                        processes[chosen] if chosen else None,
                        row_unix_ns,
                        min(row_unix_ns + row_ns, last_unix_ns),
                        # Rounded, so that the order of addition does not matter.
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
        # The sums of a covered part by row index, and by program or None: all.
        merged: dict[tuple[int, ProcessKey | None], Totals] = {}
        last = _rows_in(end_unix_ns - start_unix_ns, row_ns) - 1
        for capture in captures:
            shift_ns = self._origin(capture) - start_unix_ns
            # Iterates over filled buckets only: a clock that was set forward leaves a gap of any
            # length.
            for number, sums in self._sums.get(capture, {}).items():
                start_ns = shift_ns + number * self.width_ns
                length_ns = self._extent.capture(capture)[1] - start_unix_ns - start_ns
                end_ns = start_ns + max(1, min(self.width_ns, length_ns))
                for row, part in _shares(start_ns, end_ns, row_ns):
                    for program in sums.keys() & processes.keys():
                        for key in ((min(row, last), None), (min(row, last), program)):
                            merged[key] = merged.get(key, _NOTHING).plus(sums[program], part)
        return merged

    def _spread(
        self,
        capture: int,
        program: ProcessKey,
        start_unix_ns: int,
        end_unix_ns: int,
        totals: Totals,
    ) -> None:
        origin_unix_ns = self._origin(capture)
        if self._end_unix_ns is not None:
            end_unix_ns = min(end_unix_ns, self._end_unix_ns)
        # Zero-length events belong to the time that they end, so that the last one is in the last
        # bucket.
        end = max(end_unix_ns - origin_unix_ns, 1)
        start = min(max(start_unix_ns - origin_unix_ns, 0), end - 1)
        while (end - 1) // self.width_ns >= MAX_BUCKETS:
            self._halve()
        buckets = self._sums[capture]
        size = len(buckets)
        for number, part in _shares(start, end, self.width_ns):
            sums = buckets.setdefault(number, {})
            sums[program] = sums.get(program, _NOTHING).plus(totals, part)
        if len(buckets) > size:
            while sum(map(len, self._sums.values())) > MAX_BUCKETS + len(self._sums):
                self._halve()

    def _origin(self, capture: int) -> int:
        began_unix_ns = self._extent.capture(capture)[0] if len(self._extent) else 0
        return max(began_unix_ns, self._start_unix_ns)

    def _capture_at(self, start_unix_ns: int, end_unix_ns: int) -> int:
        # The latest capture that overlaps a time; the latest of all if none does.
        latest = max(0, len(self._extent) - 1)
        for number in range(latest, -1, -1):
            began_unix_ns, ended_unix_ns = self._extent.capture(number)
            if began_unix_ns <= end_unix_ns and start_unix_ns <= ended_unix_ns:
                return number
        return latest

    def _halve(self) -> None:
        for capture, buckets in self._sums.items():
            merged: dict[int, dict[ProcessKey, Totals]] = {}
            for number, sums in buckets.items():
                into = merged.setdefault(number // 2, {})
                for program, totals in sums.items():
                    into[program] = into.get(program, _NOTHING).plus(totals)
            self._sums[capture] = merged
        self.width_ns *= 2


def _rows_in(length_ns: int, row_ns: int) -> int:
    return max(1, math.ceil(length_ns / row_ns))


def _shares(start: int, end: int, width: int) -> Iterator[tuple[int, float]]:
    # The intervals of a width that a time overlaps, and its part in each.
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
