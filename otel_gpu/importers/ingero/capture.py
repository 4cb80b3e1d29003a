"""The importer of Ingero's databases: rows in, events out, in order of time."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Final

from otel_gpu.capture.layout import duration_bounds_ns, layout_description
from otel_gpu.config import Config
from otel_gpu.decode.events import (
    Capture,
    Clock,
    CudaCall,
    Event,
    Exec,
    Exit,
    Fork,
    Pressure,
    ProcessSeen,
    Stall,
)
from otel_gpu.importers.ingero import truths
from otel_gpu.importers.ingero.notes import CallTimes, write_notes
from otel_gpu.importers.ingero.ops import CUDA_SOURCES, EXEC, EXIT, FORK, HOST, HOST_OPS, Ops
from otel_gpu.importers.ingero.origin import Origin, read_origin
from otel_gpu.importers.ingero.processes import Processes
from otel_gpu.importers.ingero.rows import MAX_ROWS, NEEDED, EventRow, Events
from otel_gpu.importers.ingero.series import Part, SeriesBook, is_taken_to_be_nested
from otel_gpu.importers.ingero.stack_samples import TABLE as STACKS
from otel_gpu.importers.ingero.stack_samples import Stacks
from otel_gpu.importers.ingero.threads import Threads
from otel_gpu.importers.ingero.truths import Hidden, Minute
from otel_gpu.importers.sqlite_source import SqliteSource, require
from otel_gpu.importers.tally import Tally
from otel_gpu.stacks.demangling import Demangler

UNKNOWN: Final = ("thread_states", "distributions", "freed_bytes")
"""What no database of this tool tells; see ``decode.events.Capture``."""

_MAX_WAITING = 100_000
_MAX_SNAPSHOTS = 100_000
_Timed = tuple[int, Event]
_time_of: Callable[[_Timed], int] = itemgetter(0)


@contextmanager
def open_capture(path: Path, config: Config, *, host: str = "") -> Iterator["IngeroCapture"]:
    """
    Open a database; see ``importers.open_capture``.

    Raises:
        RecordingError: It cannot be read, is none of Ingero's, or holds several hosts and
            none of them is named.
    """
    with SqliteSource(path) as source:
        tables = source.tables()
        require(path, tables, {"events": NEEDED})
        origin = read_origin(path, source, tables, host)
        with closing(Demangler()) as demangler:
            yield IngeroCapture(source, tables, origin, config, demangler)


class IngeroCapture:
    """
    One host's events in a database.

    Unix time stands for ktime: the tool keeps no other, and it does not jump.
    """

    def __init__(
        self,
        source: SqliteSource,
        tables: dict[str, frozenset[str]],
        origin: Origin,
        config: Config,
        demangler: Demangler,
    ) -> None:
        self.tally = Tally(source=origin.described())
        self._source = source
        self._tables = tables
        self._origin = origin
        self._layout = layout_description(config)
        self._table = Events(source, tables["events"], origin.host)
        self._ops = Ops(origin.ops)
        self._processes = Processes(source, tables, self._table)
        self._threads = Threads()
        self._stacks = Stacks(source, tables, demangler)
        # When the present image of a process began, where it was not there from the beginning.
        self._images: dict[int, int] = {}
        self._hidden = self._find_hidden()
        self._parts = tuple(self._find_parts())
        self._book = SeriesBook(
            duration_bounds_ns(config),
            self._parts,
            self._span,
            self._image,
        )

    def events(self) -> Iterator[Event]:
        """Yield all that is imported; see ``importers.ForeignCapture``."""
        start = self._origin.start_unix_ns
        yield Capture(
            start,
            {
                "host": self._origin.host_facts(),
                "layout": self._layout,
                "mode": "import",
                "source": self.tally.source,
                "unknown": list(UNKNOWN),
            },
        )
        yield Clock(start, start)
        for pid in sorted(self._processes.pids - self._processes.births.keys()):
            yield ProcessSeen(start, start, pid, self._processes.facts(pid))
        now = start
        streams = (self._activity(), self._pressure())
        for now, event in heapq.merge(*streams, key=_time_of):
            yield from self._book.read_until(now)
            if isinstance(event, CudaCall | Stall | Fork):
                self._book.add(event)
            if isinstance(event, CudaCall) and event.user_stack:
                number, stack = self._stacks.find(event.user_stack, now)
                if stack is not None:
                    yield stack
                yield event._replace(user_stack=number)
            else:
                yield event
        yield from self._book.read(max(now, self._book.end_unix_ns()))
        self._finish()

    def _find_hidden(self) -> dict[Minute, Hidden]:
        columns = self._tables.get(truths.TABLE, frozenset())
        # The table does not say of which host it counts.
        if not set(truths.COLUMNS) <= columns or self._origin.host:
            return {}
        return truths.find_hidden(self._source, columns, self._table)

    def _find_parts(self) -> Iterator[Part]:
        called: dict[int, set[int]] = {}
        found: list[tuple[Minute, int, int, Hidden]] = []
        for minute, hidden in self._hidden.items():
            if not hidden.count:
                continue
            if minute.source == HOST:
                owner = self._processes.owner(minute.pid)
                if owner in self._processes.pids:
                    found.append((minute, owner, 0, hidden))
                continue
            api = self._ops.api(minute.source, minute.op)
            if api is None:
                name = self._ops.name(minute.source, minute.op)
                self.tally.left_out[f"counted {name}: no API that is known here"] += hidden.count
            elif minute.pid in self._processes.pids:
                called.setdefault(minute.pid, set()).add(api.number)
                found.append((minute, minute.pid, api.number, hidden))
        for minute, pid, api_number, hidden in found:
            nested = is_taken_to_be_nested(api_number, called[pid]) if api_number else 0
            yield Part(minute.start_unix_ns, pid, api_number, nested, hidden)

    # Rows to events.

    def _activity(self) -> Iterator[_Timed]:
        """Yield the events of rows by their end; rows come by their start."""
        waiting: list[tuple[int, int, Event]] = []
        number = 0
        for row in self._table.read(self.tally.rejected):
            # What ends before this begins cannot be overtaken any more.
            while waiting and (waiting[0][0] <= row.start_unix_ns or len(waiting) > _MAX_WAITING):
                unix_ns, _, event = heapq.heappop(waiting)
                yield unix_ns, event
            for event in self._events_of(row):
                number += 1
                heapq.heappush(waiting, (event[0], number, event))
        while waiting:
            unix_ns, _, event = heapq.heappop(waiting)
            yield unix_ns, event

    def _events_of(self, row: EventRow) -> Iterator[Event]:
        if row.source in CUDA_SOURCES:
            yield from self._call(row)
        elif row.op == FORK:
            yield from self._fork(row)
        elif row.op == EXIT:
            yield from self._exit(row)
        elif row.op == EXEC:
            yield from self._exec(row)
        else:
            yield from self._off_cpu(row)

    def _call(self, row: EventRow) -> Iterator[Event]:
        api = self._ops.api(row.source, row.op)
        if api is None:
            name = self._ops.name(row.source, row.op)
            self.tally.left_out[f"{name}: no API that is known here"] += 1
        elif row.pid not in self._processes.pids:
            self.tally.left_out["calls of further processes"] += 1
        else:
            self.tally.taken["CUDA calls"] += 1
            comm = self._comm(row)
            yield self._threads.call(row, api, self._image(row.pid), comm)

    def _off_cpu(self, row: EventRow) -> Iterator[Event]:
        pid = self._processes.owner(row.tid)
        if pid is None:
            what = "sched_switch: of a thread whose process is not recorded"
            self.tally.left_out[what] += 1
        elif pid not in self._processes.pids:
            self.tally.left_out["sched_switch: of a process that does not use CUDA"] += 1
        else:
            self.tally.taken["intervals off the CPU"] += 1
            yield self._threads.off_cpu(row, pid, self._image(pid), self._comm(row))

    def _fork(self, row: EventRow) -> Iterator[Event]:
        # Old versions have the forking thread here.
        pid = self._processes.owner(row.pid) or row.pid
        child = row.arg1
        if pid not in self._processes.pids:
            self.tally.left_out["process_fork: of a process that does not use CUDA"] += 1
        elif not self._processes.is_process(child):
            what = "process_fork: of a thread, or not recorded whether of a thread or of a process"
            self.tally.left_out[what] += 1
        else:
            self.tally.taken["forks"] += 1
            at = row.end_unix_ns
            yield Fork(
                end_ktime_ns=at,
                image_ktime_ns=self._image(pid),
                pid=pid,
                tid=row.tid,
                start_ktime_ns=at,
                child_image_ktime_ns=at,
                call_start_ktime_ns=0,
                root_start_ktime_ns=0,
                child_pid=child,
                comm=self._comm(row),
            )
            self._images[child] = at
            yield ProcessSeen(at, at, child, self._processes.facts(child))

    def _exec(self, row: EventRow) -> Iterator[Event]:
        old = self._image(row.pid)
        if row.pid not in self._processes.pids or row.end_unix_ns <= old:
            self.tally.left_out["process_exec: of a process that does not use CUDA"] += 1
            return
        self.tally.taken["execs"] += 1
        at = self._images[row.pid] = row.end_unix_ns
        yield Exec(at, at, row.pid, row.tid, old, 0, 0, 0, self._comm(row), "")

    def _exit(self, row: EventRow) -> Iterator[Event]:
        # Each thread has a row; a process ends with its last one.
        if row.pid not in self._processes.pids:
            self.tally.left_out["process_exit: of a process that does not use CUDA"] += 1
        elif self._processes.exits.get(row.pid) != row.end_unix_ns:
            self.tally.left_out["process_exit: of a thread"] += 1
        else:
            self.tally.taken["exits"] += 1
            image = self._image(row.pid)
            yield Exit(row.end_unix_ns, image, row.pid, row.tid, 0, 0, self._comm(row))

    def _span(self, pid: int) -> tuple[int, int]:
        """Return from when to when a process can have done what has no rows."""
        begin = self._processes.births.get(pid, self._origin.start_unix_ns)
        end = self._processes.exits.get(pid, self._origin.end_unix_ns)
        first, last = self._processes.spans.get(pid, (begin, end))
        return max(begin, first), max(begin, last)

    def _image(self, pid: int) -> int:
        return self._images.get(pid, self._origin.start_unix_ns)

    def _comm(self, row: EventRow) -> str:
        return row.comm or self._processes.name(row.tid) or self._processes.name(row.pid)

    def _pressure(self) -> Iterator[_Timed]:
        columns = self._tables.get("system_snapshots", frozenset())
        if not {"timestamp", "load_avg"} <= columns or self._origin.host:
            return
        query = "SELECT timestamp, load_avg FROM system_snapshots ORDER BY 1 LIMIT ?"
        for timestamp, load in self._source.rows(query, (_MAX_SNAPSHOTS,)):
            if type(timestamp) is int and type(load) in (int, float):
                if timestamp < self._origin.start_unix_ns:
                    continue
                self.tally.taken["readings of the host's load"] += 1
                info = {"load1": load, "cpus": self._origin.cpus}
                yield timestamp, Pressure(timestamp, info)

    # What is to be said of it.

    def _finish(self) -> None:
        rows = 0
        for source, op, count in self._table.counts():
            rows += count
            if source in CUDA_SOURCES or (source == HOST and op in HOST_OPS):
                # Told apart while it was read.
                continue
            if type(source) is not int or type(op) is not int:
                self.tally.rejected["not_a_number"] += count
            else:
                self.tally.left_out[self._ops.name(source, op)] += count
        if self._stacks.taken:
            self.tally.taken["stacks of functions"] += self._stacks.taken
        if self._stacks.rejected:
            self.tally.rejected["bad_stack"] += self._stacks.rejected
        known = self._stacks.taken + self._stacks.rejected
        self._count_left_out(STACKS, "stacks of functions: of no call that was taken", known)
        self._count_left_out("causal_chains", "causal chains: the tool's own conclusions")
        self.tally.notes += self._source.notes
        if rows > MAX_ROWS:
            self.tally.notes.append(f"Only the first {MAX_ROWS:,} of {rows:,} rows were looked at.")
        self.tally.notes += write_notes(
            self._hidden, self._call_times(), sessions=self._origin.sessions
        )

    def _count_left_out(self, table: str, what: str, known: int = 0) -> None:
        if table in self._tables:
            ((count,),) = self._source.rows(f"SELECT count(*) FROM {table}")
            if count > known:
                self.tally.left_out[what] += count - known

    def _call_times(self) -> Iterator[CallTimes]:
        counted: Counter[int] = Counter()
        for part in self._parts:
            if part.api:
                counted[part.pid] += part.hidden.sum_ns
        off_cpu = Counter(self._threads.off_cpu_ns)
        for minute, hidden in self._hidden.items():
            if minute.source == HOST:
                off_cpu[minute.pid] += hidden.sum_ns
        callers: dict[int, list[int]] = {}
        for pid, tid in self._threads.spans:
            callers.setdefault(pid, []).append(tid)
        for pid, tids in sorted(callers.items()):
            spans = (self._threads.spans[pid, tid] for tid in tids)
            names = Counter(map(self._processes.name, self._processes.forked.get(pid, ())))
            yield CallTimes(
                self._processes.name(pid),
                pid,
                sum(last - first for first, last in spans),
                self._threads.outermost_ns[pid] + counted[pid],
                # Of a thread that is not its process's first the tool sees no switch.
                sum(off_cpu[tid] for tid in tids) if tids == [pid] else None,
                tuple(f"{count:,} x {name or '?'}" for name, count in sorted(names.items())),
            )
