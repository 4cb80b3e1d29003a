"""Rows of an export, checked, as columns of the process that they are of."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu.errors import RecordingError
from otel_gpu.importers.sqlite_source import SqliteSource
from otel_gpu.wire.device_activity import (
    MAX_CORRELATION,
    MIGRATION,
    DeviceActivities,
    HostOperations,
    HostWork,
    Names,
    Thread,
    Work,
)

MAX_ROWS: Final = 12_000_000
"""Of all tables together."""
MAX_PROCESSES: Final = 1_024
DEVICE_TABLES: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": Work.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": Work.COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": Work.FILL,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": Work.GRAPH,
}
RUNTIME, DRIVER, NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER", "NVTX_EVENTS"
STRINGS: Final = "StringIds"

MAX_TEXT: Final = 2_048
_MAX_STRINGS = 1 << 18
_MAX_THREADS = (1 << 16) - 1
_MAX_DEVICE = 1 << 16
_MAX_SIZE = 1 << 50
_MAX_TIME_NS = 1 << 60
_MAX_DURATION_NS = 10 * 86_400 * 10**9
_PROCESS_SHIFT, _NUMBER = 24, (1 << 24) - 1
_RANGE = 59  # NvtxPushPopRange: those of a thread lie in each other
_VERSION = re.compile(r"_v\d{4,}$")
_OPERATOR = re.compile(r"(.+?), (?:seq|op_id) = (?:.*?sizes = (.*))?", re.DOTALL)
# As ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND have them, in Kineto's words.
_COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
           "HtoD", "DtoH", "DtoD")  # fmt: skip
_MIGRATIONS = range(11, 14)
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "")


class ProcessTables:
    """Rows of one process; ``key`` is its id in the export, without a thread."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.activities = DeviceActivities()
        self.host = HostOperations()
        self.threads: dict[int, int] = {-1: 0}
        self.overhead_ns = 0

    @property
    def pid(self) -> int:
        """The number of the process; 0: unknown."""
        return self.key & _NUMBER


class Tables:
    """
    The tables of an export, read into the parts of its processes.

    Attributes:
        parts: By key.
        origin_ns: Time 0 of all columns: no row is earlier.
        left_out: Rows that have no counterpart here, by name.
        rejected: Invalid rows, by reason.
    """

    def __init__(self, source: SqliteSource, columns: Mapping[str, frozenset[str]]) -> None:
        self.columns = columns
        self.names, self.shapes = Names(), Names(1 << 16)
        self.parts: dict[int, ProcessTables] = {}
        self.left_out: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self._source = source
        self._rows = 0
        self._strings = dict(self._read_strings())
        self._numbers: dict[int, int] = {}
        self.origin_ns = min(0, *(self._first_ns(name) for name in _TIMED))
        # If kernels do not name their process, there is only one.
        self._has_processes = any(
            "globalPid" in columns.get(name, ()) for name in DEVICE_TABLES if name in columns
        )

    def read(self) -> None:
        """
        Read all of them.

        Raises:
            RecordingError: There are too many rows, or the database is damaged.
        """
        for name, work in DEVICE_TABLES.items():
            self._read_activities(name, work)
        for name in (RUNTIME, DRIVER):
            self._read_calls(name)
        self._read_ranges()
        for name in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
            self._read_overhead(name)

    def select(self, table: str, *wanted: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of a table, None for those that it lacks; nothing without the table."""
        has = self.columns.get(table)
        if has is None:
            return
        # All of these are names of ours: nothing of the file is in the query.
        picked = (
            (f'substr("{name}", 1, {MAX_TEXT})' if name in _TEXTS else f'"{name}"')
            if name in has
            else "NULL"
            for name in wanted
        )
        for row in self._source.rows(f'SELECT {", ".join(picked)} FROM "{table}"'):
            self._rows += 1
            if self._rows > MAX_ROWS:
                raise RecordingError(
                    f"there are more than {MAX_ROWS:,} rows",
                    hint="profile a shorter time: nsys profile --delay --duration",
                )
            yield row

    def text(self, number: object) -> str:
        """Return the string with a number; empty: there is none."""
        return self._strings.get(number, "") if type(number) is int else ""

    def threads(self, part: ProcessTables) -> tuple[Thread, ...]:
        """Return the threads of a process by number."""
        rows = self.select("ThreadNames", "globalTid", "nameId")
        names = {tid: self.text(name) for tid, name in rows if tid in part.threads}
        return tuple(
            Thread(part.pid, one & _NUMBER, names.get(one, "")) if number else Thread(0, 0)
            for one, number in part.threads.items()
        )

    def _read_strings(self) -> Iterator[tuple[int, str]]:
        for number, (at, text) in enumerate(self.select(STRINGS, "id", "value")):
            if number >= _MAX_STRINGS:
                self.left_out["strings, of which there are too many"] += 1
            elif type(at) is int and isinstance(text, str):
                yield at, text

    def _first_ns(self, table: str) -> int:
        if "start" not in self.columns.get(table, ()):
            return 0
        found = next(self._source.rows(f'SELECT min("start") FROM "{table}"'), (0,))[0]
        return found if type(found) is int and found > -_MAX_TIME_NS else 0

    def _read_activities(self, table: str, work: Work) -> None:
        for row in self.select(table, *_ACTIVITY, *_DETAILS[work]):
            start, end, device, stream, correlation, process, *details = row
            times = self._times(start, end)
            part = self._part(process) if times else None
            if times is None or part is None:
                continue
            size = details[0] if work in (Work.COPY, Work.FILL) else 0
            part.activities.add(
                work,
                device if type(device) is int and 0 <= device < _MAX_DEVICE else -1,
                stream if type(stream) is int and abs(stream) < _MAX_TIME_NS else -1,
                *times,
                self._activity_name(work, details),
                correlation=_correlation(correlation),
                size_bytes=size if type(size) is int and 0 <= size <= _MAX_SIZE else 0,
            )

    def _activity_name(self, work: Work, details: list[object]) -> int:
        if work is Work.KERNEL:
            return self._name(details[0]) or self._name(details[1])
        if work is Work.COPY:
            way, source, target = map(_word, details[1:], (_COPIES, _MEMORY, _MEMORY))
            if details[1] in _MIGRATIONS:
                return self.names.number(f"{MIGRATION} {way}")
            between = f" ({source} -> {target})" if source and target else ""
            return self.names.number(f"Memcpy {way}{between}")
        if work is Work.FILL:
            memory = _word(details[1], _MEMORY)
            return self.names.number(f"Memset ({memory})" if memory else "Memset")
        return self.names.number("graph")

    def _read_calls(self, table: str) -> None:
        for start, end, thread, correlation, name in self.select(table, *_CALL):
            self._add_host(
                HostWork.CALL, start, end, thread, self._name(name), _correlation(correlation)
            )

    def _read_ranges(self) -> None:
        for start, end, kind, thread, text, number in self.select(NVTX, *_RANGE_COLUMNS):
            if kind != _RANGE:
                self.left_out["marks of NVTX, and ranges that may overlap"] += 1
                continue
            if end is None:
                self.left_out["ranges of NVTX that did not end"] += 1
                continue
            name = text if isinstance(text, str) else self.text(number)
            work, shape = HostWork.ANNOTATION, 0
            if found := _OPERATOR.match(name):
                work, name = HostWork.OPERATION, found[1]
                shape = self.shapes.number(found[2]) if found[2] else 0
            self._add_host(work, start, end, thread, self.names.number(name), 0, shape)

    def _read_overhead(self, table: str) -> None:
        for start, end, thread in self.select(table, "start", "end", "globalTid"):
            times = self._times(start, end)
            if times and type(thread) is int and (part := self.parts.get(self._key(thread))):
                part.overhead_ns += times[1]

    def _add_host(
        self,
        work: HostWork,
        start: object,
        end: object,
        thread: object,
        name: int,
        correlation: int,
        shape: int = 0,
    ) -> None:
        times = self._times(start, end)
        part = self._part(thread) if times else None
        if times is None or part is None:
            return
        number = 0
        if type(thread) is int:
            if len(part.threads) <= _MAX_THREADS:
                part.threads.setdefault(thread, len(part.threads))
            number = part.threads.get(thread, 0)
        part.host.add(work, number, *times, name, correlation, shape)

    def _part(self, thread: object) -> ProcessTables | None:
        # The part of a process or of one of its threads; None: it was counted.
        if self._has_processes and type(thread) is not int:
            self.rejected["rows that do not say whose they are"] += 1
            return None
        key = self._key(thread) if type(thread) is int else 0
        part = self.parts.get(key)
        if part is None:
            if len(self.parts) >= MAX_PROCESSES:
                self.left_out["rows of processes beyond the first 1,024"] += 1
                return None
            part = self.parts[key] = ProcessTables(key)
        return part

    def _key(self, thread: int) -> int:
        return thread >> _PROCESS_SHIFT if self._has_processes else 0

    def _times(self, start: object, end: object) -> tuple[int, int] | None:
        if type(start) is not int or type(end) is not int:
            self.rejected["rows whose times are no numbers"] += 1
        elif abs(start) > _MAX_TIME_NS:
            self.rejected["rows at impossible times"] += 1
        elif not 0 <= end - start <= _MAX_DURATION_NS:
            self.rejected["rows of impossible durations"] += 1
        else:
            return start - self.origin_ns, end - start
        return None

    def _name(self, number: object) -> int:
        if type(number) is not int:
            return 0
        found = self._numbers.get(number)
        if found is None:
            found = self.names.number(_VERSION.sub("", self._strings.get(number, "")))
            self._numbers[number] = found
        return found


_TIMED = (*DEVICE_TABLES, RUNTIME, DRIVER, NVTX)
_TEXTS = frozenset({"value", "text", "name"})
_ACTIVITY = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_DETAILS: Mapping[Work, tuple[str, ...]] = {
    Work.KERNEL: ("demangledName", "shortName"),
    Work.COPY: ("bytes", "copyKind", "srcKind", "dstKind"),
    Work.FILL: ("bytes", "memKind"),
    Work.GRAPH: (),
}
_CALL = ("start", "end", "globalTid", "correlationId", "nameId")
_RANGE_COLUMNS = ("start", "end", "eventType", "globalTid", "text", "textId")


def _correlation(value: object) -> int:
    return value if type(value) is int and 0 < value <= MAX_CORRELATION else 0


def _word(number: object, words: tuple[str, ...]) -> str:
    return words[number] if type(number) is int and 0 <= number < len(words) else ""
