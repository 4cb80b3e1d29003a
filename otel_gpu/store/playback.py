"""
Playback: the activities of a span, as they came, from the rows of a store.

What reads activities cannot tell a store from a recording, but for one thing: where a
span begins in the middle of a capture, everything that had been counted by then comes
first, as one reading. So what was usual before a window is known in it.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar

from otel_gpu import wire
from otel_gpu.decode.bodies import parse_body
from otel_gpu.decode.events import Aggregate, CudaCall, Fork, Gap, OpenCall, SeriesKey, Stall
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    PressureActivity,
    ProbesActivity,
    ProcessImage,
    Series,
    StallActivity,
    StatusActivity,
    ThreadTime,
    TimesActivity,
)
from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.probe_table import APIS
from otel_gpu.store.batch import Row
from otel_gpu.store.columns import MAX_INTEGER
from otel_gpu.store.directory import Directory
from otel_gpu.store.pages import Pages
from otel_gpu.store.rows import event_rows
from otel_gpu.store.span import Span
from otel_gpu.store.totals import SeriesSum

MAX_SERIES = 65_536
"""Series, and entries of the time account, that are added up at a time."""

MAX_ENDED = 4_096
"""Process images that ended and whose sums are still kept."""

# Beside those of the window itself: the first call of each API, and all of allocators, which may
# get slower and slower.
_ALLOCATORS = ", ".join(str(api.number) for api in APIS if api.family in ALLOCATOR_FAMILIES)
_EARLY_CALLS = (
    "(api IN ({allocators}) OR seq IN (SELECT min(seq) FROM calls WHERE seq BETWEEN {first} AND {last} "
    "GROUP BY process, api))"
)

_CALLS = event_rows(CudaCall).restore
_STALLS = event_rows(Stall).restore
_GAPS = event_rows(Gap).restore
_FORKS = event_rows(Fork).restore
_OPEN_CALLS = event_rows(OpenCall).restore

_Informed = TypeVar("_Informed", PressureActivity, StatusActivity, CaptureActivity, ProbesActivity)
_LED = frozenset({"calls", "stalls", "gaps", "forks", "open_calls"})

_ImageKey = tuple[int, int]
_Found = tuple[int, Activity]
_Account = dict[tuple[int, int, str], tuple[int, int]]


class Playback:
    """
    Plays a span once.

    Args:
        pages: Of the store.
        directory: What its numbers refer to.
        span: What to play.
    """

    def __init__(self, pages: Pages, directory: Directory, span: Span) -> None:
        self._pages = pages
        self._directory = directory
        self._span = span
        self._series: dict[SeriesKey, SeriesSum] = {}
        self._times: dict[_ImageKey, _Account] = {}
        self._ended: set[_ImageKey] = set()
        self._counters: dict[str, int] = {}
        # By the number of the first row of each capture; the streams are read side by side.
        self._ids = [(0, SpanIds(NO_SEED))]
        for row in sorted(span.captures, key=itemgetter(2)):
            if capture := self._capture(row):
                self._ids.append((row[2], SpanIds(capture.seed)))
        self._parts = {
            table: _Parts(pages.parts(table, span.first_seq, span.last_seq))
            for table in ("aggregates", "thread_times", "counters")
        }

    def activities(self) -> Iterator[Activity]:
        """
        Yield the activities in the order in which they were seen.

        Raises:
            StoreError: The store cannot be read any further.
        """
        if self._span.chunk:
            yield from self._what_came_before()
        ways: dict[str, Callable[[Row], Activity | None]] = {
            "calls": self._call,
            "stalls": self._stall,
            "gaps": self._gap,
            "forks": self._fork,
            "open_calls": self._open_call,
            "exits": self._exit,
            "readings": self._reading,
            "pressure": self._pressure,
            "statuses": self._status,
        }
        streams = [self._stream(table, way) for table, way in ways.items()]
        early = self._rows_of("calls", self._early_calls(), self._call)
        for _, activity in heapq.merge(early, *streams, self._captures(), key=itemgetter(0)):
            yield activity
            if isinstance(activity, ExitActivity):
                self._end(activity.process)

    def _end(self, process: ProcessImage) -> None:
        """Let go of sums of images that ended, now and then: their readings came before."""
        self._ended.add((process.pid, process.image_ktime_ns))
        if len(self._ended) >= MAX_ENDED:
            ended, self._ended = self._ended, set()
            for key in [key for key in self._series if (key.pid, key.image_ktime_ns) in ended]:
                del self._series[key]
            for image in self._times.keys() & ended:
                del self._times[image]

    def _stream(self, table: str, way: Callable[[Row], Activity | None]) -> Iterator[_Found]:
        span = self._span
        first_seq = span.lead_seq if table in _LED else span.first_seq
        return self._rows_of(table, self._pages.between(table, first_seq, span.last_seq), way)

    def _early_calls(self) -> Iterator[Row]:
        first, last = self._span.first_seq, self._span.lead_seq - 1
        condition = _EARLY_CALLS.format(allocators=_ALLOCATORS, first=first, last=last)
        return self._pages.between("calls", first, last, condition)

    def _rows_of(
        self, table: str, rows: Iterable[Row], way: Callable[[Row], Activity | None]
    ) -> Iterator[_Found]:
        for row in rows:
            activity = way(row)
            if activity is None:
                self._pages.reject(table)
            else:
                yield row[0], activity

    def _captures(self) -> Iterator[_Found]:
        span = self._span
        rows: list[tuple[int, Activity | None]] = [
            (row[2], self._capture(row)) for row in span.captures if row[2] >= span.first_seq
        ]
        rows += (
            (row[2], self._probes(row))
            for row in self._pages.where(
                "probes", "seq BETWEEN ? AND ?", (span.first_seq, span.last_seq)
            )
        )
        found = [(seq, activity) for seq, activity in rows if activity is not None]
        yield from sorted(found, key=itemgetter(0))

    def _what_came_before(self) -> Iterator[Activity]:
        span = self._span
        if not span.captures:
            return
        capture = span.captures[0]
        if activity := self._capture(capture):
            yield activity
        for row in self._pages.where(
            "probes", "capture = ? AND seq < ?", (capture[0], span.first_seq)
        ):
            if probes := self._probes(row):
                yield probes
        pressure = self._pages.where(
            "pressure",
            "seq = (SELECT max(seq) FROM pressure WHERE seq < ? AND seq > ?)",
            (span.first_seq, capture[2]),
        )
        for row in pressure:
            if reading := self._pressure(row):
                yield reading
        alive = (
            "SELECT process FROM processes WHERE capture = ? "
            "AND (end_unix_ns IS NULL OR end_unix_ns >= ?)"
        )
        values = (span.chunk, capture[0], span.start_unix_ns)
        yield from self._series_before(alive, values)
        yield from self._times_before(alive, values)

    def _series_before(self, alive: str, values: tuple[int, int, int]) -> Iterator[Activity]:
        latest = (
            "(series, chunk) IN (SELECT s.series, (SELECT max(t.chunk) "
            "FROM aggregate_totals AS t WHERE t.series = s.series AND t.chunk < ?) "
            f"FROM series AS s WHERE s.process IN ({alive}))"
        )
        found = []
        for number, _, *row in self._pages.where("aggregate_totals", latest, values):
            series = self._add(number, lambda known, row=row: known.set(row))  # type: ignore[misc] # bound at once
            if series is not None:
                found.append(series)
        if found:
            yield AggregatesActivity(self._span.start_unix_ns, tuple(found))

    def _times_before(self, alive: str, values: tuple[int, int, int]) -> Iterator[Activity]:
        latest = (
            "(process, chunk) IN (SELECT p.process, (SELECT max(t.chunk) "
            "FROM thread_time_totals AS t WHERE t.process = p.process AND t.chunk < ?) "
            f"FROM ({alive}) AS p)"
        )
        rows = self._pages.where("thread_time_totals", latest, values)
        processes = self._account(
            (process, state, context, reason, time_ns, count)
            for process, _, state, context, reason, time_ns, count in rows
        )
        if processes:
            yield TimesActivity(self._span.start_unix_ns, tuple(self._thread_times(processes)))

    def _call(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        if process is None:
            return None
        end_unix_ns = row[4]
        event: CudaCall = _CALLS(row[5:])
        return CallActivity(
            process,
            event,
            self._directory.api(event.api),
            _earlier(end_unix_ns, event.end_ktime_ns, event.start_ktime_ns),
            end_unix_ns,
            self._directory.device(row[2]),
            self._directory.program_stack(row[3]),
            *self._ids_at(row[0]).of_call(event),
        )

    def _stall(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        if process is None:
            return None
        end_unix_ns = row[5]
        event: Stall = _STALLS(row[6:])
        return StallActivity(
            process,
            event,
            _earlier(end_unix_ns, event.end_ktime_ns, event.start_ktime_ns),
            _earlier(end_unix_ns, event.end_ktime_ns, event.runnable_ktime_ns),
            end_unix_ns,
            row[2],
            self._directory.stack(row[3]),
            self._directory.program_stack(row[4]),
            *self._ids_at(row[0]).of_stall(event),
        )

    def _gap(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        if process is None:
            return None
        end_unix_ns = row[3]
        event: Gap = _GAPS(row[4:])
        return GapActivity(
            process,
            event,
            self._directory.api(event.previous_api),
            self._directory.api(event.next_api),
            _earlier(end_unix_ns, event.end_ktime_ns, event.start_ktime_ns),
            end_unix_ns,
            self._directory.device(row[2]),
            *self._ids_at(row[0]).of_gap(event),
        )

    def _fork(self, row: Row) -> Activity | None:
        process, child = self._directory.process(row[1]), self._directory.process(row[2])
        if process is None or child is None:
            return None
        end_unix_ns = row[3]
        event: Fork = _FORKS(row[4:])
        start_unix_ns = _earlier(end_unix_ns, event.end_ktime_ns, event.start_ktime_ns)
        ids = self._ids_at(row[0]).of_fork(event)
        return ForkActivity(process, event, child, start_unix_ns, end_unix_ns, *ids)

    def _open_call(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        if process is None:
            return None
        seen_unix_ns = row[4]
        event: OpenCall = _OPEN_CALLS(row[5:])
        return OpenCallActivity(
            process,
            event,
            self._directory.api(event.api),
            _earlier(seen_unix_ns, event.ktime_ns, event.start_ktime_ns),
            seen_unix_ns,
            self._directory.device(row[2]),
            self._directory.program_stack(row[3]),
            *self._ids_at(row[0]).of_open_call(event),
        )

    def _exit(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        return None if process is None else ExitActivity(process, row[2], row[3], bool(row[4]))

    def _pressure(self, row: Row) -> Activity | None:
        return _with_info(PressureActivity, wire.RECORD_PRESSURE, row[1], row[2])

    def _status(self, row: Row) -> Activity | None:
        return _with_info(StatusActivity, wire.RECORD_STATUS, row[1], row[2])

    def _capture(self, row: Row) -> CaptureActivity | None:
        return _with_info(_capture_of, wire.RECORD_CAPTURE, row[3], row[-1])

    def _ids_at(self, seq: int) -> SpanIds:
        """Return what names the spans of the capture that a row is of."""
        return self._ids[bisect_right(self._ids, seq, key=itemgetter(0)) - 1][1]

    def _probes(self, row: Row) -> Activity | None:
        return _with_info(ProbesActivity, wire.RECORD_PROBES, row[3], row[4])

    def _reading(self, row: Row) -> Activity | None:
        seq, kind, unix_ns = row
        if kind == "aggregates":
            return AggregatesActivity(unix_ns, tuple(self._added(seq)))
        if kind == "times":
            processes = self._account(row[1:] for row in self._parts["thread_times"].of(seq))
            return TimesActivity(unix_ns, tuple(self._thread_times(processes)))
        if kind == "counters":
            for _, name, value in self._parts["counters"].of(seq):
                if name in self._counters or len(self._counters) < MAX_SERIES:
                    self._counters[name] = value
            return CountersActivity(unix_ns, dict(self._counters))
        return None

    def _added(self, seq: int) -> Iterator[Series]:
        for _, number, *row in self._parts["aggregates"].of(seq):
            series = self._add(number, lambda known, row=row: known.add(row))  # type: ignore[misc] # bound at once
            if series is not None:
                yield series

    def _add(self, number: int, change: Callable[[SeriesSum], Aggregate]) -> Series | None:
        name = self._directory.series(number)
        if name is None:
            self._pages.reject("aggregates")
            return None
        known = self._series.get(name.key)
        if known is None:
            if len(self._series) >= MAX_SERIES:
                self._pages.reject("aggregates")
                return None
            known = self._series[name.key] = SeriesSum()
        try:
            aggregate = change(known)
        except ValueError:
            self._pages.reject("aggregates")
            return None
        return Series(name.process, name.key, name.api, name.device, aggregate)

    def _account(self, rows: Iterator[Row]) -> dict[_ImageKey, ProcessImage]:
        """Add to the time account; the processes that it was about."""
        touched: dict[_ImageKey, ProcessImage] = {}
        for number, state, context, reason, time_ns, count in rows:
            process = self._directory.process(number)
            if process is None:
                self._pages.reject("thread_times")
                continue
            image = (process.pid, process.image_ktime_ns)
            account = self._times.setdefault(image, {})
            known_ns, known_count = account.get((state, context, reason), (0, 0))
            account[state, context, reason] = (
                max(0, known_ns + time_ns),
                max(0, known_count + count),
            )
            touched[image] = process
        return touched

    def _thread_times(self, processes: dict[_ImageKey, ProcessImage]) -> Iterator[ThreadTime]:
        # A reading tells all about each process that it is about.
        for image, process in sorted(processes.items(), key=itemgetter(0)):
            for (state, context, reason), (time_ns, count) in self._times[image].items():
                yield ThreadTime(process, state, context, reason, time_ns, count)


class _Parts:
    """Rows of readings, which are asked for in their order."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._next: Row | None = None

    def of(self, seq: int) -> Iterator[Row]:
        """Yield the rows of one reading."""
        while True:
            row = self._next or next(self._rows, None)
            self._next = row
            if row is None or row[0] > seq:
                return
            self._next = None
            if row[0] == seq:
                yield row


def _earlier(unix_ns: int, ktime_ns: int, earlier_ktime_ns: int) -> int:
    """Return the Unix time of an earlier moment of an event, as ``enrich`` gave it."""
    return min(max(0, unix_ns + earlier_ktime_ns - ktime_ns), MAX_INTEGER)


def _capture_of(unix_ns: int, info: Mapping[str, Any]) -> CaptureActivity:
    return CaptureActivity(unix_ns, info, capture_seed(unix_ns, info))


def _with_info(
    kind: Callable[[int, Mapping[str, Any]], _Informed], record: int, unix_ns: int, text: str
) -> _Informed | None:
    try:
        return kind(unix_ns, parse_body(record, text.encode()))
    except (TypeError, ValueError):
        return None
