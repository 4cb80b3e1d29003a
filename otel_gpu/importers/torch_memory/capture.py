"""The importer of PyTorch's memory snapshots: the memory of each device, as events."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from otel_gpu.config import Config
from otel_gpu.errors import RecordingError
from otel_gpu.importers.import_counts import ImportCounts
from otel_gpu.importers.plain_pickle import UnreadableError, read_plain
from otel_gpu.importers.regular_file import check_file
from otel_gpu.importers.torch_memory.dictionaries import EVENT, OTHER_EVENT, Shapes
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode
from otel_gpu.wire.events import Capture, Clock, Event, MemoryRead
from otel_gpu.wire.frames import clean
from otel_gpu.wire.histogram_layout import layout_description
from otel_gpu.wire.memory_snapshot import MemorySnapshot, Operations, Phase, Segment

MAX_FILE_BYTES: Final = 1 << 30
MAX_DEVICES: Final = 256
_NS_PER_US = 1_000
_TOOL = "torch.cuda.memory"


@contextmanager
def open_capture(
    path: Path, config: Config, *, device_bytes: int = 0
) -> Iterator["SnapshotCapture"]:
    """
    Read a snapshot; see ``importers.open_capture``.

    ``device_bytes`` is the memory of a device, which snapshots do not contain; 0: unknown.

    Raises:
        RecordingError: It cannot be read, is too large, or is not a snapshot.
    """
    yield SnapshotCapture(path, config, device_bytes)


class SnapshotCapture:
    """A snapshot that was read and found to be one."""

    def __init__(self, path: Path, config: Config, device_bytes: int = 0) -> None:
        self._layout = layout_description(config)
        self._device_bytes = device_bytes
        self._shapes = Shapes()
        try:
            self._file_unix_ns = check_file(path, MAX_FILE_BYTES)
            with path.open("rb") as stream:
                whole = read_plain(stream, self._shapes)
            self._take(whole)
        except UnreadableError as error:
            where = f" (byte {error.at:,})" if error.at >= 0 else ""
            raise RecordingError(
                f"{path}: not a readable memory snapshot: {error}{where}",
                hint="write one with torch.cuda.memory._dump_snapshot(FILE)",
            ) from None
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from error
        self.counts = self._count_all()

    def events(self) -> Iterator[Event]:
        """Yield the memory of each device; see ``importers.ForeignCapture``."""
        times = [
            unix_us * _NS_PER_US
            for _, operations in self._traces
            for unix_us in _ends(operations)
            if unix_us > 0
        ]
        start_ns = min(times, default=self._file_unix_ns)
        end_ns = max(times, default=self._file_unix_ns)
        if not times:
            self.counts.notes.append("The file says no times: that of the file stands for them.")
        info: CaptureFacts = {
            "layout": self._layout,
            "mode": CaptureMode.IMPORT,
            "source": self.counts.source,
        }
        yield Capture(start_ns, info)
        yield Clock(start_ns, start_ns)
        stacks = self._shapes.stacks()
        traces = dict(self._traces)
        found = {segment.device for segment in self._segments}
        used = {device for device, operations in self._traces if len(operations)}
        for device in sorted(found | used):
            yield MemoryRead(
                end_ns,
                MemorySnapshot(
                    ktime_ns=end_ns,
                    device=device,
                    segments=tuple(one for one in self._segments if one.device == device),
                    operations=traces.get(device, Operations()),
                    stacks=stacks,
                    phases=tuple(one for one in self._phases if one.device == device),
                    is_expandable=self._is_expandable,
                    capacity_bytes=self._device_bytes,
                ),
            )

    def _take(self, whole: object) -> None:
        # The oldest are the list of segments alone.
        body: Mapping[str, object] = {"segments": whole} if type(whole) is list else {}
        if type(whole) is dict:
            body = whole
        if "segments" not in body:
            raise UnreadableError("it is a pickle without segments")
        segments = body["segments"]
        if type(segments) is not list or not all(type(one) is Segment for one in segments):
            raise UnreadableError("segments: expected a list")
        self._segments = segments
        traces = body.get("device_traces")
        self._traces = list(self._split([] if traces is None else traces))
        self._phases = tuple(_phases(body.get("external_annotations")))
        settings = body.get("allocator_settings")
        self._settings = settings if type(settings) is dict else {}
        stated = self._settings.get("expandable_segments")
        self._is_expandable = stated if type(stated) is bool else None
        if len({segment.device for segment in segments}) > MAX_DEVICES:
            raise UnreadableError(f"it has more than {MAX_DEVICES} devices")

    def _split(self, traces: object) -> Iterator[tuple[int, Operations]]:
        # The operations of each device; they were read one device after the other.
        if type(traces) is not list or len(traces) > MAX_DEVICES:
            raise UnreadableError(f"traces: expected a list of at most {MAX_DEVICES} devices")
        operations, at = self._shapes.operations, 0
        for device, trace in enumerate(traces):
            if type(trace) is not list:
                raise UnreadableError(f"a trace: expected a list, got {type(trace).__name__}")
            count = trace.count(EVENT)
            if count + trace.count(OTHER_EVENT) != len(trace):
                raise UnreadableError("a trace with something other than events")
            # The same list would otherwise count for two devices.
            trace.clear()
            yield device, operations.part(at, at + count)
            at += count
        if at != len(operations):
            raise UnreadableError("events outside of the traces of devices")

    def _count_all(self) -> ImportCounts:
        blocks = sum(len(segment.blocks) for segment in self._segments)
        count = len(self._shapes.operations)
        conf = self._settings.get("PYTORCH_CUDA_ALLOC_CONF")
        source: dict[str, Any] = {"tool": _TOOL}
        if type(conf) is str and conf:
            source["settings"] = clean(conf)
        taken = Counter({"segments": len(self._segments), "blocks": blocks, "events": count})
        return ImportCounts(source=source, taken=taken, left_out=self._shapes.left_out)


def _ends(operations: Operations) -> tuple[int, ...]:
    times = operations.unix_us
    return (min(times), max(times)) if times else ()


def _phases(annotations: object) -> Iterator[Phase]:
    # Annotations that began and ended; those of one name do not lie in each other.
    if type(annotations) is not list:
        return
    begun: dict[tuple[int, str], int] = {}
    for one in annotations:
        if type(one) is not Phase:
            continue
        key = (one.device, one.name)
        if not one.end_unix_us:
            begun[key] = one.start_unix_us
        elif key in begun:
            yield one._replace(start_unix_us=begun.pop(key))
