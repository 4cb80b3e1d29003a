"""The importer of exports of Nsight Systems: what devices and host did, one event for each process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Final

from otel_gpu.config import Config
from otel_gpu.errors import RecordingError
from otel_gpu.importers.import_counts import HOST_WORK, ImportCounts
from otel_gpu.importers.nsys.tables import (
    DEVICE_TABLES,
    NVTX,
    RUNTIME,
    STRINGS,
    ProcessTables,
    Tables,
)
from otel_gpu.importers.sqlite_source import SqliteSource, require
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode
from otel_gpu.wire.device_activity import UNKNOWN_COLLECTIVE, DeviceModel, DeviceTrace, HostWork
from otel_gpu.wire.events import Capture, Clock, DeviceRead, Event
from otel_gpu.wire.frames import clean
from otel_gpu.wire.histogram_layout import layout_description
from otel_gpu.wire.json_body import Scalar

_TOOL: Final = "Nsight Systems"
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_MAX_DEVICES = 256
_FIRST_UNIX_NS = 10**18
_LAST_UNIX_NS = 4 * 10**18
_MAX_UNSIGNED = 1 << 62
# Tables that are not imported, and what a reader misses.
_UNREAD: Final = {
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "synchronizations, which are calls too",
    "OSRT_API": "calls of the operating system's libraries",
    "SCHED_EVENTS": "events of the scheduler",
    "COMPOSITE_EVENTS": "samples of threads",
    "GPU_METRICS": "metrics of the device",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "allocations of device memory",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "page faults of the host on managed memory",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "page faults of devices on managed memory",
}
_WITHOUT: Final = {
    RUNTIME: "Calls of CUDA were not recorded: what launched the work of devices is not known "
    "(nsys profile --trace=cuda).",
    NVTX: "No ranges of NVTX were recorded: there are no steps and no operators "
    "(nsys profile --trace=cuda,nvtx, and torch.autograd.profiler.emit_nvtx).",
}


@contextmanager
def open_capture(path: Path, config: Config) -> Iterator["NsysCapture"]:
    """
    Open an export; see ``importers.open_capture``.

    Raises:
        RecordingError: It cannot be read, is not an export, or has no table of devices.
    """
    with SqliteSource(path) as source:
        columns = source.tables()
        require(path, columns, {STRINGS: ("id", "value")})
        if not columns.keys() & DEVICE_TABLES.keys():
            raise RecordingError(
                f"{path}: has no table of device activities",
                hint="record with nsys profile --trace=cuda,nvtx, export with nsys export --type sqlite",
            )
        yield NsysCapture(path, Tables(source, columns), source=source, config=config)


class NsysCapture:
    """An export, whose processes are read all at once."""

    def __init__(self, path: Path, tables: Tables, source: SqliteSource, config: Config) -> None:
        self._path, self._tables, self._source = path, tables, source
        self._layout = layout_description(config)
        self.counts = ImportCounts(
            source=self._described(),
            left_out=tables.left_out,
            rejected=tables.rejected,
            notes=source.notes,
        )

    def events(self) -> Iterator[Event]:
        """Yield what each process did; see ``importers.ForeignCapture``."""
        tables = self._tables
        try:
            tables.read()
        except RecordingError as error:
            if str(error).startswith(str(self._path)):
                raise
            raise RecordingError(f"{self._path}: {error}", hint=error.hint) from None
        self._count()
        parts = self._parts()
        if not parts:
            raise RecordingError(f"{self._path}: its tables of devices and calls are empty")
        start_ns, end_ns = _extent(parts)
        base_unix_ns, is_dated = self._base_unix_ns(end_ns)
        info: CaptureFacts = {
            "layout": self._layout,
            "mode": CaptureMode.IMPORT,
            "source": self.counts.source,
        }
        yield Capture(base_unix_ns + start_ns, info)
        yield Clock(base_unix_ns + start_ns, base_unix_ns + start_ns)
        programs = dict(tables.select("PROCESSES", "pid", "name"))
        host = dict(tables.select("TARGET_INFO_SYSTEM_ENV", "name", "value")).get("Hostname")
        for part in parts:
            _, end_ns = _extent([part])
            trace = self._trace(part, base_unix_ns, is_dated)._replace(
                program=_text(programs.get(part.pid)), host_name=_text(host), processes=len(parts)
            )
            yield DeviceRead(base_unix_ns + end_ns, trace)

    def _trace(self, part: ProcessTables, base_unix_ns: int, is_dated: bool) -> DeviceTrace:
        tables = self._tables
        pid = f", process {part.pid}" if part.pid else ""
        return DeviceTrace(
            source=clean(f"{self._path.name}{pid}"),
            tool=_TOOL,
            base_unix_ns=base_unix_ns,
            is_dated=is_dated,
            names=tables.names,
            shapes=tables.shapes,
            activities=part.activities,
            host=part.host,
            threads=tables.threads(part),
            collectives=(UNKNOWN_COLLECTIVE,),
            models=dict(self._models(part)),
            has_shapes=len(tables.shapes) > 1,
            overhead_ns=part.overhead_ns,
            rejected=tables.rejected,
        )

    def _parts(self) -> list[ProcessTables]:
        parts = sorted(self._tables.parts.values(), key=lambda part: part.key)
        using = [part for part in parts if len(part.activities)]
        for part in parts:
            if using and part not in using:
                self.counts.left_out["rows of processes without device activity"] += len(part.host)
        return using or parts[:1]

    def _count(self) -> None:
        tables, counts = self._tables, self.counts
        kinds: Counter[int] = Counter()
        for part in tables.parts.values():
            counts.taken["activities of devices"] += len(part.activities)
            kinds.update(part.host.kinds)
        for kind in HostWork:
            counts.taken[HOST_WORK[kind]] += kinds[kind]
        for table, what in _UNREAD.items():
            if table in tables.columns:
                rows = next(self._source.rows(f'SELECT count(*) FROM "{table}"'))[0]
                counts.left_out[what] += rows
                if rows and "PAGE_FAULT" in table:
                    counts.notes.append(
                        f"What waited for {what} is not known, of which there are {rows:,}."
                    )
        counts.notes += [text for table, text in _WITHOUT.items() if table not in tables.columns]

    def _base_unix_ns(self, end_ns: int) -> tuple[int, bool]:
        # The Unix time of time 0, and whether the export contains it.
        for (unix_ns,) in self._tables.select(_SESSION, "utcEpochNs"):
            if type(unix_ns) is int and _FIRST_UNIX_NS < unix_ns < _LAST_UNIX_NS:
                return unix_ns + self._tables.origin_ns, True
        self.counts.notes.append(
            f"{self._path.name} does not say when it was made: its last event is taken to be of "
            "the time of the file."
        )
        return max(0, self._path.stat().st_mtime_ns - end_ns), False

    def _described(self) -> dict[str, Scalar]:
        facts = dict(self._tables.select("META_DATA_EXPORT", "name", "value"))
        found: dict[str, Scalar] = {"tool": _TOOL}
        for name, key in (
            ("EXPORT_PRODUCT_VERSION", "version"),
            ("EXPORT_SCHEMA_VERSION", "schema"),
        ):
            if text := _text(facts.get(name)):
                found[key] = text
        return found

    def _models(self, part: ProcessTables) -> Iterator[tuple[int, DeviceModel]]:
        # By the number that the process gives them.
        tables = self._tables
        known = {
            number: DeviceModel(
                name=_text(name),
                compute=_unsigned(major) * 10 + _unsigned(minor),
                processors=_unsigned(processors),
                memory_bytes=_unsigned(memory),
            )
            for number, name, major, minor, processors, memory in tables.select(
                "TARGET_INFO_GPU",
                "id",
                "name",
                "computeMajor",
                "computeMinor",
                "smCount",
                "totalMemory",
            )
            if type(number) is int
        }
        of = {
            number: device
            for device, number, pid in tables.select(
                "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"
            )
            if pid == part.pid and type(number) is int
        }
        for number in sorted(set(part.activities.devices))[:_MAX_DEVICES]:
            if (model := known.get(of.get(number, number))) is not None:
                yield number, model


def _extent(parts: list[ProcessTables]) -> tuple[int, int]:
    tables = [table for part in parts for table in (part.activities, part.host) if len(table)]
    start_ns = min((min(table.starts_ns) for table in tables), default=0)
    ends = (max(map(add, table.starts_ns, table.durations_ns)) for table in tables)
    return start_ns, max(ends, default=start_ns)


def _text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _unsigned(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MAX_UNSIGNED else 0
