"""
The metric store: the latest values of everything that is counted, until they are exported.

The kernel side delivers cumulative values, so the store replaces and never adds. Its size depends
on the number of series, not of calls, and is bounded while nothing can be exported; evictions are
counted.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, get_args

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CommunicatorActivity,
    CountersActivity,
    ExitActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    TimesActivity,
)
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.explain.accounting.verdicts import state_of
from otel_gpu.export.metrics.collectives import measure_collectives
from otel_gpu.export.metrics.exemplars import ExemplarReservoir, IsSampled
from otel_gpu.export.metrics.host_figures import HostFigures, OfHost
from otel_gpu.export.metrics.measures import measure, measure_open_call, measure_thread_times
from otel_gpu.export.metrics.observed_program import ObservedProgram
from otel_gpu.export.metrics.points import Measurement, read_layouts
from otel_gpu.export.metrics.self_telemetry import SeriesDrop
from otel_gpu.export.metrics.snapshots import Agent, Snapshot
from otel_gpu.export.resources import ProcessResources, agent_resource, capture_version
from otel_gpu.export.semconv import Instrument
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.differences import without_waits
from otel_gpu.state.time_accounting import Accounts

# The key of the agent's own Resource; no record has such a pid.
AGENT: ProcessKey = (-1, 0)

# The last series of a program come with the first reading after its end. Without changes there is
# no reading, but counters still come.
_LAST_SERIES_SNAPSHOTS = 3
_MAX_RELEASED = 4096
_CALLS_AT_A_TIME = 128


class MetricStore:
    """Stores activities, and returns snapshots on other threads; bounded by ``max_series``."""

    def __init__(
        self, environ: Mapping[str, str], *, max_series: int, is_sampled: IsSampled | None = None
    ) -> None:
        self._environ = environ
        self._resources = ProcessResources(environ)
        self._is_sampled = is_sampled
        self._lock = threading.Lock()
        # Programs without a seen end are bounded too: the kernel side holds max_series.
        self._programs = Accounts(
            self._open_program, most=2 * max_series, most_ended=max_series, give_up=self._evict
        )
        self._program_of_pid: dict[int, ProcessKey] = {}
        self._released: Fifo[ProcessKey, None] = Fifo(_MAX_RELEASED, cache="known_processes")
        self._ending: deque[ProcessKey] = deque()
        self._final_series = 0
        self._host = HostFigures()
        self._dropped_series: Counter[SeriesDrop] = Counter()
        self._unix_ns = 0
        # Of the aggregates; one reading can be several activities of the same time.
        self._readings = 0
        self._reading_unix_ns = -1
        self._complete_readings = 0
        # Of the counters, which come even without changes.
        self._snapshots = 0
        self._sinks = 0
        self._exemplars_seen = 0
        # Every span makes one; they wait for the next activity of another kind.
        self._calls: deque[CallActivity] = deque()
        self._observers: dict[type, Callable[[Any], None]] = {
            AggregatesActivity: self._observe_aggregates,
            BlocksActivity: self._observe_blocks,
            CommunicatorActivity: self._observe_communicator,
            OutOfMemoryActivity: self._observe_failure,
            StepActivity: self._observe_step,
            TimesActivity: self._observe_times,
            OpenCallActivity: self._observe_open_call,
            ExitActivity: self._observe_exit,
            **dict.fromkeys(get_args(OfHost), self._observe_host),
            CountersActivity: self._observe_counters,
            CaptureActivity: self._observe_capture,
        }
        self.agent: Agent | None = None

    def add_sink(self) -> int:
        """Return the index of a new sink that needs every final series."""
        self._sinks += 1
        return self._sinks - 1

    def count_final_series(self) -> int:
        """Return how many final series wait for a sink."""
        with self._lock:
            while self._ending:
                program = self._programs.get(self._ending[0])
                if program is not None:
                    if not self._is_final(program):
                        break
                    program.final_series = len(program.series)
                    self._final_series += program.final_series
                self._ending.popleft()
            return self._final_series

    def observe(self, activity: Activity) -> None:
        """Store one activity; those without metrics are ignored."""
        if type(activity) is CallActivity:
            self._calls.append(activity)
            # Calls are only exemplars, so one lock covers many of them.
            if len(self._calls) >= _CALLS_AT_A_TIME:
                with self._lock:
                    self._observe_calls()
        elif observe := self._observers.get(type(activity)):
            with self._lock:
                self._observe_calls()
                observe(activity)

    def snapshots(self, sink: int, exemplars_after: int) -> Iterator[Snapshot]:
        """
        Yield a snapshot of each Resource, the agent first; exemplars are those after
        ``exemplars_after``.

        Users with few programs come first: if time is short, as at the end, only a user that has
        started thousands of programs is late. Each is read when its turn comes, so that not all of
        them are in memory twice.
        """
        with self._lock:
            self._observe_calls()
            if self.agent is None:
                return
            programs = [
                program for program in self._programs.values() if sink not in program.finished
            ]
            counts = Counter(program.process.user for program in programs)
            programs.sort(key=lambda program: counts[program.process.user])
            agent, exemplars = self.agent, (exemplars_after, self._exemplars_seen)
            of_agent = self._agent_snapshot(agent)
        yield of_agent
        for program in programs:
            with self._lock:
                if self._programs.get(key_of(program.process)) is not program:
                    continue  # evicted since
                snapshot = self._program_snapshot(agent, program, exemplars)
                series = [*program.series.values()]
            # Measuring takes longer than copying references, so it happens outside the lock.
            for one in series:
                device = snapshot.devices.get(one.key.device)
                snapshot.measurements.extend(measure(one, device))
            yield snapshot

    def release(self, key: ProcessKey, sink: int) -> None:
        """
        Record that a sink has a program's final series; evict the program after the last sink.
        """
        with self._lock:
            if program := self._programs.get(key):
                program.finished.add(sink)
                if len(program.finished) == self._sinks:
                    self._programs.forget(key)
                    self._release(program)

    def holds(self, key: ProcessKey) -> bool:
        """Return whether a program, or ``AGENT``, is in the store."""
        return key == AGENT or self._programs.get(key) is not None

    def _program(self, process: Program) -> ObservedProgram | None:
        # As key_of(…), inlined: every span needs it.
        key = (process.pid, process.program_ktime_ns)
        program = self._programs.get(key)
        if program is None and key not in self._released:
            program = self._programs.find(process)
            self._order_programs_of_pid(key, program)
        return program

    def _open_program(self, process: Program) -> ObservedProgram:
        exemplars = ExemplarReservoir(self._is_sampled)
        return ObservedProgram(process, resource=self._resources.of(process), exemplars=exemplars)

    def _order_programs_of_pid(self, key: ProcessKey, program: ObservedProgram) -> None:
        # A program ends without an exit when its process executes another program.
        newest = self._program_of_pid.get(key[0], key)
        if newest > key:
            self._end(program, self._unix_ns)
            return
        self._program_of_pid[key[0]] = key
        replaced = self._programs.get(newest) if newest != key else None
        if replaced is not None and replaced.end_unix_ns is None:
            self._end(replaced, program.process.start_unix_ns)

    def _end(self, program: ObservedProgram, unix_ns: int) -> None:
        key = key_of(program.process)
        if program.end_unix_ns is None:
            self._ending.append(key)
        program.end_unix_ns = unix_ns
        program.end_readings = self._readings
        program.end_snapshots = self._snapshots
        program.open_calls.clear()
        self._programs.end(key)

    def _advance(self, unix_ns: int) -> None:
        # The latest time, not the greatest: the host's clock can be set back.
        if unix_ns != self._unix_ns:
            self._complete_readings = self._readings
            self._unix_ns = unix_ns

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        self._advance(activity.unix_ns)
        if activity.unix_ns != self._reading_unix_ns:
            self._reading_unix_ns = activity.unix_ns
            self._readings += 1
        for series in activity.series:
            program = self._program(series.process)
            if program is None:
                self._dropped_series[SeriesDrop.LATE] += 1
                continue
            self._touch(program, activity.unix_ns)
            if not self._programs.put(program, series):
                self._dropped_series[SeriesDrop.STALE] += 1
            if series.device is not None:
                program.devices[series.key.device] = series.device

    def _observe_blocks(self, activity: BlocksActivity) -> None:
        self._advance(activity.unix_ns)
        program = self._program(activity.process) if activity.totals is not None else None
        if program is not None:
            self._touch(program, activity.unix_ns)
            program.update_memory(activity.number, activity.device, activity.totals)

    def _observe_communicator(self, activity: CommunicatorActivity) -> None:
        self._advance(activity.unix_ns)
        if (program := self._program(activity.process)) is not None:
            self._touch(program, activity.unix_ns)
            if not program.update_communicator(activity):
                self._dropped_series[SeriesDrop.COMMUNICATORS] += 1

    def _observe_failure(self, activity: OutOfMemoryActivity) -> None:
        if (program := self._program(activity.process)) is not None:
            program.update_memory(activity.event.device, activity.device, None)

    def _observe_step(self, activity: StepActivity) -> None:
        program = self._program(activity.process)
        if program is not None and self.agent is not None:
            program.steps.add(activity, self.agent.layouts["s"])

    def _observe_times(self, activity: TimesActivity) -> None:
        self._advance(activity.unix_ns)
        for process, times in groupby(activity.times, attrgetter("process")):
            launching = [time for time in times if state_of(*time.kind[:3]) and time.time_ns]
            if launching and (program := self._program(process)):
                program.stalls.take(launching)
        for time in without_waits(activity.times):
            state = state_of(time.state, time.context, time.reason)
            program = self._program(time.process) if state and time.time_ns else None
            if program is not None:
                self._touch(program, activity.unix_ns)
                # The reason of a block can become known later, and counters only rise.
                if program.times.get(time.kind, time).time_ns <= time.time_ns:
                    self._programs.put_time(program, time)

    def _touch(self, program: ObservedProgram, unix_ns: int) -> None:
        if program.updated_unix_ns != unix_ns:
            program.updated_unix_ns = unix_ns
            self._programs.find(program.process)

    def observe_run(
        self, process: Program, measurements: list[Measurement], end_unix_ns: int
    ) -> None:
        """Store all measurements of a process that has ended."""
        with self._lock:
            self._advance(end_unix_ns)
            if measurements and (program := self._program(process)) is not None:
                self._touch(program, end_unix_ns)
                program.of_run = measurements
                self._end(program, end_unix_ns)

    def count(self, instrument: Instrument, attribute: str, value: str, count: int = 1) -> None:
        """Count chains or incidents, by the value of their instrument's attribute."""
        with self._lock:
            self._host.agent.explained[instrument, attribute, value] += count

    def set_dropped(self, counts: Mapping[str, int]) -> None:
        """Set how many spans were dropped, by reason; newer than the agent's last status."""
        with self._lock:
            agent = self._host.agent
            agent.status = {**agent.status, "dropped": dict(counts)}

    def _observe_calls(self) -> None:
        # One thread observes while others collect, so more can arrive at the same time.
        while self._calls:
            call = self._calls.popleft()
            if (program := self._program(call.process)) is not None:
                if program.open_calls:
                    program.open_calls.pop((call.event.tid, call.event.start_ktime_ns), None)
                self._exemplars_seen += 1
                program.exemplars.offer(call, self._exemplars_seen)
                if call.device is not None:
                    program.devices[call.event.device] = call.device

    def _observe_open_call(self, call: OpenCallActivity) -> None:
        program = self._program(call.process)
        if program is not None and program.end_unix_ns is None:
            program.add_open_call(call)

    def _observe_host(self, activity: OfHost) -> None:
        self._advance(activity.unix_ns)
        self._host.observe(activity)

    def _observe_counters(self, activity: CountersActivity) -> None:
        self._observe_host(activity)
        self._snapshots += 1
        for program in [program for _, program in self._programs.items() if program.open_calls]:
            program.forget_returned_calls(self._unix_ns)

    def _observe_capture(self, activity: CaptureActivity) -> None:
        if self.agent is None:
            self._unix_ns = activity.unix_ns
            resource = agent_resource(activity, self._environ)
            version, layouts = capture_version(activity), read_layouts(activity)
            self.agent = Agent(resource, version, layouts=layouts, start_unix_ns=activity.unix_ns)

    def _observe_exit(self, activity: ExitActivity) -> None:
        # Also for an unknown program: its only series can come after its exit.
        if (program := self._program(activity.process)) is not None:
            self._end(program, activity.end_unix_ns)

    def _evict(self, program: ObservedProgram, has_ended: bool) -> None:
        reason = SeriesDrop.ENDPOINT_DOWN if has_ended else SeriesDrop.STALE
        self._dropped_series[reason] += len(program.series)
        self._release(program)

    def _release(self, program: ObservedProgram) -> None:
        key = key_of(program.process)
        self._final_series -= program.final_series
        self._resources.forget(program.process)
        if self._program_of_pid.get(key[0]) == key:
            del self._program_of_pid[key[0]]
        self._released[key] = None

    def _agent_snapshot(self, agent: Agent) -> Snapshot:
        measurements = self._host.measurements(self._dropped_series)
        times_unix_ns = (agent.start_unix_ns, self._unix_ns)
        return Snapshot(
            AGENT, agent.resource, agent, {}, measurements, {}, self._exemplars_seen, *times_unix_ns
        )

    def _program_snapshot(
        self, agent: Agent, program: ObservedProgram, exemplars: tuple[int, int]
    ) -> Snapshot:
        time_unix_ns = self._unix_ns
        if program.end_unix_ns is not None:
            time_unix_ns = max(program.updated_unix_ns, program.end_unix_ns)
        ages = (measure_open_call(call) for call, _ in program.open_calls.values())
        is_alive = program.end_unix_ns is None
        return Snapshot(
            key=key_of(program.process),
            resource=program.resource,
            agent=agent,
            devices=dict(program.devices),
            measurements=[
                *ages,
                *measure_thread_times(program.times.values()),
                *program.stalls.measurements(),
                *program.steps.measurements(),
                *program.memory_measurements(),
                *measure_collectives(program.communicators, time_unix_ns, is_alive=is_alive),
                *(self._host.devices.of_process(program.process.pid) if is_alive else ()),
                *program.of_run,
            ],
            exemplars=program.exemplars.between(*exemplars, program.devices),
            exemplars_seen=exemplars[1],
            start_unix_ns=program.process.start_unix_ns,
            time_unix_ns=time_unix_ns,
            is_final=self._is_final(program),
        )

    def _is_final(self, program: ObservedProgram) -> bool:
        return program.end_unix_ns is not None and (
            self._complete_readings > program.end_readings
            or self._snapshots - program.end_snapshots >= _LAST_SERIES_SNAPSHOTS
        )
