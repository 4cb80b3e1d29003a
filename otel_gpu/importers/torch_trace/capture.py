"""The importer of traces of ``torch.profiler``: what devices and host did, one event for each file."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Final

from otel_gpu.config import Config
from otel_gpu.errors import RecordingError
from otel_gpu.importers.import_counts import HOST_WORK, ImportCounts
from otel_gpu.importers.torch_trace.rows import Rows
from otel_gpu.importers.torch_trace.scanner import DAMAGED, HINT, Scanner
from otel_gpu.importers.torch_trace.text import Text
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode
from otel_gpu.wire.device_activity import DeviceModel, DeviceTrace, HostWork
from otel_gpu.wire.events import Capture, Clock, DeviceRead, Event
from otel_gpu.wire.frames import clean
from otel_gpu.wire.histogram_layout import layout_description

MAX_FILES: Final = 1_024
_SUFFIXES = (".json", ".json.gz")
_TOOL = "torch.profiler"
_PROGRAM = "python"
_MAX_DEVICES = 256
# Times are of the Unix clock from here on; smaller ones are of a clock that a host began.
_UNIX_US = 10**15
_NS_PER_US = 1_000
_MOST = 1 << 62


@contextmanager
def open_capture(path: Path, config: Config) -> Iterator["TraceCapture"]:
    """
    Find the traces of a file, or of a folder with one for each rank; see ``importers.open_capture``.

    Raises:
        RecordingError: There are none, or too many.
    """
    yield TraceCapture(_files(path), config)


class TraceCapture:
    """Traces of one run; each is read when its event is asked for, and not kept."""

    def __init__(self, paths: list[Path], config: Config) -> None:
        self._paths = paths
        self._layout = layout_description(config)
        self.counts = ImportCounts(source={"tool": _TOOL})

    def events(self) -> Iterator[Event]:
        """Yield each trace; see ``importers.ForeignCapture``."""
        for number, path in enumerate(self._paths):
            read, start_ns = self._read(path)
            if not number:
                info: CaptureFacts = {
                    "layout": self._layout,
                    "mode": CaptureMode.IMPORT,
                    "source": self.counts.source,
                }
                yield Capture(start_ns, info)
                yield Clock(start_ns, start_ns)
            yield read
        self.counts.source["traces"] = len(self._paths)

    def _read(self, path: Path) -> tuple[DeviceRead, int]:
        # Also returns when its first event began, of the Unix clock.
        rows = Rows()
        try:
            with Text(path) as text:
                scanner = Scanner(text)
                for events in scanner.events():
                    rows.take(events)
        except RecordingError as error:
            if str(error).startswith(str(path)):
                raise
            raise RecordingError(f"{path}: {error}", hint=error.hint) from None
        if not rows.has_events and not scanner.rejected[DAMAGED]:
            raise RecordingError(
                f"{path}: not a trace of torch.profiler: it has no event", hint=HINT
            )
        rejected = rows.rejected + scanner.rejected
        self._count(rows, rejected)
        # There are millions of rows to look through.
        start_ns, end_ns = _extent(rows)
        trace = _trace(path.name, scanner.head, rows=rows, start_ns=start_ns, rejected=rejected)
        if not trace.is_dated:
            base_unix_ns = text.modified_unix_ns - end_ns
            trace = trace._replace(base_unix_ns=base_unix_ns)
            self.counts.notes.append(
                f"{trace.source} does not say when it was made: its last event is taken to be of "
                "the time of the file."
            )
        base_ns = trace.base_unix_ns
        return DeviceRead(base_ns + end_ns, trace), base_ns + start_ns

    def _count(self, rows: Rows, rejected: Counter[str]) -> None:
        taken = self.counts.taken
        taken["activities of devices"] += len(rows.activities)
        kinds = rows.host.kinds.tobytes()
        for kind in HostWork:
            taken[HOST_WORK[kind]] += kinds.count(kind)
        self.counts.left_out += rows.left_out
        if cut := rows.names.left_out + rows.shapes.left_out:
            self.counts.left_out["names and shapes of events, of which there are too many"] += cut
        self.counts.rejected += rejected


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(one for one in path.iterdir() if one.name.endswith(_SUFFIXES))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from error
    if not found:
        raise RecordingError(f"{path}: contains no trace", hint="traces end in .json or .json.gz")
    if len(found) > MAX_FILES:
        raise RecordingError(f"{path}: contains more than {MAX_FILES:,} traces")
    return found


def _trace(
    source: str, head: Mapping[str, object], rows: Rows, start_ns: int, rejected: Mapping[str, int]
) -> DeviceTrace:
    run = head.get("distributedInfo")
    run = run if type(run) is dict else {}
    base_ns = _number(head.get("baseTimeNanoseconds"))
    trace = DeviceTrace(
        source=clean(source),
        tool=_TOOL,
        base_unix_ns=base_ns or 0,
        is_dated=False,
        names=rows.names,
        shapes=rows.shapes,
        activities=rows.activities,
        host=rows.host,
        threads=rows.threads(),
        collectives=rows.collectives(),
        models=dict(_models(head.get("deviceProperties"))),
        rank=_number(run.get("rank")),
        ranks=_number(run.get("world_size")),
        program=_PROGRAM,
        device_steps=tuple(rows.device_steps),
        has_stacks=rows.has_stacks or bool(head.get("with_stack")),
        has_shapes=bool(head.get("record_shapes")) or len(rows.shapes) > 1,
        overhead_ns=rows.overhead_ns,
        rejected=rejected,
    )
    return trace._replace(is_dated=trace.base_unix_ns + start_ns >= _UNIX_US * _NS_PER_US)


def _extent(rows: Rows) -> tuple[int, int]:
    tables = [table for table in (rows.activities, rows.host) if len(table)]
    start_ns = min((min(table.starts_ns) for table in tables), default=0)
    ends = (max(map(add, table.starts_ns, table.durations_ns)) for table in tables)
    return start_ns, max(ends, default=start_ns)


def _models(properties: object) -> Iterator[tuple[int, DeviceModel]]:
    for one in properties[:_MAX_DEVICES] if type(properties) is list else []:
        if type(one) is not dict or (number := _number(one.get("id"))) is None:
            continue
        major, minor = _number(one.get("computeMajor")), _number(one.get("computeMinor"))
        yield (
            number,
            DeviceModel(
                name=clean(str(one.get("name", ""))),
                compute=(major or 0) * 10 + (minor or 0),
                processors=_number(one.get("numSms")) or 0,
                memory_bytes=_number(one.get("totalGlobalMem")) or 0,
            ),
        )


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None
