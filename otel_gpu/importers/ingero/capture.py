"""The importer of Ingero's databases: rows in, events out, in order of time."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Final

from otel_gpu.capture.layout import duration_bounds_ns, layout_description
from otel_gpu.config import Config
from otel_gpu.decode.events import Capture, Clock, CudaCall, Event, Exec, Exit, Fork, Stall
from otel_gpu.decode.readings import Pressure
from otel_gpu.decode.referents import ProcessSeen
from otel_gpu.importers.ingero import ops
from otel_gpu.importers.ingero.notes import describe_bound, write_notes
from otel_gpu.importers.ingero.ops import CUDA_SOURCES, HOST, Ops
from otel_gpu.importers.ingero.origin import Origin, read_origin
from otel_gpu.importers.ingero.processes import Processes
from otel_gpu.importers.ingero.rows import MAX_ROWS, NEEDED, Database, EventRow
from otel_gpu.importers.ingero.series import Part, SeriesBook, is_taken_to_be_nested, spread
from otel_gpu.importers.ingero.stack_samples import TABLE as STACKS
from otel_gpu.importers.ingero.stack_samples import Stacks
from otel_gpu.importers.ingero.threads import Threads
from otel_gpu.importers.ingero.truths import Hidden, find_hidden
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
        whole = Database(source, source.tables())
        require(path, whole.tables, {"events": NEEDED})
        origin, database = read_origin(path, whole, host)
        with closing(Demangler()) as demangler:
            yield IngeroCapture(database, origin, config, demangler)


class IngeroCapture:
    """
    One host's events in a database.

    Unix time stands for ktime: the tool keeps no other, and it does not jump.
    """

    def __init__(
        self, database: Database, origin: Origin, config: Config, demangler: Demangler
    ) -> None:
        self.tally = Tally(source=origin.described())
        self._database = database
        self._origin = origin
        self._layout = layout_description(config)
        self._ops = Ops(origin.ops)
        self._processes = Processes(database)
        self._threads = Threads()
        self._stacks = Stacks(database, demangler)
        # When the present image of a process began, where it was not there from the beginning.
        self._images: dict[int, int] = {}
        self._hidden = find_hidden(database)
        self._parts = tuple(self._find_parts())
        self._book = SeriesBook(duration_bounds_ns(config), self._parts, self._image)

    def events(self) -> Iterator[Event]:
        """Yield all that is imported; see ``importers.ForeignCapture``."""
        start = self._origin.start_unix_ns
        info = {
            "host": self._origin.host_facts(),
            "layout": self._layout,
            "mode": "import",
            "source": self.tally.source,
            "unknown": list(UNKNOWN),
        }
        yield Capture(start, info)
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

    def _find_parts(self) -> Iterator[Part]:
        called: dict[int, set[int]] = {}
        found: list[tuple[int, int, int, Hidden]] = []
        for minute, hidden in self._hidden.items():
            if not hidden.calls:
                continue
            if minute.source == HOST:
                owner = self._processes.owner(minute.pid)
                if owner in self._processes.pids:
                    found.append((minute.start_unix_ns, owner, 0, hidden))
                continue
            api = self._ops.api(minute.source, minute.op)
            if api is None:
                name = self._ops.name(minute.source, minute.op)
                self.tally.left_out[f"counted {name}: no API that is known here"] += hidden.calls
            elif minute.pid in self._processes.pids:
                called.setdefault(minute.pid, set()).add(api.number)
                found.append((minute.start_unix_ns, minute.pid, api.number, hidden))
        for start_unix_ns, pid, api_number, hidden in found:
            nested = is_taken_to_be_nested(api_number, called[pid]) if api_number else 0
            yield Part(*spread(start_unix_ns, self._span(pid)), pid, api_number, nested, hidden)

    # Rows to events.

    def _activity(self) -> Iterator[_Timed]:
        # By their end; rows come by their start.
        waiting: list[tuple[int, int, Event]] = []
        number = 0
        for row in self._database.event_rows(self.tally.rejected):
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

    def _events_of(self, row: EventRow) -> Iterable[Event]:
        if row.source in CUDA_SOURCES:
            return self._call(row)
        match row.op:
            case ops.FORK:
                return self._fork(row)
            case ops.EXIT:
                return self._exit(row)
            case ops.EXEC:
                return self._exec(row)
            case _:
                return self._off_cpu(row)

    def _leave_out(self, what: str) -> Iterable[Event]:
        self.tally.left_out[what] += 1
        return ()

    def _call(self, row: EventRow) -> Iterable[Event]:
        api = self._ops.api(row.source, row.op)
        if api is None:
            name = self._ops.name(row.source, row.op)
            return self._leave_out(f"{name}: no API that is known here")
        if row.pid not in self._processes.pids:
            return self._leave_out("calls of further processes")
        self.tally.taken["CUDA calls"] += 1
        return [self._threads.call(row, api, self._image(row.pid), self._comm(row))]

    def _off_cpu(self, row: EventRow) -> Iterable[Event]:
        pid = self._processes.owner(row.tid)
        if pid is None:
            return self._leave_out("sched_switch: of a thread whose process is not recorded")
        if pid not in self._processes.pids:
            return self._leave_out("sched_switch: of a process that does not use CUDA")
        self.tally.taken["intervals off the CPU"] += 1
        return [self._threads.off_cpu(row, pid, self._image(pid), self._comm(row))]

    def _fork(self, row: EventRow) -> Iterable[Event]:
        # Old versions have the forking thread here.
        pid = self._processes.owner(row.pid) or row.pid
        child, at = row.arg1, row.end_unix_ns
        if pid not in self._processes.pids:
            return self._leave_out("process_fork: of a process that does not use CUDA")
        if not self._processes.is_process(child):
            return self._leave_out(
                "process_fork: of a thread, or not recorded whether of a thread or of a process"
            )
        self.tally.taken["forks"] += 1
        image = self._image(pid)
        self._images[child] = at
        return [
            Fork(at, image, pid, row.tid, at, at, 0, 0, child, self._comm(row)),
            ProcessSeen(at, at, child, self._processes.facts(child)),
        ]

    def _exec(self, row: EventRow) -> Iterable[Event]:
        old, at = self._image(row.pid), row.end_unix_ns
        if row.pid not in self._processes.pids or at <= old:
            return self._leave_out("process_exec: of a process that does not use CUDA")
        self.tally.taken["execs"] += 1
        self._images[row.pid] = at
        return [Exec(at, at, row.pid, row.tid, old, 0, 0, 0, self._comm(row), "")]

    def _exit(self, row: EventRow) -> Iterable[Event]:
        # Each thread has a row; a process ends with its last one.
        at = row.end_unix_ns
        if row.pid not in self._processes.pids:
            return self._leave_out("process_exit: of a process that does not use CUDA")
        if self._processes.exits.get(row.pid) != at:
            return self._leave_out("process_exit: of a thread")
        self.tally.taken["exits"] += 1
        return [Exit(at, self._image(row.pid), row.pid, row.tid, 0, 0, self._comm(row))]

    def _span(self, pid: int) -> tuple[int, int]:
        # From when to when it can have done what has no rows.
        begin = self._processes.births.get(pid, self._origin.start_unix_ns)
        end = self._processes.exits.get(pid, self._origin.end_unix_ns)
        first, last = self._processes.spans.get(pid, (begin, end))
        return max(begin, first), max(begin, last)

    def _image(self, pid: int) -> int:
        return self._images.get(pid, self._origin.start_unix_ns)

    def _comm(self, row: EventRow) -> str:
        return row.comm or self._processes.name(row.tid) or self._processes.name(row.pid)

    def _pressure(self) -> Iterator[_Timed]:
        database = self._database
        if database.host or not database.has("system_snapshots", "timestamp", "load_avg"):
            return
        query = (
            f"SELECT timestamp, load_avg FROM system_snapshots ORDER BY 1 LIMIT {_MAX_SNAPSHOTS}"
        )
        for at, load in database.source.rows(query):
            if type(at) is not int or type(load) not in (int, float):
                continue
            if at >= self._origin.start_unix_ns:
                self.tally.taken["readings of the host's load"] += 1
                yield at, Pressure(at, {"load1": load, "cpus": self._origin.cpus})

    # What is to be said of it.

    def _finish(self) -> None:
        tally, stacks, source = self.tally, self._stacks, self._database.source
        rows = 0
        # A table with as many operations as rows is nobody's.
        counts = self._database.events("source, op, count(*)", rest="GROUP BY 1, 2 LIMIT 1000")
        for of, op, count in counts:
            rows += count
            if of in CUDA_SOURCES or (of == HOST and op in ops.HOST_OPS):
                # Told apart while it was read.
                continue
            if type(of) is not int or type(op) is not int:
                tally.rejected["not_a_number"] += count
            else:
                tally.left_out[self._ops.name(of, op)] += count
        if stacks.taken:
            tally.taken["stacks of functions"] += stacks.taken
        if stacks.rejected:
            tally.rejected["bad_stack"] += stacks.rejected
        known = stacks.taken + stacks.rejected
        self._count_left_out(STACKS, "stacks of functions: of no call that was taken", known)
        self._count_left_out("causal_chains", "causal chains: the tool's own conclusions")
        tally.notes += source.notes
        if rows > MAX_ROWS:
            tally.notes.append(f"Only the first {MAX_ROWS:,} of {rows:,} rows were looked at.")
        tally.notes += write_notes(self._hidden, sessions=self._origin.sessions)
        tally.notes += self._describe_bounds()

    def _count_left_out(self, table: str, what: str, known: int = 0) -> None:
        if table in self._database.tables:
            ((count,),) = self._database.source.rows(f"SELECT count(*) FROM {table}")
            if count > known:
                self.tally.left_out[what] += count - known

    def _describe_bounds(self) -> Iterator[str]:
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
            seen_ns = sum(last - first for first, last in spans)
            calls_ns = self._threads.outermost_ns[pid] + counted[pid]
            # Of a thread that is not its process's first the tool sees no switch.
            off_cpu_ns = off_cpu[pid] if tids == [pid] else None
            names = Counter(map(self._processes.name, self._processes.forked.get(pid, ())))
            children = [f"{count:,} x {name or '?'}" for name, count in sorted(names.items())]
            process = f"{self._processes.name(pid) or '?'} ({pid})"
            if seen_ns > 0:
                yield describe_bound(process, seen_ns, calls_ns, off_cpu_ns, children)
