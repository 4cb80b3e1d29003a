"""Turns events into activities: Unix time, names, devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.decode.blocks import BlockStack, Holders, Memory, MemoryMap, OutOfMemory
from otel_gpu.decode.events import (
    Aggregate,
    Aggregates,
    Capture,
    Clock,
    Counters,
    CpuSample,
    CudaCall,
    CulpritSeen,
    Device,
    DeviceRead,
    Devices,
    Event,
    Exec,
    Exit,
    Fork,
    FunctionSeen,
    Gap,
    Library,
    MemoryRead,
    OpenCall,
    Pressure,
    Probes,
    ProcessSeen,
    ResourceSeen,
    SeriesKey,
    Stack,
    Stall,
    Status,
    Times,
    UserStack,
)
from otel_gpu.enrich import clock as clocks
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CallStack,
    CaptureActivity,
    CountersActivity,
    DevicesActivity,
    DeviceTraceActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    ImageKey,
    MemoryActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    PressureActivity,
    ProbesActivity,
    ProcessImage,
    ResourceActivity,
    SampleActivity,
    Series,
    StallActivity,
    StatusActivity,
    ThreadTime,
    TimesActivity,
    Who,
    WhoActivity,
)
from otel_gpu.enrich.arrivals import Arrivals, Waiting
from otel_gpu.enrich.blocks import (
    BlocksRead,
    BlockStacks,
    Failed,
    FailedRequests,
    blocks_of,
    split_reading,
)
from otel_gpu.enrich.devices import DeviceTable
from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.enrich.kernel_waits import KernelWaits
from otel_gpu.enrich.processes import MAX_DEAD, MAX_IMAGES, ProcessTable
from otel_gpu.enrich.resource_table import ResourceTable, reason_for
from otel_gpu.enrich.stack_table import StackTable
from otel_gpu.enrich.strangers import who_of_facts
from otel_gpu.enrich.thread_roles import ThreadRoles
from otel_gpu.enrich.time_accounts import TimeAccounts
from otel_gpu.enrich.user_reasons import refine_reason
from otel_gpu.faults import Faults
from otel_gpu.probe_table import API_BY_NUMBER, Api, unknown_api
from otel_gpu.recent import Recent

MAX_KERNELS = 1 << 15
"""Kernels whose names are remembered."""

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
        self._waits = KernelWaits()
        self._stacks = StackTable()
        self._block_stacks = BlockStacks(self._stacks)
        self._failed_requests = FailedRequests()
        self._resources = ResourceTable()
        self._roles = ThreadRoles()
        self._kernels: Recent[tuple[ImageKey, int], str] = Recent(MAX_KERNELS)
        self._times = TimeAccounts(self._waits, self._resources)
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
            BlockStack: self._block_stacks.learn,
            Clock: lambda event: self._clock.add_sample(event.ktime_ns, event.unix_ns),
            Counters: self._enrich_counters,
            CpuSample: self._enrich_sample,
            CudaCall: self._enrich_call,
            Device: self._learn_device,
            Exec: self._enrich_exec,
            Exit: self._enrich_exit,
            Fork: self._enrich_fork,
            Gap: self._enrich_gap,
            Holders: self._split_blocks,
            Memory: self._split_blocks,
            MemoryMap: lambda event: self._fail_requests(self._failed_requests.take_mapped(event)),
            OutOfMemory: lambda event: self._fail_requests(self._failed_requests.add(event)),
            Pressure: self._dated(PressureActivity),
            Devices: self._dated(DevicesActivity),
            Stack: self._waits.learn,
            UserStack: self._stacks.learn,
            FunctionSeen: self._learn_function,
            ResourceSeen: self._learn_resource,
            CulpritSeen: lambda event: self._introduce(
                event.ktime_ns, who_of_facts(event.pid, event.info)
            ),
            Times: self._enrich_times,
            # That one was mapped is for the side that places probes; it names nothing.
            Library: lambda _: None,
            DeviceRead: lambda event: DeviceTraceActivity(
                self._clock.to_unix_ns(event.ktime_ns), event.trace
            ),
            MemoryRead: lambda event: MemoryActivity(
                self._clock.to_unix_ns(event.ktime_ns), event.snapshot
            ),
            OpenCall: self._enrich_open_call,
            Probes: self._dated(ProbesActivity),
            ProcessSeen: self._learn_process,
            Stall: self._enrich_stall,
            Status: self._dated(StatusActivity),
        }
        # What is made of events, and may have to wait.
        self._ways_on = self._ways | {
            BlocksRead: self._enrich_blocks,
            Failed: self._enrich_failed,
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
        self._waits.begin(str(host.get("arch")) if isinstance(host, Mapping) else "")
        self._stacks.clear()
        self._block_stacks.clear()
        self._resources.clear()
        self._kernels.clear()
        self._roles.clear()

    def _make_room(self) -> None:
        while (image := self._arrivals.in_excess()) is not None:
            self._release(image)

    def _advance(self, ktime_ns: int) -> None:
        self._ktime_ns = max(self._ktime_ns, ktime_ns)
        self._fail_requests(self._failed_requests.take_overdue(ktime_ns))
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
                activity = self._ways_on[type(event)](event)
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
        self._fail_requests(self._failed_requests.take_all())
        for image in self._arrivals:
            self._release(image)
        return self._take_ready()

    def _take_ready(self) -> list[Activity]:
        ready, self._ready = self._ready, []
        return ready

    def _forget(self, image: ImageKey) -> None:
        self._devices.forget(image)
        self._times.forget(image)

    def _enrich_call(self, event: CudaCall) -> CallActivity | None:
        image = (event.pid, event.image_ktime_ns)
        process = self._settled.get(image) or self._find_process(event)
        if process is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        values = (
            process,
            event,
            API_BY_NUMBER.get(event.api) or unknown_api(event.api),
            start_unix_ns,
            end_unix_ns,
            None if event.device < 0 else self._devices.find(image, event.device),
            self._stacks.find(event.user_stack) if event.user_stack else None,
            (self._kernels.use((image, event.function)) or "") if event.function else "",
            *self._ids.of_call(event),
        )
        # As CallActivity(…), which takes three times as long.
        return _new_tuple(CallActivity, values)

    def _learn_function(self, event: FunctionSeen) -> None:
        self._kernels[(event.pid, event.image_ktime_ns), event.function] = event.name

    def _learn_resource(self, event: ResourceSeen) -> ResourceActivity | None:
        resource = self._resources.learn(event)
        retransmits = event.info.get("retransmits", 0)
        if not retransmits:
            return None
        return ResourceActivity(self._clock.to_unix_ns(event.ktime_ns), resource, retransmits)

    def _introduce(self, ktime_ns: int, who: Who) -> WhoActivity:
        return WhoActivity(self._clock.to_unix_ns(ktime_ns), who)

    def _learn_role(self, event: Stall, process: ProcessImage, stack: CallStack | None) -> None:
        if stack is None:
            return
        role = self._roles.learn(event.pid, event.tid, event.comm, process.comm, stack)
        if role:
            who = Who(event.pid, event.tid, event.comm, function=role)
            self._ready.append(self._introduce(event.end_ktime_ns, who))

    def _learn_process(self, event: ProcessSeen) -> None:
        self._ktime_ns = max(self._ktime_ns, event.ktime_ns)
        self._processes.learn_facts(event.pid, event.image_ktime_ns, event.ktime_ns, event.facts)
        self._release((event.pid, event.image_ktime_ns))

    def _enrich_exec(self, event: Exec) -> ExitActivity:
        # The old image ends here; its process does not, so there is no exit code to tell.
        self._release((event.pid, event.old_image_ktime_ns))
        old = self._processes.find(event.pid, event.old_image_ktime_ns, "")
        self._times.forget((event.pid, event.old_image_ktime_ns))
        self._roles.forget(event.pid, event.pid)
        self._processes.learn_exec(
            event.pid, event.image_ktime_ns, event.old_image_ktime_ns, event.path, event.comm
        )
        return ExitActivity(old, self._clock.to_unix_ns(event.ktime_ns), 0, is_replaced=True)

    def _dated(self, kind: Callable[[int, Any], Activity]) -> Callable[[Any], Activity]:
        return lambda event: kind(self._clock.to_unix_ns(event.ktime_ns), event.info)

    def _learn_device(self, event: Device) -> None:
        # Devices are forgotten with their image, so there must be one.
        self._processes.find(event.pid, event.image_ktime_ns, "")
        self._devices.learn((event.pid, event.image_ktime_ns), event.device, event.uuid, event.name)

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
        stack, resource = self._stacks.find(event.user_stack), self._resources.find(event.resource)
        if event.runnable_ktime_ns > event.start_ktime_ns:
            reason = refine_reason(
                self._waits.reason(event.kernel_stack, event.system_call, event.flags),
                self._stacks.rules_of(event.user_stack),
            )
            reason = reason_for(reason, resource)
        self._learn_role(event, process, stack)
        return StallActivity(
            process,
            event,
            start_unix_ns,
            runnable_unix_ns,
            end_unix_ns,
            reason,
            self._waits.functions(event.kernel_stack),
            stack,
            *self._ids.of_stall(event),
            resource,
        )

    def _find_process(self, event: Waiting) -> ProcessImage | None:
        """Return the process of an event; None: it has no name yet, and the event waits."""
        image = (event.pid, event.image_ktime_ns)
        process = self._processes.find(*image, event.comm)
        if image == self._released or not self._must_wait(image):
            return process
        # Each of these events begins with the time at which it was sent.
        self._arrivals.hold(image, event, max(self._ktime_ns, event[0]))
        self._make_room()
        return None

    def _must_wait(self, image: ImageKey) -> bool:
        # In a full table an image may be gone of which something waits: what follows comes after it.
        return self._processes.may_improve(image) or image in self._arrivals

    def _enrich_gap(self, event: Gap) -> GapActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        end_unix_ns, start_unix_ns = self._clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return GapActivity(
            process,
            event,
            API_BY_NUMBER.get(event.previous_api) or unknown_api(event.previous_api),
            API_BY_NUMBER.get(event.next_api) or unknown_api(event.next_api),
            start_unix_ns,
            end_unix_ns,
            self._devices.find((event.pid, event.image_ktime_ns), event.device),
            *self._ids.of_gap(event),
        )

    def _enrich_sample(self, event: CpuSample) -> SampleActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        return SampleActivity(
            process,
            event,
            self._clock.to_unix_ns(event.ktime_ns),
            self._waits.functions(event.kernel_stack),
            self._stacks.find(event.user_stack),
        )

    def _enrich_times(self, event: Times) -> TimesActivity:
        self._advance(event.ktime_ns)
        self._processes.note_reading(event.ktime_ns)
        images = self._times.take(event.entries)
        for image in images:
            self._processes.find(*image, "")
        waiting = set(filter(self._must_wait, images))
        for image in waiting:
            self._arrivals.hold_times(image, event.ktime_ns)
        times = [time for image in sorted(images - waiting) for time in self._sum_times(image)]
        return TimesActivity(self._clock.to_unix_ns(event.ktime_ns), tuple(times))

    def _sum_times(self, image: ImageKey) -> Iterator[ThreadTime]:
        process = self._processes.find(*image, "")
        for (state, context, reason, wait), sums in self._times.sums(image):
            yield ThreadTime(process, state, context, reason, *sums, wait)

    def _split_blocks(self, event: Memory | Holders) -> None:
        self._advance(event.ktime_ns)
        for part in split_reading(event):
            if (activity := self._enrich_blocks(part)) is not None:
                self._ready.append(activity)

    def _enrich_blocks(self, event: BlocksRead) -> BlocksActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        image = event.pid, event.image_ktime_ns
        return BlocksActivity(
            self._clock.to_unix_ns(event.ktime_ns),
            process,
            event.device,
            self._devices.find(image, event.device),
            event.totals,
            tuple(
                (key, holder, self._block_stacks.find(image, key)) for key, holder in event.holders
            ),
        )

    def _fail_requests(self, failed: Iterable[Failed]) -> None:
        for one in failed:
            if (activity := self._enrich_failed(one)) is not None:
                self._ready.append(activity)

    def _enrich_failed(self, failed: Failed) -> OutOfMemoryActivity | None:
        process = self._find_process(failed)
        if process is None:
            return None
        event, image = failed.event, (failed.pid, failed.image_ktime_ns)
        keys = {block[2] for block in blocks_of(failed.map)}
        found = ((key, self._block_stacks.find(image, key)) for key in sorted(keys))
        return OutOfMemoryActivity(
            self._clock.to_unix_ns(event.ktime_ns),
            process,
            event,
            self._devices.find(image, event.device),
            (API_BY_NUMBER.get(event.api) or unknown_api(event.api)) if event.api else None,
            self._stacks.find(event.user_stack),
            failed.map,
            {key: stack for key, stack in found if stack is not None},
            *self._ids.of_out_of_memory(event),
        )

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
            API_BY_NUMBER.get(event.api) or unknown_api(event.api),
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
        self._times.forget((event.pid, event.image_ktime_ns))
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
        self._processes.note_reading(event.ktime_ns)
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
            api = API_BY_NUMBER.get(key.api) or unknown_api(key.api)
        image = (key.pid, key.image_ktime_ns)
        process = self._processes.find(*image, "")
        return Series(process, key, api, self._devices.find(image, key.device), aggregate)
