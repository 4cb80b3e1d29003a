"""
Playback: the activities of a span, as they came, from the rows of a store.

What reads activities cannot tell a store from a recording, but for one thing: where a
span begins in the middle of a capture, everything that had been counted by then comes
first, as one reading. So what was usual before a window is known in it.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from otel_gpu import wire
from otel_gpu.decode.bodies import parse_body
from otel_gpu.decode.events import SeriesKey
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    PressureActivity,
    ProbesActivity,
    ProcessImage,
    Series,
    StatusActivity,
    ThreadTime,
    TimesActivity,
    Who,
    WhoActivity,
)
from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.probe_table import APIS
from otel_gpu.store.columns import Row
from otel_gpu.store.directory import Directory
from otel_gpu.store.event_tables import EVENT_TABLES
from otel_gpu.store.pages import Pages
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

_Informed = TypeVar("_Informed", PressureActivity, StatusActivity, CaptureActivity, ProbesActivity)

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
        # By the number of the first row of each capture, the latest first.
        self._ids = [(0, SpanIds(NO_SEED))]
        for row in span.captures:
            if capture := self._capture(row):
                self._ids.insert(0, (row[2], SpanIds(capture.seed)))
        self._ways: dict[str, Callable[[Row], Activity | None]] = {
            **{kind.name: kind.activity_maker(directory, self._ids_at) for kind in EVENT_TABLES},
            "exits": self._exit,
            "readings": self._reading,
            "pressure": self._pressure,
            "statuses": self._status,
            "culprits": self._who,
        }
        self._parts = {
            table: _Parts(pages.between(table, span.first_seq, span.last_seq))
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
        begins = dict.fromkeys(self._ways, self._span.first_seq)
        begins |= {kind.name: self._span.lead_seq for kind in EVENT_TABLES}
        streams = [
            self._activities_of(table, self._pages.between(table, first_seq, self._span.last_seq))
            for table, first_seq in begins.items()
        ]
        streams += (self._activities_of("calls", self._early_calls()), self._captures())
        for _, activity in heapq.merge(*streams, key=itemgetter(0)):
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

    def _early_calls(self) -> Iterator[Row]:
        first, last = self._span.first_seq, self._span.lead_seq - 1
        condition = _EARLY_CALLS.format(allocators=_ALLOCATORS, first=first, last=last)
        return self._pages.between("calls", first, last, condition)

    def _activities_of(self, table: str, rows: Iterable[Row]) -> Iterator[_Found]:
        make = self._ways[table]
        for row in rows:
            activity = make(row)
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
        culprits = self._pages.where(
            "culprits",
            "seq IN (SELECT max(seq) FROM culprits WHERE seq < ? AND seq > ? GROUP BY pid, tid)",
            (span.first_seq, capture[2]),
        )
        yield from map(self._who, culprits)
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
        for number, _, unplaced, total, least, most, size_bytes, buckets in self._pages.where(
            "aggregate_totals", latest, values
        ):
            row = (0, unplaced, total, size_bytes, least, most, buckets)
            series = self._add(number, row, anew=True)
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

    def _exit(self, row: Row) -> Activity | None:
        process = self._directory.process(row[1])
        return None if process is None else ExitActivity(process, row[2], row[3], bool(row[4]))

    def _pressure(self, row: Row) -> Activity | None:
        return _with_info(PressureActivity, wire.RECORD_PRESSURE, row[1], row[2])

    def _who(self, row: Row) -> WhoActivity:
        return WhoActivity(row[1], Who(*row[2:]))

    def _status(self, row: Row) -> Activity | None:
        return _with_info(StatusActivity, wire.RECORD_STATUS, row[1], row[2])

    def _capture(self, row: Row) -> CaptureActivity | None:
        return _with_info(_capture_of, wire.RECORD_CAPTURE, row[3], row[-1])

    def _ids_at(self, seq: int) -> SpanIds:
        """Return what names the spans of the capture that a row is of."""
        latest_seq, latest = self._ids[0]
        if seq >= latest_seq:
            return latest
        return next(ids for first_seq, ids in self._ids if seq >= first_seq)

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
            series = self._add(number, row)
            if series is not None:
                yield series

    def _add(self, number: int, row: Sequence[Any], *, anew: bool = False) -> Series | None:
        name = self._directory.series(number)
        begins = name is not None and (anew or name.key not in self._series)
        if name is None or (begins and len(self._series) >= MAX_SERIES):
            self._pages.reject("aggregates")
            return None
        if begins:
            self._series[name.key] = SeriesSum()
        try:
            aggregate = self._series[name.key].add(row)
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


def _capture_of(unix_ns: int, info: Mapping[str, Any]) -> CaptureActivity:
    return CaptureActivity(unix_ns, info, capture_seed(unix_ns, info))


def _with_info(
    kind: Callable[[int, Mapping[str, Any]], _Informed], record: int, unix_ns: int, text: str
) -> _Informed | None:
    try:
        return kind(unix_ns, parse_body(record, text.encode()))
    except (TypeError, ValueError):
        return None
