"""Turns events into activities: Unix time, names, devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.decode.events import (
    Aggregate,
    Aggregates,
    Capture,
    Clock,
    Counters,
    CudaCall,
    Device,
    Event,
    Exec,
    Exit,
    Fork,
    Gap,
    Library,
    OpenCall,
    Pressure,
    Probes,
    ProcessSeen,
    SeriesKey,
    Stack,
    Stall,
    Status,
    Times,
    TimesKey,
    UserStack,
)
from otel_gpu.enrich import clock as clocks
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    ImageKey,
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
from otel_gpu.enrich.arrivals import Arrivals, Waiting
from otel_gpu.enrich.devices import DeviceTable
from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.enrich.processes import MAX_DEAD, MAX_IMAGES, ProcessTable
from otel_gpu.enrich.reasons import find_reason
from otel_gpu.enrich.stack_table import StackTable
from otel_gpu.enrich.user_reasons import refine_reason
from otel_gpu.faults import Faults
from otel_gpu.probe_table import API_BY_NUMBER, Api

_FIRST_DRIVER_API = 100
_MAX_KERNEL_STACKS = 16384
_MAX_TIMES = 65536
_new_tuple = tuple.__new__


class Enricher:
    """
    Gives events their names, from what earlier events said.

    It reads nothing but the events: a replay gives what the live capture gave. No event
    can stop it, whatever its numbers say, and its memory is bounded. All activities of a
    process image have the same process; only the child of a fork may get better names later.

    Args:
        max_images: Process images known at a time, dead ones included.
        max_dead: Ended process images remembered for late records.
    """

    def __init__(self, *, max_images: int = MAX_IMAGES, max_dead: int = MAX_DEAD) -> None:
        self._clock = clocks.Clock()
        self._ids = SpanIds(NO_SEED)
        self._devices = DeviceTable()
        self._kernel_stacks: dict[int, tuple[str, ...]] = {}
        self._stacks = StackTable()
        self._machine = ""
        self._times: dict[ImageKey, dict[TimesKey, tuple[int, int]]] = {}
        self._times_known = 0
        self._processes = ProcessTable(
            self._clock, self._forget, max_images=max_images, max_dead=max_dead
        )
        self._settled = self._processes.settled
        self._arrivals = Arrivals()
        # The image whose events wait no longer, while they are handed on.
        self._released: ImageKey | None = None
        # What was held back and need not wait any more.
        self._ready: list[Activity] = []
        self._ktime_ns = 0
        self._faults: Faults | None = None
        self._ways: dict[type, Callable[[Any], Activity | None]] = {
            Aggregates: self._enrich_aggregates,
            Clock: self._learn_clock,
            Counters: self._enrich_counters,
            CudaCall: self._enrich_call,
            Device: self._learn_device,
            Exec: self._enrich_exec,
            Exit: self._enrich_exit,
            Fork: self._enrich_fork,
            Gap: self._enrich_gap,
            Pressure: self._enrich_pressure,
            Stack: self._learn_kernel_stack,
            UserStack: self._stacks.learn,
            Times: self._enrich_times,
            Library: _ignore,
            OpenCall: self._enrich_open_call,
            Probes: self._enrich_probes,
            ProcessSeen: self._learn_process,
            Stall: self._enrich_stall,
            Status: self._enrich_status,
        }

    def enrich(self, events: Iterable[Event], faults: Faults | None = None) -> Iterator[Activity]:
        """
        Yield the activities of events, in order; may be called again to go on.

        Events that only teach something (clocks, processes, devices, libraries) yield
        none. A capture waits for the clock samples that follow it, which date it; the first
        activities of a process wait for its name (``arrivals``), at most until the events end.
        An error about one event is counted in ``faults``; without any, it is raised.
        """
        waiting: Capture | None = None
        self._faults = faults
        ways = self._ways
        for event in events:
            kind = type(event)
            # A capture comes before the first clock sample, and is dated by it.
            if waiting is not None and kind is not Clock:
                yield self._enrich_capture(waiting)
                waiting = None
            if kind is Capture:
                yield from self._release_all()
            try:
                if type(event) is Capture:
                    self._learn_capture(event)
                    waiting = event
                    continue
                activity = ways[kind](event)
            except Exception as error:  # noqa: BLE001 -- counted, or raised
                self._fail(error)
                activity = None
            if self._ready:
                yield from self._take_ready()
            if activity is not None:
                yield activity
        if waiting is not None:
            yield self._enrich_capture(waiting)
        yield from self._release_all()

    def _fail(self, error: Exception) -> None:
        if self._faults is None:
            raise error
        self._faults.add("enrich", error)

    def _learn_capture(self, event: Capture) -> None:
        self._processes.learn_host(event.info)
        host = event.info.get("host")
        self._machine = str(host.get("arch")) if isinstance(host, Mapping) else ""
        self._kernel_stacks.clear()
        self._stacks.clear()

    def _wait(self, image: ImageKey, event: Waiting) -> None:
        # Each of these events begins with the time at which it was sent.
        self._arrivals.hold(image, event, max(self._ktime_ns, event[0]))
        self._make_room()

    def _make_room(self) -> None:
        while (image := self._arrivals.in_excess()) is not None:
            self._release(image)

    def _advance(self, ktime_ns: int) -> None:
        self._ktime_ns = max(self._ktime_ns, ktime_ns)
        for image in self._arrivals:
            if self._arrivals.is_overdue(self._processes.find(*image, ""), ktime_ns):
                self._release(image)

    def _release(self, image: ImageKey) -> None:
        """Let an image have the names that it has, and hand on what waited for them."""
        self._processes.settle(*image)
        arrival = self._arrivals.take(image)
        if arrival is None:
            return
        self._released = image
        for event in arrival.events:
            try:
                activity = self._ways[type(event)](event)
            except Exception as error:  # noqa: BLE001 -- counted, or raised
                self._fail(error)
                continue
            if activity is not None:
                self._ready.append(activity)
        self._released = None
        unix_ns = self._clock.to_unix_ns(self._ktime_ns)
        if arrival.has_times and image in self._times:
            self._ready.append(TimesActivity(unix_ns, tuple(self._sum_times(image))))
        if arrival.series:
            series = map(self._name_series, arrival.series, arrival.series.values())
            self._ready.append(AggregatesActivity(unix_ns, tuple(series)))

    def _release_all(self) -> list[Activity]:
        for image in self._arrivals:
            self._release(image)
        return self._take_ready()

    def _take_ready(self) -> list[Activity]:
        ready, self._ready = self._ready, []
        return ready

    def _forget(self, image: ImageKey) -> None:
        self._devices.forget(image)
        self._forget_times(image)

    def _enrich_call(self, event: CudaCall) -> CallActivity | None:
        image = (event.pid, event.image_ktime_ns)
        process = self._settled.get(image) or self._find_process(event)
        if process is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        values = (
            process,
            event,
            API_BY_NUMBER.get(event.api) or _unknown_api(event.api),
            start_unix_ns,
            end_unix_ns,
            None if event.device < 0 else self._devices.find(image, event.device),
            self._stacks.find(event.user_stack) if event.user_stack else None,
            *self._ids.of_call(event),
        )
        # As CallActivity(…), which takes three times as long.
        return _new_tuple(CallActivity, values)

    def _learn_clock(self, event: Clock) -> None:
        self._clock.add_sample(event.ktime_ns, event.unix_ns)

    def _learn_process(self, event: ProcessSeen) -> None:
        self._ktime_ns = max(self._ktime_ns, event.ktime_ns)
        self._processes.learn_facts(event.pid, event.image_ktime_ns, event.ktime_ns, event.facts)
        self._release((event.pid, event.image_ktime_ns))

    def _enrich_exec(self, event: Exec) -> ExitActivity:
        # The old image ends here; its process does not, so there is no exit code to tell.
        self._release((event.pid, event.old_image_ktime_ns))
        old = self._processes.find(event.pid, event.old_image_ktime_ns, "")
        self._forget_times((event.pid, event.old_image_ktime_ns))
        self._processes.learn_exec(
            event.pid, event.image_ktime_ns, event.old_image_ktime_ns, event.path, event.comm
        )
        return ExitActivity(old, self._clock.to_unix_ns(event.ktime_ns), 0, is_replaced=True)

    def _learn_device(self, event: Device) -> None:
        # Devices are forgotten with their image, so there must be one.
        self._processes.find(event.pid, event.image_ktime_ns, "")
        self._devices.learn((event.pid, event.image_ktime_ns), event.device, event.uuid, event.name)

    def _enrich_status(self, event: Status) -> StatusActivity:
        return StatusActivity(self._clock.to_unix_ns(event.ktime_ns), event.info)

    def _enrich_probes(self, event: Probes) -> ProbesActivity:
        return ProbesActivity(self._clock.to_unix_ns(event.ktime_ns), event.info)

    def _enrich_capture(self, event: Capture) -> CaptureActivity:
        unix_ns = self._clock.to_unix_ns(event.ktime_ns)
        seed = capture_seed(unix_ns, event.info)
        self._ids = SpanIds(seed)
        return CaptureActivity(unix_ns, event.info, seed)

    def _enrich_stall(self, event: Stall) -> StallActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        _, runnable_unix_ns = self._clock.date(event.end_ktime_ns, event.runnable_ktime_ns)
        reason = ""
        if event.runnable_ktime_ns > event.start_ktime_ns:
            reason = refine_reason(
                self._reason(event.kernel_stack, event.system_call, event.flags),
                self._stacks.rules_of(event.user_stack),
            )
        return StallActivity(
            process,
            event,
            start_unix_ns,
            runnable_unix_ns,
            end_unix_ns,
            reason,
            self._kernel_stacks.get(event.kernel_stack, ()),
            self._stacks.find(event.user_stack),
            *self._ids.of_stall(event),
        )

    def _find_process(self, event: Waiting) -> ProcessImage | None:
        """Return the process of an event; None: it has no name yet, and the event waits."""
        image = (event.pid, event.image_ktime_ns)
        process = self._processes.find(*image, event.comm)
        if image == self._released or not self._must_wait(image):
            return process
        self._wait(image, event)
        return None

    def _must_wait(self, image: ImageKey) -> bool:
        # In a full table an image may be gone of which something waits: what follows comes after it.
        return self._processes.may_improve(image) or image in self._arrivals

    def _reason(self, kernel_stack: int, system_call: int, flags: int) -> str:
        functions = self._kernel_stacks.get(kernel_stack, ())
        return find_reason(functions, system_call, flags, self._machine)

    def _learn_kernel_stack(self, event: Stack) -> None:
        if len(self._kernel_stacks) < _MAX_KERNEL_STACKS:
            self._kernel_stacks[event.kernel_stack] = event.functions

    def _enrich_gap(self, event: Gap) -> GapActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return GapActivity(
            process,
            event,
            API_BY_NUMBER.get(event.previous_api) or _unknown_api(event.previous_api),
            API_BY_NUMBER.get(event.next_api) or _unknown_api(event.next_api),
            start_unix_ns,
            end_unix_ns,
            self._devices.find((event.pid, event.image_ktime_ns), event.device),
            *self._ids.of_gap(event),
        )

    def _enrich_times(self, event: Times) -> TimesActivity:
        self._advance(event.ktime_ns)
        images = set()
        for key, time_ns, count in event.entries:
            image = (key.pid, key.image_ktime_ns)
            known = self._times.get(image, {})
            if key not in known:
                if self._times_known >= _MAX_TIMES:
                    continue
                self._times_known += 1
                known = self._times.setdefault(image, {})
            known[key] = (time_ns, count)
            images.add(image)
        for image in images:
            self._processes.find(*image, "")
        waiting = set(filter(self._must_wait, images))
        for image in waiting:
            self._arrivals.hold_times(image, event.ktime_ns)
        times = [time for image in sorted(images - waiting) for time in self._sum_times(image)]
        return TimesActivity(self._clock.to_unix_ns(event.ktime_ns), tuple(times))

    def _forget_times(self, image: ImageKey) -> None:
        self._times_known -= len(self._times.pop(image, ()))

    def _sum_times(self, image: ImageKey) -> Iterator[ThreadTime]:
        totals: dict[tuple[int, int, str], tuple[int, int]] = {}
        for key, (time_ns, count) in self._times.get(image, {}).items():
            reason = ""
            if key.state == wire.STATE_BLOCKED:
                reason = self._reason(key.kernel_stack, key.system_call, key.flags)
            kind = (key.state, key.context, reason)
            known_ns, known = totals.get(kind, (0, 0))
            totals[kind] = (known_ns + time_ns, known + count)
        process = self._processes.find(*image, "")
        for kind, total in totals.items():
            yield ThreadTime(process, *kind, *total)

    def _enrich_pressure(self, event: Pressure) -> PressureActivity:
        return PressureActivity(self._clock.to_unix_ns(event.ktime_ns), event.info)

    def _enrich_fork(self, event: Fork) -> ForkActivity | None:
        # The child's own records need not wait for its parent's name.
        parent = self._processes.find(event.pid, event.image_ktime_ns, event.comm)
        child = self._processes.learn_fork(parent, event.child_pid, event.child_image_ktime_ns)
        if self._find_process(event) is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return ForkActivity(
            parent, event, child, start_unix_ns, end_unix_ns, *self._ids.of_fork(event)
        )

    def _enrich_open_call(self, event: OpenCall) -> OpenCallActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        seen_unix_ns, start_unix_ns = self._clock.date(event.ktime_ns, event.start_ktime_ns)
        return OpenCallActivity(
            process,
            event,
            API_BY_NUMBER.get(event.api) or _unknown_api(event.api),
            start_unix_ns,
            seen_unix_ns,
            self._devices.find((event.pid, event.image_ktime_ns), event.device),
            self._stacks.find(event.user_stack),
            *self._ids.of_open_call(event),
        )

    def _enrich_exit(self, event: Exit) -> ExitActivity:
        self._ktime_ns = max(self._ktime_ns, event.ktime_ns)
        image = self._processes.learn_exit(
            event.pid, event.image_ktime_ns, event.ktime_ns, event.comm
        )
        self._release((event.pid, event.image_ktime_ns))
        self._forget_times((event.pid, event.image_ktime_ns))
        return ExitActivity(image, self._clock.to_unix_ns(event.ktime_ns), event.exit_code)

    def _enrich_counters(self, event: Counters) -> CountersActivity:
        self._advance(event.ktime_ns)
        values = {
            wire.COUNTER_NAMES.get(number, f"counter_{number}"): value
            for number, value in enumerate(event.values)
        }
        return CountersActivity(self._clock.to_unix_ns(event.ktime_ns), values)

    def _enrich_aggregates(self, event: Aggregates) -> AggregatesActivity:
        self._advance(event.ktime_ns)
        series = []
        for key, aggregate in event.series:
            image = (key.pid, key.image_ktime_ns)
            self._processes.find(*image, "")
            if self._must_wait(image):
                self._arrivals.hold_series(image, key, aggregate, event.ktime_ns)
                self._make_room()
            else:
                series.append(self._name_series(key, aggregate))
        return AggregatesActivity(self._clock.to_unix_ns(event.ktime_ns), tuple(series))

    def _name_series(self, key: SeriesKey, aggregate: Aggregate) -> Series:
        api: Api | None = None
        # Other metrics keep a switch type, or nothing, where calls keep their API.
        if key.metric == wire.METRIC_CALL_DURATION:
            api = API_BY_NUMBER.get(key.api) or _unknown_api(key.api)
        image = (key.pid, key.image_ktime_ns)
        process = self._processes.find(*image, "")
        return Series(process, key, api, self._devices.find(image, key.device), aggregate)


def _ignore(_: Library) -> None:
    # That a library was mapped is for the side that places probes; it names nothing.
    return


def _unknown_api(number: int) -> Api:
    # From a recording of a later version, whose table has more rows.
    layer = wire.LAYER_DRIVER if number >= _FIRST_DRIVER_API else wire.LAYER_RUNTIME
    return Api(number, f"unknown_api_{number}", layer, wire.FAMILY_OTHER)
