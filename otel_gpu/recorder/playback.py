"""
Playback of the activities of a span, in their order, from the rows of a store.

Activities of a store equal those of a recording, with one exception: if a span begins in the middle
of a capture, the counts until then come first, as one reading. So a window has the usual values from
before it.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    ContextActivity,
    CountersActivity,
    DevicesActivity,
    ExitActivity,
    FabricActivity,
    PressureActivity,
    ProbesActivity,
    ResourceActivity,
    Series,
    StatusActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.enrich.identity.identities import ProcessKey, Who, key_of
from otel_gpu.enrich.ids import MAX_AROUND, NO_SEED, SpanIds, capture_seed
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.waits.reasons import read_reason
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.recorder.dictionary import Dictionary
from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.rows.communicators import RankReader
from otel_gpu.recorder.rows.device_traces import read_trace
from otel_gpu.recorder.rows.held_memory import read_blocks, read_failure, read_totals
from otel_gpu.recorder.rows.resource_text import read_resource
from otel_gpu.recorder.rows.totals import bounded, read_aggregate
from otel_gpu.recorder.span import Span
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.tables.events import EVENT_TABLES
from otel_gpu.state.differences import aggregate_with, time_with
from otel_gpu.state.time_accounting import MAX_SERIES, Account, Accounts
from otel_gpu.wire import bodies
from otel_gpu.wire.device_bodies import DEVICES
from otel_gpu.wire.fabric_bodies import FABRIC
from otel_gpu.wire.json_body import BodyType
from otel_gpu.wire.probe_table import APIS
from otel_gpu.wire.readings import Aggregate

MAX_ENDED = 4_096
"""Series of ended processes to keep."""
_MAX_COUNTERS = 65_536

# Calls to play from before the window: the first of each API, and all of allocators, which can get
# ever slower.
_ALLOCATORS = ", ".join(str(api.number) for api in APIS if api.family in ALLOCATOR_FAMILIES)
_EARLY_CALLS = (
    "(api IN ({allocators}) OR seq IN (SELECT min(seq) FROM calls WHERE seq BETWEEN {first} AND {last} "
    "GROUP BY process, api))"
)

_T = TypeVar("_T")
_Body = TypeVar("_Body")
# A seq, its table, the function that makes the activity, and its argument, usually the row.
_Found = tuple[int, str, Callable[[Any], Activity | None], object]
# Read from the beginning of a span: usual step times, and the spans that threads are in.
_FROM_THE_BEGINNING = frozenset({"steps", "thread_contexts"})
_NO_LAUNCH: Row = (MAX_INTEGER + 1, None)


class Playback:
    """Plays a span once."""

    def __init__(self, pages: Pages, dictionary: Dictionary, span: Span) -> None:
        self._pages = pages
        self._dictionary = dictionary
        self._span = span
        self._accounts = Accounts(
            Account, most=MAX_SERIES, most_ended=MAX_ENDED, give_up=self._count_evicted
        )
        self._counters: dict[str, int] = {}
        # With the number of the first row of each capture, the latest first.
        self._ids = [(0, SpanIds(NO_SEED))]
        for row in span.captures:
            if capture := _capture(row):
                self._ids.insert(0, (row[2], SpanIds(capture.seed)))
        self._ranks = RankReader(dictionary)
        make_context = next(
            kind.activity_maker(dictionary, self._ids_at)
            for kind in EVENT_TABLES
            if kind.activity is ContextActivity
        )
        self._handlers: dict[str, Callable[[Row], Activity | None]] = {
            **{kind.name: kind.activity_maker(dictionary, self._ids_at) for kind in EVENT_TABLES},
            "thread_contexts": partial(self._learn, make_context),
            "exits": self._exit,
            "connections": _connection,
            "identities": _identity,
            "memory_readings": lambda row: read_blocks(
                dictionary, row, self._parts("memory_holders", row[0])
            ),
            "out_of_memory": lambda row: read_failure(
                dictionary=dictionary,
                ids=self._ids_at(row[0]),
                row=row,
                parts=self._parts("out_of_memory_stacks", row[0]),
            ),
            "communicator_readings": self._ranks.read,
            "readings": self._reading,
            "pressure": _pressure,
            "device_readings": _devices,
            "fabric_readings": _fabric,
            "statuses": _status,
        }

    def activities(self) -> Iterator[Activity]:
        """Yield the activities in the order of their observation."""
        if self._span.chunk:
            yield from self._earlier_state()
        begins = dict.fromkeys(self._handlers, self._span.first_seq)
        begins |= {
            kind.name: self._span.lead_seq
            for kind in EVENT_TABLES
            if kind.name not in _FROM_THE_BEGINNING
        }
        self._learn_before()
        rows = {
            table: self._pages.between(table, first_seq, self._span.last_seq)
            for table, first_seq in begins.items()
        }
        streams = [
            self._calls(self._early_calls(), self._span.first_seq),
            self._calls(rows.pop("calls"), begins["calls"]),
            self._captures(),
            self._traces(),
            *(self._activities_of(table, found) for table, found in rows.items()),
        ]
        # Ids depend on earlier activities, so activities are made in the order of their numbers.
        for _, table, make, row in heapq.merge(*streams, key=itemgetter(0)):
            activity = make(row)
            if activity is None:
                self._pages.reject(table)
                continue
            if isinstance(activity, CaptureActivity):
                # Counters of a new agent start at 0.
                self._counters.clear()
            yield activity
            if isinstance(activity, ExitActivity):
                self._accounts.end(key_of(activity.process))

    def _count_evicted(self, _: Account, has_ended: bool) -> None:
        # No writer has more: the store is forged.
        if not has_ended:
            self._pages.reject("aggregates")

    def _early_calls(self) -> Iterator[Row]:
        first, last = self._span.first_seq, self._span.lead_seq - 1
        condition = _EARLY_CALLS.format(allocators=_ALLOCATORS, first=first, last=last)
        return self._pages.between(table="calls", first=first, last=last, condition=condition)

    def _activities_of(self, table: str, rows: Iterable[Row]) -> Iterator[_Found]:
        make = self._handlers[table]
        return ((row[0], table, make, row) for row in rows)

    def _calls(self, rows: Iterable[Row], first_seq: int) -> Iterator[_Found]:
        # Calls with the kernels that they launched.
        launches = self._pages.between("launches", first_seq, self._span.last_seq)
        launched, kernel = next(launches, _NO_LAUNCH)
        make = self._handlers["calls"]
        for row in rows:
            while launched < row[0]:
                launched, kernel = next(launches, _NO_LAUNCH)
            yield (
                row[0],
                "calls",
                partial(self._launch, kernel) if launched == row[0] else make,
                row,
            )

    def _launch(self, kernel: int, row: Row) -> Activity | None:
        activity = self._handlers["calls"](row)
        if not isinstance(activity, CallActivity):
            return activity
        (name, *_) = self._dictionary.stack(kernel) or ("",)
        return activity._replace(kernel=name)

    def _learn(self, make: Callable[[Row], Activity | None], row: Row) -> Activity | None:
        activity = make(row)
        if isinstance(activity, ContextActivity):
            self._ids_at(row[0]).learn(activity.event)
        return activity

    def _learn_before(self) -> None:
        # Learn the application's spans that threads were in when the span begins.
        until = self._span.first_seq
        for row in self._pages.between("thread_contexts", max(0, until - MAX_AROUND), until - 1):
            self._handlers["thread_contexts"](row)

    def _traces(self) -> Iterator[_Found]:
        first, last = self._span.first_seq, self._span.last_seq
        for row in self._pages.between("device_traces", first, last):
            trace = read_trace(self._pages, row)
            if trace is not None:
                yield row[0], "device_traces", _itself, trace
            elif row[0] + row[-1] <= last:
                self._pages.reject("device_traces")
            # Otherwise it is still being written.

    def _captures(self) -> Iterator[_Found]:
        first, last = self._span.first_seq, self._span.last_seq
        rows: list[tuple[int, Activity | None]] = [
            (row[2], _capture(row)) for row in self._span.captures if row[2] >= first
        ]
        probes = self._pages.where("probes", "seq BETWEEN ? AND ?", (first, last))
        rows += [(row[2], _probes(row)) for row in probes]
        for seq, activity in sorted(rows, key=itemgetter(0)):
            if activity is not None:
                yield seq, "captures", _itself, activity

    def _earlier_state(self) -> Iterator[Activity]:
        span = self._span
        if not span.captures:
            return
        capture = span.captures[0]
        probes = self._pages.where(
            "probes", "capture = ? AND seq < ?", (capture[0], span.first_seq)
        )
        began = _capture(capture)
        if began is not None and span.start_unix_ns < span.chunk_unix_ns:
            # Nothing of this capture from before its chunk is played, but older captures are.
            began = began._replace(unix_ns=max(began.unix_ns, span.chunk_unix_ns - 1))
        found: list[Activity | None] = [began, *map(_probes, probes)]
        for table in ("pressure", "device_readings", "fabric_readings"):
            latest = f"seq = (SELECT max(seq) FROM {table} WHERE seq < ? AND seq > ?)"
            before = self._pages.where(table, latest, (span.first_seq, capture[2]))
            found += map(self._handlers[table], before)
        yield from (activity for activity in found if activity is not None)
        yield from map(_identity, self._pages.between("identities", capture[2], span.first_seq - 1))
        alive = (
            "SELECT process FROM processes WHERE capture = ? "
            "AND (end_unix_ns IS NULL OR end_unix_ns >= ?)"
        )
        counted = f"SELECT series FROM series WHERE process IN ({alive})"
        totals = self._totals("aggregate_totals", "series", counted)
        rows = ((row[0], row[2], row[5], *row[3:5], row[6]) for row in totals)
        if series := tuple(self._add_all(rows)):
            yield AggregatesActivity(span.before_unix_ns, series)
        totals = self._totals("thread_time_totals", "process", alive)
        if times := self._account((process, *row) for process, _, *row in totals):
            yield TimesActivity(span.before_unix_ns, times)
        held = [
            self._totals(table, "process", alive)
            for table in ("memory_totals", "memory_holder_totals")
        ]
        for one in read_totals(self._dictionary, span.before_unix_ns, *held):
            if one is not None:
                yield one
        ranks = self._totals("communicator_totals", "process", alive)
        for read in self._ranks.read_totals(span.before_unix_ns, ranks):
            if read is not None:
                yield read

    def _totals(self, table: str, key: str, alive: str) -> list[Row]:
        latest = (
            f"({key}, chunk) IN (SELECT one.{key}, (SELECT max(chunk) FROM {table} AS t "
            f"WHERE t.{key} = one.{key} AND t.chunk < ?) FROM ({alive}) AS one)"
        )
        span = self._span
        return self._pages.where(
            table, latest, (span.chunk, span.captures[0][0], span.chunk_unix_ns)
        )

    def _exit(self, row: Row) -> Activity | None:
        process = self._dictionary.process(row[1])
        return (
            None
            if process is None
            else ExitActivity(
                process=process, end_unix_ns=row[2], exit_code=row[3], is_replaced=bool(row[4])
            )
        )

    def _ids_at(self, seq: int) -> SpanIds:
        # The span ids of the capture that a row belongs to.
        latest_seq, latest = self._ids[0]
        if seq >= latest_seq:
            return latest
        return next(ids for first_seq, ids in self._ids if seq >= first_seq)

    def _reading(self, row: Row) -> Activity | None:
        seq, kind, unix_ns = row
        if kind == "aggregates":
            added = ((series, *rest) for _, series, _, *rest in self._parts("aggregates", seq))
            return AggregatesActivity(unix_ns, tuple(self._add_all(added)))
        if kind == "times":
            added = (part[1:] for part in self._parts("thread_times", seq))
            return TimesActivity(unix_ns, self._account(added))
        if kind == "counters":
            for _, name, value in self._parts("counters", seq):
                if name in self._counters or len(self._counters) < _MAX_COUNTERS:
                    self._counters[name] = value
            return CountersActivity(unix_ns, dict(self._counters))
        return None

    def _parts(self, table: str, seq: int) -> Iterator[Row]:
        return self._pages.between(table, seq, seq)

    def _add_all(self, rows: Iterable[Row]) -> Iterator[Series]:
        # Rows: number of the series, then the columns of ``aggregates`` from ``sum`` on.
        for number, *row in rows:
            try:
                series = self._add(self._dictionary.series(number), read_aggregate(*row))
            except ValueError:
                series = None
            if series is None:
                self._pages.reject("aggregates")
            else:
                yield series

    def _add(self, series: Series | None, added: Aggregate) -> Series | None:
        if series is None:
            return None
        account = self._accounts.find(series.process)
        known = account.series.get(series.key, series).aggregate
        series = series._replace(aggregate=bounded(aggregate_with(known, added)))
        return series if self._accounts.put(account, series) else None

    def _account(self, rows: Iterable[Row]) -> tuple[ThreadTime, ...]:
        # Adds rows to the time accounts; returns all times of the processes in these rows.
        touched: dict[ProcessKey, Account] = {}
        for number, state, context, reason, wait, time_ns, count, ended_ns in rows:
            process = self._dictionary.process(number)
            if process is None:
                self._pages.reject("thread_times")
                continue
            account = touched[key_of(process)] = self._accounts.find(process)
            time = ThreadTime(
                process=process,
                state=state,
                context=context,
                reason=read_reason(reason),
                time_ns=time_ns,
                count=count,
                ended_ns=ended_ns,
                wait=self._dictionary.wait(wait),
            )
            if known := account.times.get(time.kind):
                time = time_with(time, known)
            # Untrusted rows can subtract more than there was.
            time = time._replace(
                time_ns=max(0, time.time_ns),
                count=max(0, time.count),
                ended_ns=max(0, time.ended_ns),
            )
            if not self._accounts.put_time(account, time):
                self._pages.reject("thread_times")
        # A reading contains all times of each of its processes.
        return tuple(time for _, one in sorted(touched.items()) for time in one.times.values())


def _itself(activity: Activity) -> Activity:
    return activity


def _identity(row: Row) -> WhoActivity:
    return WhoActivity(row[1], Who(*row[2:]))


def _connection(row: Row) -> ResourceActivity | None:
    resource = read_resource(row[2])
    return None if resource is None else ResourceActivity(row[1], resource, row[3])


def _informed(
    kind: Callable[[int, _Body], _T], body_type: BodyType[_Body]
) -> Callable[[Row], _T | None]:
    # For rows with a time and a document; rows of captures have further columns in between.
    def make(row: Row) -> _T | None:
        unix_ns = row[3] if kind is _capture_of else row[-2]
        try:
            return kind(unix_ns, body_type.parse(row[-1].encode()))
        except ValueError:
            return None

    return make


def _capture_of(unix_ns: int, info: bodies.CaptureFacts) -> CaptureActivity:
    return CaptureActivity(unix_ns, info, capture_seed(unix_ns, info))


_capture = _informed(_capture_of, bodies.CAPTURE)
_pressure = _informed(PressureActivity, bodies.PRESSURE)
_devices = _informed(DevicesActivity, DEVICES)
_fabric = _informed(FabricActivity, FABRIC)
_probes = _informed(ProbesActivity, bodies.PROBES)


_status = _informed(StatusActivity, bodies.STATUS)
