"""Makes rows of the events of a trace, as old and new versions of torch write them."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from otel_gpu.errors import RecordingError
from otel_gpu.importers.torch_trace.trace_event import NO_TEXT, EventArguments, TraceEvent
from otel_gpu.wire.device_activity import (
    MAX_CORRELATION,
    UNKNOWN_COLLECTIVE,
    Collective,
    DeviceActivities,
    DeviceStep,
    HostOperations,
    HostWork,
    Names,
    Thread,
    Work,
)
from otel_gpu.wire.frames import clean

MAX_ROWS: Final = 6_000_000
"""Of each of both tables, which is some gigabytes of text."""
PYTHON_NS: Final = 100_000
"""Functions of Python that took less are not kept: they are most events, and only long gaps ask."""

_MAX_THREADS = (1 << 16) - 1
_MAX_COLLECTIVES = 1 << 16
_MAX_DEVICE_STEPS = 10_000
_MAX_DEVICE = 1 << 16
_MAX_SIZE = 1 << 50
_MAX_TIME_NS = 1 << 62
# A longer duration is an overflow: no trace takes ten days.
_MAX_DURATION_NS = 10 * 86_400 * 10**9
_NS_PER_US = 1_000
_MAX_TIME_US, _MAX_DURATION_US = _MAX_TIME_NS // _NS_PER_US, _MAX_DURATION_NS // _NS_PER_US
_STEP = "ProfilerStep"
# In bytes, of what collectives move, as c10::ScalarType calls them.
_DTYPE_BYTES: Mapping[str, int] = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
}  # fmt: skip

_HOST: Mapping[str, HostWork] = {
    "cpu_op": HostWork.OPERATION,
    "operator": HostWork.OPERATION,
    "user_annotation": HostWork.ANNOTATION,
    "cuda_runtime": HostWork.CALL,
    "cuda_driver": HostWork.CALL,
    "hip_runtime": HostWork.CALL,
    "runtime": HostWork.CALL,
    "driver": HostWork.CALL,
}
_DEVICE: Mapping[str, Work] = {
    "kernel": Work.KERNEL,
    "concurrent_kernel": Work.KERNEL,
    "gpu_memcpy": Work.COPY,
    "memcpy": Work.COPY,
    "gpu_memset": Work.FILL,
    "memset": Work.FILL,
}
# By prefixes of the categories of their calls and devices in Kineto.
_OTHER_MAKERS: Mapping[str, str] = {
    "xpu": "Intel XPU",
    "hpu": "Intel Gaudi",
    "mtia": "Meta MTIA",
    "glow": "Glow",
    "privateuse1": "a device that torch calls PrivateUse1",
}


class Rows:
    """
    The rows of one trace.

    Attributes:
        left_out: Events that have no counterpart here, by name.
        rejected: Events that make no sense, or of devices that nothing is known of, by reason.
        has_events: There was an event at all, whether or not it is kept.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.shapes = Names(1 << 16)
        self.activities = DeviceActivities()
        self.host = HostOperations()
        self.device_steps: list[DeviceStep] = []
        self.overhead_ns = 0
        self.has_stacks = False
        self.has_events = False
        self.left_out: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self._threads: dict[tuple[int, int], int] = {(0, 0): 0}
        self._thread_names: dict[tuple[int, int], str] = {}
        self._collectives: dict[Collective, int] = {UNKNOWN_COLLECTIVE: 0}
        # The handlers of events by category.
        self._takers: dict[object, Callable[[TraceEvent], None]] = {}
        # By the text of shapes and types of operations; most texts repeat.
        self._shapes: dict[tuple[bytes, bytes], int] = {}

    def take(self, events: Sequence[TraceEvent]) -> None:
        """
        Take events.

        Raises:
            RecordingError: There are too many.
        """
        known, silent = self._takers.get, _SILENT
        self.has_events = self.has_events or any(type(event.ph) is str for event in events)
        for event in events:
            try:
                if event.ph == "X":
                    (known(event.cat) or self._taker(event.cat))(event)
                elif event.ph not in silent:
                    self._take_other(event)
            except (TypeError, ValueError, AttributeError):
                self.rejected["events without what they need"] += 1
        if max(len(self.host), len(self.activities)) > MAX_ROWS:
            raise RecordingError(
                f"it has more than {MAX_ROWS:,} events", hint="profile fewer steps"
            )

    def threads(self) -> tuple[Thread, ...]:
        """Return the threads by number."""
        return tuple(Thread(*key, self._thread_names.get(key, "")) for key in self._threads)

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives by number."""
        return tuple(self._collectives)

    def _taker(self, category: object) -> Callable[[TraceEvent], None]:
        if type(category) is not str:
            return self._leave_out
        known = category.lower()
        taker: Callable[[TraceEvent], None]
        if (kind := _HOST.get(known)) is not None:
            taker = self._host_taker(kind)
        elif (work := _DEVICE.get(known)) is not None:
            taker = self._device_taker(work)
        elif known == "python_function":
            taker = self._take_python
        elif known == "gpu_user_annotation":
            taker = self._take_device_step
        elif known == "overhead":
            taker = self._take_overhead
        elif maker := _OTHER_MAKERS.get(known.partition("_")[0]):
            taker = self._refuser(maker)
        else:
            return self._leave_out
        self._takers[category] = taker
        return taker

    def _refuser(self, maker: str) -> Callable[[TraceEvent], None]:
        rejected, reason = self.rejected, f"events of {maker}, whose devices are not read"

        def refuse(_: TraceEvent) -> None:
            rejected[reason] += 1

        return refuse

    def _leave_out(self, event: TraceEvent) -> None:
        name = "events without a category" if event.cat is None else str(event.cat)
        known = len(self.left_out) < _MAX_KINDS or name in self.left_out
        self.left_out[clean(name) if known else "other events"] += 1

    def _take_other(self, event: TraceEvent) -> None:
        if event.ph is None:
            raise TypeError
        if event.ph != "M":
            self.left_out[f"events of phase {clean(str(event.ph))[:8]}"] += 1
        elif event.name == "thread_name" and len(self._thread_names) <= _MAX_THREADS:
            key = _thread_key(event.pid, event.tid)
            self._thread_names[key] = clean(str(event.args.name))  # type: ignore[union-attr]

    def _host_taker(self, kind: HostWork) -> Callable[[TraceEvent], None]:
        # Names that nearly all were seen before, so that a call takes longer than its answer.
        known_name, known_thread = self.names.numbers.get, self._threads.get
        number, times, thread_of = self.names.number, self._times, self._thread
        host = self.host
        # All rows are made here or below: the method ``add`` of the tables would take twice the time.
        add_kind, add_thread, add_start = (
            host.kinds.append,
            host.threads.append,
            host.starts_ns.append,
        )
        add_duration, add_name = host.durations_ns.append, host.names.append
        add_correlation, add_shape = host.correlations.append, host.shapes.append
        number_of_kind, is_call = int(kind), kind is HostWork.CALL
        is_operation = kind is HostWork.OPERATION

        # Nearly always of the same thread as the one before, which is faster to see than to look up.
        last_pid: object = _NOBODY
        last_tid: object = _NOBODY
        last_thread = 0

        def take(event: TraceEvent) -> None:
            nonlocal last_pid, last_tid, last_thread
            start_ns, duration_ns = event.ts, event.dur
            if type(start_ns) is type(duration_ns) is int and (
                0 <= start_ns <= _MAX_TIME_US and 0 <= duration_ns <= _MAX_DURATION_US
            ):
                # Most are, and a call would take as long.
                start_ns *= _NS_PER_US
                duration_ns *= _NS_PER_US
            else:
                start_ns, duration_ns = times(event)
                if duration_ns < 0:
                    return
            correlation = shape = 0
            arguments = event.args
            if is_call:
                if type(arguments) is EventArguments and arguments.correlation is not None:
                    correlation = _correlation(arguments)
            elif (
                is_operation
                and type(arguments) is EventArguments
                and arguments.shape is not NO_TEXT
            ):
                shape = self._shape(arguments)
            if (name := known_name(event.name)) is None:
                name = number(event.name)
            if event.tid != last_tid or event.pid != last_pid:
                if (known := known_thread((event.pid, event.tid))) is None:
                    known, last_tid = thread_of(event), _NOBODY
                else:
                    last_pid, last_tid = event.pid, event.tid
                last_thread = known
            add_kind(number_of_kind)
            add_thread(last_thread)
            add_start(start_ns)
            add_duration(duration_ns)
            add_name(name)
            add_correlation(correlation)
            add_shape(shape)

        return take

    def _shape(self, arguments: EventArguments) -> int:
        key = bytes(arguments.shape), bytes(arguments.types)
        found = self._shapes.get(key)
        if found is None:
            dims, types = map(json.loads, key)
            found = self.shapes.number(f"{dims} {'' if types is None else types}") if dims else 0
            if len(self._shapes) < _MAX_SHAPES and sum(map(len, key)) < _LONG_SHAPE:
                self._shapes[key] = found
        return found

    def _take_python(self, event: TraceEvent) -> None:
        self.has_stacks = True
        # Most are short: their time is looked at first.
        if event.dur * _NS_PER_US < PYTHON_NS:
            return
        start_ns, duration_ns = self._times(event)
        if duration_ns < 0:
            return
        # Of a method of an object, whichever object it is.
        name = self.names.number(event.name.partition(" at 0x")[0])
        self.host.add(HostWork.PYTHON, self._thread(event), start_ns, duration_ns, name)

    def _device_taker(self, kind: Work) -> Callable[[TraceEvent], None]:
        number, times, activities = self.names.number, self._times, self.activities
        number_of_kind = int(kind)
        add_kind, add_device, add_stream = (
            activities.kinds.append,
            activities.devices.append,
            activities.streams.append,
        )
        add_start, add_duration = activities.starts_ns.append, activities.durations_ns.append
        add_name, add_correlation = activities.names.append, activities.correlations.append
        add_size, add_collective = activities.sizes_bytes.append, activities.collectives.append
        add_occupancy, add_blocks = activities.occupancies.append, activities.blocks.append

        def take(event: TraceEvent) -> None:
            start_ns, duration_ns = times(event)
            if duration_ns < 0:
                return
            if start_ns == 0:
                self.rejected["activities of a device at time 0"] += 1
                return
            arguments: Any = event.args
            device, stream = arguments.device, arguments.stream
            device = _integer(event.pid if device is None else device)
            stream = _integer(stream) if stream is not None else _stream(event)
            size, occupancy, blocks = arguments.size_bytes, arguments.occupancy, arguments.blocks
            collective = 0 if arguments.collective is None else self._collective(arguments)
            add_name(number(event.name))
            add_kind(number_of_kind)
            add_device(device if 0 <= device < _MAX_DEVICE else -1)
            add_stream(stream)
            add_start(start_ns)
            add_duration(duration_ns)
            add_correlation(_correlation(arguments))
            add_size(0 if size is None else _size(size))
            add_collective(collective)
            add_occupancy(_UNKNOWN_SHARE if occupancy is None else _estimate(occupancy) / 100)
            add_blocks(-1.0 if blocks is None else _estimate(blocks))

        return take

    def _take_device_step(self, event: TraceEvent) -> None:
        if not event.name.startswith(_STEP):
            self.left_out["gpu_user_annotation"] += 1
            return
        start_ns, duration_ns = self._times(event)
        device = event.args.device if type(event.args) is EventArguments else None
        device = _integer(event.pid if device is None else device)
        if duration_ns >= 0 and len(self.device_steps) < _MAX_DEVICE_STEPS:
            name = clean(event.name)
            self.device_steps.append(
                DeviceStep(device, name, start_ns=start_ns, duration_ns=duration_ns)
            )

    def _take_overhead(self, event: TraceEvent) -> None:
        self.overhead_ns += max(0, self._times(event)[1])

    def _times(self, event: TraceEvent) -> tuple[int, int]:
        # Start and duration in nanoseconds; a duration of -1: they were rejected.
        start, duration = event.ts, event.dur
        try:
            start_ns, duration_ns = start * _NS_PER_US, duration * _NS_PER_US
            if type(start_ns) is not int or type(duration_ns) is not int:
                start_ns, duration_ns = round(start_ns), round(duration_ns)
        except (TypeError, ValueError, OverflowError) as error:
            if start is None or duration is None:
                raise TypeError from error
            self.rejected["events whose times are no numbers"] += 1
            return 0, -1
        if not 0 <= start_ns <= _MAX_TIME_NS:
            self.rejected["events at impossible times"] += 1
            return 0, -1
        if not 0 <= duration_ns <= _MAX_DURATION_NS:
            self.rejected["events of impossible durations"] += 1
            return 0, -1
        return start_ns, duration_ns

    def _thread(self, event: TraceEvent) -> int:
        key = event.pid, event.tid
        number = self._threads.get(key)
        return self._add_thread(key) if number is None else number

    def _add_thread(self, key: tuple[object, object]) -> int:
        known = _thread_key(*key)
        if known not in self._threads and len(self._threads) <= _MAX_THREADS:
            self._threads[known] = len(self._threads)
        return self._threads.get(known, 0)

    def _collective(self, arguments: EventArguments) -> int:
        older = arguments.older_sequence
        made = Collective(
            name=clean(str(arguments.collective)),
            group=clean("" if arguments.group is None else str(arguments.group)),
            sequence=_integer(older if arguments.sequence is None else arguments.sequence),
            size_bytes=_size(arguments.elements) * _DTYPE_BYTES.get(str(arguments.dtype), 1),
            ranks=_size(arguments.ranks),
        )
        number = self._collectives.get(made)
        if number is None:
            if len(self._collectives) >= _MAX_COLLECTIVES:
                made = Collective(
                    made.name, made.group, sequence=-1, size_bytes=0, ranks=made.ranks
                )
            number = self._collectives.setdefault(made, len(self._collectives))
        return number


# Flows and marks repeat the information of correlations.
_SILENT = frozenset("sftiIC")
_MAX_KINDS = 100
# A thread that no event is of.
_NOBODY = object()
_UNKNOWN_SHARE = -1.0 / 100
# Of texts of shapes that are known: more, and longer ones, are parsed again.
_MAX_SHAPES = 1 << 16
_LONG_SHAPE = 1_024


def _integer(value: object) -> int:
    # A number as it is written, -1 where none is; never too large for a column.
    if type(value) is str:
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1  # noqa: PLR2004
    return value if type(value) is int and abs(value) < 1 << 62 else -1


def _thread_key(pid: object, tid: object) -> tuple[int, int]:
    if pid is None or tid is None:
        raise TypeError
    return _integer(pid), _integer(tid)


def _correlation(arguments: object) -> int:
    value = arguments.correlation if type(arguments) is EventArguments else 0
    return value if type(value) is int and 0 < value <= MAX_CORRELATION else 0


def _stream(event: TraceEvent) -> int:
    # As in "stream 7", of old versions.
    return _integer(str(event.tid).rpartition(" ")[2])


def _size(value: object) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_SIZE else 0


def _estimate(value: object) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e6 else -1.0  # type: ignore[operator, arg-type]  # noqa: PLR2004
