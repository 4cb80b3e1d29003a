"""Turns events into activities, in order, once their processes have names."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CountersActivity,
    DeviceFaultActivity,
    DevicesActivity,
    DeviceTraceActivity,
    ExitActivity,
    FabricActivity,
    ForkActivity,
    MemoryActivity,
    PressureActivity,
    ProbesActivity,
    StallActivity,
    StatusActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.enrich.blocks import (
    BlocksRead,
    Failed,
    FailedRequests,
    split_reading,
)
from otel_gpu.enrich.communicators import CommunicatorRead, split_communicators
from otel_gpu.enrich.identity.identities import ProcessKey, Program, Who
from otel_gpu.enrich.identity.processes import MAX_DEAD, MAX_PROGRAMS, ProcessTable
from otel_gpu.enrich.identity.thread_roles import ThreadRoles
from otel_gpu.enrich.identity.unwatched_processes import who_of_facts
from otel_gpu.enrich.name_resolver import NameResolver
from otel_gpu.enrich.pending_events import PendingEvents, Waiting
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.time_accounts import TimeAccounts
from otel_gpu.faults import Faults
from otel_gpu.wire.blocks import BlockStack, Holders, Memory, MemoryMap, OutOfMemory
from otel_gpu.wire.communicators import Communicators
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import (
    Capture,
    Clock,
    CpuSample,
    CudaCall,
    Device,
    DeviceRead,
    Event,
    Exec,
    Exit,
    Fork,
    Gap,
    Library,
    MemoryRead,
    OpenCall,
    Probes,
    Stall,
    ThreadContext,
)
from otel_gpu.wire.marks import Range, Step
from otel_gpu.wire.readings import (
    Aggregates,
    Counters,
    Devices,
    FabricRead,
    Pressure,
    Status,
    Times,
)
from otel_gpu.wire.symbol_records import (
    CulpritSeen,
    FunctionSeen,
    ProcessSeen,
    ResourceSeen,
    Stack,
    UserStack,
)


class Enricher:
    """
    Gives events their names, from earlier events.

    It reads nothing but the events, so a replay returns what the live capture returned. No event
    can stop it, whatever its numbers are, and its memory is bounded. All activities of a program
    have the same process; only the child of a fork can get better names later.

    Args:
        max_programs: Programs kept at a time, ended ones included.
        max_dead: Ended programs kept for late records.
    """

    def __init__(self, *, max_programs: int = MAX_PROGRAMS, max_dead: int = MAX_DEAD) -> None:
        resolver = self._resolver = NameResolver()
        self._clock = resolver.clock
        self._failed_requests = FailedRequests()
        self._roles = ThreadRoles()
        self._times = TimeAccounts(resolver.waits, resolver.resources)
        self._processes = ProcessTable(
            self._clock, self._forget, max_programs=max_programs, max_dead=max_dead
        )
        self._settled = self._processes.settled
        self._pending = PendingEvents()
        # The program whose events are being released.
        self._released: ProcessKey | None = None
        # Activities of released events.
        self._ready: list[Activity] = []
        self._ktime_ns = 0
        self._faults: Faults | None = None
        self._handlers: dict[type, Callable[[Any], Activity | None]] = {
            Aggregates: self._enrich_aggregates,
            BlockStack: resolver.block_stacks.learn,
            Clock: lambda event: self._clock.add_sample(event.ktime_ns, event.unix_ns),
            Counters: self._enrich_counters,
            CpuSample: self._of_process(resolver.sample),
            CudaCall: self._enrich_call,
            Device: self._learn_device,
            Exec: self._enrich_exec,
            Exit: self._enrich_exit,
            Fork: self._enrich_fork,
            Gap: self._of_process(resolver.gap),
            Communicators: self._split_reading,
            Holders: self._split_reading,
            Memory: self._split_reading,
            MemoryMap: lambda event: self._fail_requests(self._failed_requests.take_mapped(event)),
            OutOfMemory: lambda event: self._fail_requests(self._failed_requests.add(event)),
            Pressure: resolver.dated(PressureActivity),
            Devices: resolver.dated(DevicesActivity),
            ThreadContext: resolver.context,
            DeviceFault: self._enrich_device_fault,
            FabricRead: resolver.dated(FabricActivity),
            Stack: resolver.waits.learn,
            UserStack: resolver.stacks.learn,
            FunctionSeen: resolver.learn_function,
            ResourceSeen: resolver.resource,
            CulpritSeen: lambda event: self._describe(
                event.ktime_ns, who_of_facts(event.pid, event.info)
            ),
            Times: self._enrich_times,
            # Mapped libraries matter to the side that places probes; they name nothing.
            Library: lambda _: None,
            DeviceRead: lambda event: DeviceTraceActivity(
                self._clock.to_unix_ns(event.ktime_ns), event.trace
            ),
            MemoryRead: lambda event: MemoryActivity(
                self._clock.to_unix_ns(event.ktime_ns), event.snapshot
            ),
            OpenCall: self._of_process(resolver.open_call),
            Probes: resolver.dated(ProbesActivity),
            ProcessSeen: self._learn_process,
            Stall: self._enrich_stall,
            Status: resolver.dated(StatusActivity),
            Step: self._of_process(resolver.step),
            Range: self._of_process(resolver.marked_range),
        }
        # Kinds that are made of events, and can have to wait.
        self._late_handlers = self._handlers | {
            BlocksRead: self._of_process(resolver.blocks),
            CommunicatorRead: self._of_process(resolver.communicator),
            Failed: self._of_process(resolver.out_of_memory),
        }

    def enrich(self, events: Iterable[Event], faults: Faults | None = None) -> Iterator[Activity]:
        """
        Yield the activities of events, in order; can be called again to continue.

        Events that only teach something (clocks, processes, devices, libraries) yield none. A
        capture waits for the clock samples that follow it, which date it. The first activities of a
        process wait for its name (``pending_events``), at most until the events end. An error in
        one event is counted in ``faults``; without ``faults`` it is raised.
        """
        waiting: Capture | None = None
        self._faults = faults
        handlers = self._handlers
        for event in events:
            kind = type(event)
            # A capture comes before the first clock sample, and is dated by it.
            if waiting is not None and kind is not Clock:
                yield self._resolver.capture(waiting)
                waiting = None
            if kind is Capture:
                yield from self._release_all()
            try:
                if type(event) is Capture:
                    self._learn_capture(event)
                    waiting = event
                    continue
                activity = handlers[kind](event)
            except Exception as error:  # noqa: BLE001 -- counted, or raised
                self._fail(error)
                activity = None
            if self._ready:
                yield from self._take_ready()
            if activity is not None:
                yield activity
        if waiting is not None:
            yield self._resolver.capture(waiting)
        yield from self._release_all()

    def _fail(self, error: Exception) -> None:
        if self._faults is None:
            raise error
        self._faults.add("enrich", error)

    def _learn_capture(self, event: Capture) -> None:
        self._processes.learn_host(event.info)
        self._resolver.begin(event)
        self._roles.clear()

    def _release_excess(self) -> None:
        while (program := self._pending.in_excess()) is not None:
            self._release(program)

    def _advance(self, ktime_ns: int) -> None:
        self._ktime_ns = max(self._ktime_ns, ktime_ns)
        self._fail_requests(self._failed_requests.take_overdue(ktime_ns))
        for program in self._pending:
            if self._pending.is_overdue(self._processes.find(*program, ""), ktime_ns):
                self._release(program)

    def _release(self, program: ProcessKey) -> None:
        # Settles the names of a program, and handles the events that waited for them.
        self._processes.settle(*program)
        pending = self._pending.take(program)
        if pending is None:
            return
        self._released = program
        for event in pending.events:
            try:
                activity = self._late_handlers[type(event)](event)
            except Exception as error:  # noqa: BLE001 -- counted, or raised
                self._fail(error)
                continue
            if activity is not None:
                self._ready.append(activity)
        self._released = None
        unix_ns = self._clock.to_unix_ns(self._ktime_ns)
        if pending.has_times and program in self._times:
            self._ready.append(TimesActivity(unix_ns, tuple(self._times_of(program))))
        if pending.series:
            process = self._processes.find(*program, "")
            series = (self._resolver.series(process, *one) for one in pending.series.items())
            self._ready.append(AggregatesActivity(unix_ns, tuple(series)))

    def _release_all(self) -> list[Activity]:
        self._fail_requests(self._failed_requests.take_all())
        for program in self._pending:
            self._release(program)
        return self._take_ready()

    def _take_ready(self) -> list[Activity]:
        ready, self._ready = self._ready, []
        return ready

    def _forget(self, program: ProcessKey) -> None:
        self._resolver.forget(program)
        self._times.forget(program)

    def _describe(self, ktime_ns: int, who: Who) -> WhoActivity:
        return WhoActivity(self._clock.to_unix_ns(ktime_ns), who)

    def _learn_process(self, event: ProcessSeen) -> None:
        self._ktime_ns = max(self._ktime_ns, event.ktime_ns)
        self._processes.learn_facts(
            event.pid, event.program_ktime_ns, ktime_ns=event.ktime_ns, body=event.facts
        )
        self._release((event.pid, event.program_ktime_ns))

    def _enrich_exec(self, event: Exec) -> ExitActivity:
        # The old program ends here. Its process does not, so the exit code is 0.
        self._release((event.pid, event.old_program_ktime_ns))
        old = self._processes.find(event.pid, event.old_program_ktime_ns, "")
        self._times.forget((event.pid, event.old_program_ktime_ns))
        self._roles.forget(event.pid, event.pid)
        self._processes.learn_exec(
            event.pid,
            event.program_ktime_ns,
            old_program_ktime_ns=event.old_program_ktime_ns,
            path=event.path,
            comm=event.comm,
        )
        return ExitActivity(old, self._clock.to_unix_ns(event.ktime_ns), 0, is_replaced=True)

    def _learn_device(self, event: Device) -> None:
        # Devices are forgotten with their program, so there must be one.
        self._processes.find(event.pid, event.program_ktime_ns, "")
        self._resolver.learn_device(event)

    def _find_process(self, event: Waiting) -> Program | None:
        # None: its process has no name yet, and the event waits.
        program = (event.pid, event.program_ktime_ns)
        process = self._processes.find(*program, event.comm)
        if program == self._released or not self._must_wait(program):
            return process
        # Each of these events begins with the time at which it was sent.
        self._pending.hold(program, event, max(self._ktime_ns, event[0]))
        self._release_excess()
        return None

    def _must_wait(self, program: ProcessKey) -> bool:
        # In a full table a program with pending events can be evicted; later events come after
        # those.
        return self._processes.may_improve(program) or program in self._pending

    def _of_process(
        self, make: Callable[[Any, Program], Activity]
    ) -> Callable[[object], Activity | None]:
        # Makes an activity of an event, once its process has a name.

        def enrich(event: Any) -> Activity | None:  # noqa: ANN401 -- of the kind that is made of
            process = self._find_process(event)
            return None if process is None else make(event, process)

        return enrich

    def _enrich_call(self, event: CudaCall) -> CallActivity | None:
        process = self._settled.get((event.pid, event.program_ktime_ns)) or self._find_process(
            event
        )
        return None if process is None else self._resolver.call(event, process)

    def _enrich_stall(self, event: Stall) -> StallActivity | None:
        process = self._find_process(event)
        if process is None:
            return None
        activity = self._resolver.stall(event, process)
        if activity.stack is not None:
            role = self._roles.learn(
                event.pid,
                event.tid,
                comm=event.comm,
                process_comm=process.comm,
                stack=activity.stack,
            )
            if role:
                who = Who(event.pid, event.tid, event.comm, function=role)
                self._ready.append(self._describe(event.end_ktime_ns, who))
        return activity

    def _enrich_device_fault(self, event: DeviceFault) -> DeviceFaultActivity | None:
        process = self._find_process(event) if event.program_ktime_ns else None
        if process is None and event.program_ktime_ns:
            return None
        return self._resolver.device_fault(event, process)

    def _enrich_fork(self, event: Fork) -> ForkActivity | None:
        # The child's own records need not wait for its parent's name.
        parent = self._processes.find(event.pid, event.program_ktime_ns, event.comm)
        child = self._processes.learn_fork(parent, event.child_pid, event.child_program_ktime_ns)
        return self._resolver.fork(event, parent, child) if self._find_process(event) else None

    def _enrich_counters(self, event: Counters) -> CountersActivity:
        self._advance(event.ktime_ns)
        return self._resolver.counters(event)

    def _enrich_times(self, event: Times) -> TimesActivity:
        self._advance(event.ktime_ns)
        self._processes.note_reading(event.ktime_ns)
        programs = self._times.take(event.entries)
        for program in programs:
            self._processes.find(*program, "")
        waiting = set(filter(self._must_wait, programs))
        for program in waiting:
            self._pending.hold_times(program, event.ktime_ns)
        times = [time for program in sorted(programs - waiting) for time in self._times_of(program)]
        return TimesActivity(self._clock.to_unix_ns(event.ktime_ns), tuple(times))

    def _times_of(self, program: ProcessKey) -> Iterator[ThreadTime]:
        return self._times.times(self._processes.find(*program, ""))

    def _split_reading(self, event: Memory | Holders | Communicators) -> None:
        self._advance(event.ktime_ns)
        parts: Iterator[BlocksRead | CommunicatorRead] = (
            split_communicators(event) if isinstance(event, Communicators) else split_reading(event)
        )
        for part in parts:
            if (activity := self._late_handlers[type(part)](part)) is not None:
                self._ready.append(activity)

    def _fail_requests(self, failed: Iterable[Failed]) -> None:
        for one in failed:
            if (activity := self._late_handlers[Failed](one)) is not None:
                self._ready.append(activity)

    def _enrich_exit(self, event: Exit) -> ExitActivity:
        self._ktime_ns = max(self._ktime_ns, event.ktime_ns)
        program = self._processes.learn_exit(
            event.pid, event.program_ktime_ns, ktime_ns=event.ktime_ns, comm=event.comm
        )
        self._release((event.pid, event.program_ktime_ns))
        self._times.forget((event.pid, event.program_ktime_ns))
        return ExitActivity(program, self._clock.to_unix_ns(event.ktime_ns), event.exit_code)

    def _enrich_aggregates(self, event: Aggregates) -> AggregatesActivity:
        self._advance(event.ktime_ns)
        self._processes.note_reading(event.ktime_ns)
        series = []
        for key, aggregate in event.series:
            program = (key.pid, key.program_ktime_ns)
            process = self._processes.find(*program, "")
            if self._must_wait(program):
                self._pending.hold_series(
                    program, key, aggregate=aggregate, ktime_ns=event.ktime_ns
                )
                self._release_excess()
            else:
                series.append(self._resolver.series(process, key, aggregate))
        return AggregatesActivity(self._clock.to_unix_ns(event.ktime_ns), tuple(series))
