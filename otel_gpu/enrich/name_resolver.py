"""Resolves the numbers in events to names from earlier events, and makes activities."""

from collections.abc import Callable
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CommunicatorActivity,
    ContextActivity,
    CountersActivity,
    DeviceFaultActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    ResourceActivity,
    SampleActivity,
    Series,
    StallActivity,
)
from otel_gpu.enrich.blocks import BlocksRead, BlockStacks, Failed
from otel_gpu.enrich.clock import UnixClock
from otel_gpu.enrich.communicators import CommunicatorRead
from otel_gpu.enrich.identity.devices import DeviceTable
from otel_gpu.enrich.identity.identities import ProcessKey, Program
from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.enrich.stack_table import StackTable
from otel_gpu.enrich.waits.kernel_waits import KernelWaits
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.enrich.waits.resource_table import ResourceTable, reason_for
from otel_gpu.enrich.waits.user_reasons import refine_reason
from otel_gpu.limits.recent import GroupedRecent
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import (
    Capture,
    CpuSample,
    CudaCall,
    Device,
    Fork,
    Gap,
    OpenCall,
    Stall,
    ThreadContext,
)
from otel_gpu.wire.marks import Range, Step
from otel_gpu.wire.probe_table import API_BY_NUMBER, Api, unknown_api
from otel_gpu.wire.readings import Aggregate, Counters, SeriesKey
from otel_gpu.wire.symbol_records import FunctionSeen, ResourceSeen

MAX_KERNELS = 1 << 15
"""Kernels whose names are kept."""

_new_tuple = tuple.__new__


class NameResolver:
    """
    Keeps devices, stacks, resources and kernels, and makes activities of events.

    Attributes:
        clock: Dates everything.
        waits: Reasons of waits, by kernel stacks.
        stacks: Stacks of programs.
        block_stacks: Where blocks of device memory were allocated.
        resources: What system calls were about.
        devices: The devices of every program.
    """

    def __init__(self) -> None:
        self.clock = UnixClock()
        self.waits = KernelWaits()
        self.stacks = StackTable()
        self.block_stacks = BlockStacks(self.stacks)
        self.resources = ResourceTable()
        self.devices = DeviceTable()
        self._ids = SpanIds(NO_SEED)
        self._kernels: GroupedRecent[ProcessKey, int, str] = GroupedRecent(
            MAX_KERNELS, cache="kernel_names"
        )

    def begin(self, event: Capture) -> None:
        """Forget an earlier capture."""
        host = event.info.get("host")
        self.waits.begin(str(host.get("arch")) if host is not None else "")
        self.stacks.clear()
        self.block_stacks.clear()
        self.resources.clear()
        self._kernels.clear()

    def forget(self, program: ProcessKey) -> None:
        """Forget a program that ended."""
        self.devices.forget(program)
        self.block_stacks.forget(program)
        self._kernels.forget(program)

    def learn_function(self, event: FunctionSeen) -> None:
        """Keep the name of a kernel."""
        self._kernels[(event.pid, event.program_ktime_ns), event.function] = event.name

    def learn_device(self, event: Device) -> None:
        """Keep what a process learned of one of its devices."""
        program = (event.pid, event.program_ktime_ns)
        self.devices.learn(program, index=event.device, uuid=event.uuid, name=event.name)

    def dated(self, kind: Callable[[int, Any], Activity]) -> Callable[[Any], Activity]:
        """Return a maker of activities that have only a time and the event's body."""
        return lambda event: kind(self.clock.to_unix_ns(event.ktime_ns), event.info)

    def capture(self, event: Capture) -> CaptureActivity:
        """Return how a capture was made; later ids are its own."""
        unix_ns = self.clock.to_unix_ns(event.ktime_ns)
        seed = capture_seed(unix_ns, event.info)
        self._ids = SpanIds(seed)
        return CaptureActivity(unix_ns, event.info, seed)

    def context(self, event: ThreadContext) -> ContextActivity:
        """
        Return the application span of a thread, and make it the parent of what the thread does
        next.
        """
        self._ids.learn(event)
        return ContextActivity(self.clock.to_unix_ns(event.ktime_ns), event)

    def resource(self, event: ResourceSeen) -> ResourceActivity | None:
        """Keep a resource; return it if segments were retransmitted to it."""
        resource = self.resources.learn(event)
        retransmits = event.info.get("retransmits", 0)
        if not retransmits:
            return None
        return ResourceActivity(self.clock.to_unix_ns(event.ktime_ns), resource, retransmits)

    def counters(self, event: Counters) -> CountersActivity:
        """Return the counters by name."""
        return CountersActivity(self.clock.to_unix_ns(event.ktime_ns), event.by_name())

    def series(self, process: Program, key: SeriesKey, aggregate: Aggregate) -> Series:
        """Return a series with the names of what it counts."""
        # In other metrics this field is a switch type or unused.
        api = _api(key.api) if key.metric == wire.METRIC_CALL_DURATION else None
        device = self.devices.find((key.pid, key.program_ktime_ns), key.device)
        return Series(process, key, api, device, aggregate)

    def call(self, event: CudaCall, process: Program) -> CallActivity:
        """Return a call with its names."""
        program = (event.pid, event.program_ktime_ns)
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        values = (
            process,
            event,
            API_BY_NUMBER.get(event.api) or unknown_api(event.api),
            start_unix_ns,
            end_unix_ns,
            None if event.device < 0 else self.devices.find(program, event.device),
            self.stacks.find(event.user_stack) if event.user_stack else None,
            (self._kernels.use((program, event.function)) or "") if event.function else "",
            *self._ids.of_call(event),
        )
        # As CallActivity(…), which takes three times as long.
        return _new_tuple(CallActivity, values)

    def open_call(self, event: OpenCall, process: Program) -> OpenCallActivity:
        """Return a call that has not returned, with its names."""
        seen_unix_ns, start_unix_ns = self.clock.date(event.ktime_ns, event.start_ktime_ns)
        return OpenCallActivity(
            process,
            event,
            _api(event.api),
            start_unix_ns,
            seen_unix_ns,
            self.devices.find((event.pid, event.program_ktime_ns), event.device),
            self.stacks.find(event.user_stack),
            *self._ids.of_open_call(event),
        )

    def gap(self, event: Gap, process: Program) -> GapActivity:
        """Return a gap with its names."""
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return GapActivity(
            process,
            event,
            _api(event.previous_api),
            _api(event.next_api),
            start_unix_ns,
            end_unix_ns,
            self.devices.find((event.pid, event.program_ktime_ns), event.device),
            *self._ids.of_gap(event),
        )

    def stall(self, event: Stall, process: Program) -> StallActivity:
        """Return a stall, with the reason of its wait."""
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        _, runnable_unix_ns = self.clock.date(event.end_ktime_ns, event.runnable_ktime_ns)
        reason, resource = WaitReason.NONE, self.resources.find(event.resource)
        if event.runnable_ktime_ns > event.start_ktime_ns:
            reason = refine_reason(
                self.waits.reason(event.kernel_stack, event.system_call, event.flags),
                self.stacks.rules_of(event.user_stack),
            )
            reason = reason_for(reason, resource)
        return StallActivity(
            process,
            event,
            start_unix_ns,
            runnable_unix_ns,
            end_unix_ns,
            reason,
            self.waits.functions(event.kernel_stack),
            self.stacks.find(event.user_stack),
            *self._ids.of_stall(event),
            resource,
        )

    def sample(self, event: CpuSample, process: Program) -> SampleActivity:
        """Return where a thread on a CPU was."""
        return SampleActivity(
            process,
            event,
            self.clock.to_unix_ns(event.ktime_ns),
            self.waits.functions(event.kernel_stack),
            self.stacks.find(event.user_stack),
        )

    def step(self, event: Step, process: Program) -> StepActivity:
        """Return a step of a thread."""
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return StepActivity(process, event, start_unix_ns, end_unix_ns, *self._ids.of_step(event))

    def marked_range(self, event: Range, process: Program) -> RangeActivity:
        """Return a range that a program marked."""
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        ids = self._ids.of_range(event)
        return RangeActivity(process, event, start_unix_ns, end_unix_ns, *ids)

    def fork(self, event: Fork, parent: Program, child: Program) -> ForkActivity:
        """Return a fork with both processes."""
        end_unix_ns, start_unix_ns = self.clock.date(event.end_ktime_ns, event.start_ktime_ns)
        return ForkActivity(
            parent, event, child, start_unix_ns, end_unix_ns, *self._ids.of_fork(event)
        )

    def device_fault(self, event: DeviceFault, process: Program | None) -> DeviceFaultActivity:
        """Return an error of a device."""
        unix_ns = self.clock.to_unix_ns(event.ktime_ns)
        return DeviceFaultActivity(unix_ns, process, event, *self._ids.of_device_fault(event))

    def blocks(self, event: BlocksRead, process: Program) -> BlocksActivity:
        """Return what an allocator holds, and where that was allocated."""
        program = event.pid, event.program_ktime_ns
        return BlocksActivity(
            unix_ns=self.clock.to_unix_ns(event.ktime_ns),
            process=process,
            number=event.device,
            device=self.devices.find(program, event.device),
            totals=event.totals,
            holders=tuple(
                (key, holder, self.block_stacks.find(program, key)) for key, holder in event.holders
            ),
        )

    def communicator(self, event: CommunicatorRead, process: Program) -> CommunicatorActivity:
        """Return the progress of a rank."""
        communicator, date = event.communicator, self.clock.to_unix_ns
        completed_ktime_ns = communicator.completed_ktime_ns
        return CommunicatorActivity(
            unix_ns=date(event.ktime_ns),
            process=process,
            handle=event.handle,
            device=self.devices.find((event.pid, event.program_ktime_ns), communicator.device),
            communicator=communicator,
            recent_unix_ns=tuple(date(one.called_ktime_ns) for one in communicator.recent),
            completed_unix_ns=date(completed_ktime_ns) if completed_ktime_ns else 0,
            stacks=tuple(self.stacks.find(one.stack) for one in communicator.recent),
        )

    def out_of_memory(self, failed: Failed, process: Program) -> OutOfMemoryActivity:
        """Return a failed request, and the layout of memory at that time."""
        event, program = failed.event, (failed.pid, failed.program_ktime_ns)
        keys = {block[2] for block in failed.map["blocks"]} if failed.map else set()
        found = ((key, self.block_stacks.find(program, key)) for key in sorted(keys))
        return OutOfMemoryActivity(
            self.clock.to_unix_ns(event.ktime_ns),
            process,
            event,
            self.devices.find(program, event.device),
            _api(event.api) if event.api else None,
            self.stacks.find(event.user_stack),
            failed.map,
            {key: stack for key, stack in found if stack is not None},
            *self._ids.of_out_of_memory(event),
        )


def _api(number: int) -> Api:
    return API_BY_NUMBER.get(number) or unknown_api(number)
