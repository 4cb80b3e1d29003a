"""Collects the document from activities."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from otel_gpu.enrich.activities import (
    END_OF,
    Activity,
    BlocksActivity,
    CaptureActivity,
    CommunicatorActivity,
    DeviceTraceActivity,
    ExitActivity,
    MemoryActivity,
    OutOfMemoryActivity,
    PressureActivity,
    ProbesActivity,
)
from otel_gpu.enrich.cuda_errors import signal_name
from otel_gpu.enrich.identity.identities import Program, Who
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.explain.accounting.bounds import with_bounds
from otel_gpu.explain.accounting.chronic import ChronicFinding, find_chronic
from otel_gpu.explain.accounting.time_tree import resources_of
from otel_gpu.explain.accounting.verdicts import find_verdicts
from otel_gpu.explain.chains import Chain, Failure, Incident
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.incidents import Incidents, worst_first
from otel_gpu.explain.memory.allocator_churn import KINDS as CHURN_KINDS
from otel_gpu.explain.memory.out_of_memory import MAX_FAILURES, SNAPSHOT_PROGRAM
from otel_gpu.explain.nccl.stragglers import find_stragglers
from otel_gpu.formatting.printable import printable
from otel_gpu.limits.recent import Fifo
from otel_gpu.report.call_counts import api_rows, balances, event_time_rows, off_cpu_rows
from otel_gpu.report.chains import ChainRows
from otel_gpu.report.devices.builder import DeviceRows
from otel_gpu.report.devices.unattributed_faults import UnattributedFaults
from otel_gpu.report.document import (
    OTHER_PROCESSES_PID,
    Document,
    ProcessKey,
    Window,
    key_of,
    processes_of,
)
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.memory.live_blocks import MemoryCalls, block_notes, block_rows, layer_rows
from otel_gpu.report.memory.snapshot import memory_rows
from otel_gpu.report.memory.types import MODES, DeviceMemory
from otel_gpu.report.nccl.builder import communicator_rows
from otel_gpu.report.notes import write_notes
from otel_gpu.report.other_processes import OtherProcesses
from otel_gpu.report.steps import step_rows
from otel_gpu.report.time_buckets import TimeBuckets, Totals
from otel_gpu.report.wording.thread_names import program_of, with_one_name
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.capture_state import CaptureState, Figures, SeriesDelta
from otel_gpu.state.memory.allocations import Allocations
from otel_gpu.state.memory.blocks import AllocatorState
from otel_gpu.state.nccl.communicators import CommunicatorStates
from otel_gpu.state.pressure import PressureState
from otel_gpu.state.steps import ThreadSteps
from otel_gpu.state.thread_names import ThreadNames
from otel_gpu.wire.memory_snapshot import MemorySnapshot

MAX_REPLACED = 16_384
_SIGNAL_OF_EXIT = 0x7F


class Collector:
    """
    Makes a report of a window from activities in order.

    The explainer gets all activities, so that it knows the usual times before the window; the
    report has only what overlaps the window. Memory is bounded, and the report's notes count what
    did not fit.

    Args:
        explainer: Makes chains of activities.
        window: The reported time.
        pids: Report only these processes; empty: all.
        rejected: Records that could not be decoded, by reason; read at the end.
    """

    def __init__(
        self,
        explainer: Explainer,
        *,
        window: Window = Window(),  # noqa: B008 -- immutable
        pids: Sequence[int] = (),
        rejected: Mapping[str, int] | None = None,
    ) -> None:
        self._explainer = explainer
        self._window = window
        self._pids = frozenset(pids)
        self._rejected = {} if rejected is None else rejected
        self._extent = CaptureExtent()
        self._buckets = TimeBuckets(self._extent, window)
        self._allocations = Allocations()
        self._state = CaptureState(window, follow=self._follow)
        self._others = OtherProcesses(self._state, self._buckets)
        self._agent = AgentReadings()
        self._pressure = PressureState(window)
        self._places = CodeLocations(explainer.settings.max_processes)
        self._names = ThreadNames()
        # For a part of the capture, incidents are computed again.
        self._is_part = window != Window() or bool(pids)
        explainer.examples.window = window
        self._incidents = Incidents(explainer.settings, find_examples=explainer.examples.find)
        self._chains = ChainRows()
        self._programs: dict[ProcessKey, Program] = {}
        # In the order in which another program replaced them.
        self._replaced: Fifo[ProcessKey, None] = Fifo(MAX_REPLACED)
        self._deaths: dict[ProcessKey, str] = {}
        self._failed_symbols: dict[str, int] = {}
        self._memory: dict[int, MemorySnapshot] = {}
        # The explainer's states cover the whole stream.
        self._blocks = explainer.blocks
        self._communicators = explainer.communicators
        self._block_mode: str | None = None
        self._failures: dict[tuple[int, int, int], list[Failure]] = {}
        self._devices = DeviceRows()
        self._unattributed_faults = UnattributedFaults(window)
        self._steps = ThreadSteps(window)
        self._handlers: dict[type, Callable[[Any], object]] = {
            CaptureActivity: self._observe_capture,
            ExitActivity: self._observe_exit,
            PressureActivity: self._pressure.observe,
            ProbesActivity: self._observe_probes,
            StepActivity: self._steps.observe,
        }
        if not pids:
            self._handlers |= {
                DeviceTraceActivity: lambda activity: self._devices.add(activity.trace),
                MemoryActivity: self._observe_memory,
            }
        if window != Window():
            self._blocks, self._communicators = AllocatorState(window), CommunicatorStates(window)
            self._handlers |= dict.fromkeys(
                (BlocksActivity, OutOfMemoryActivity), self._blocks.observe
            )
            self._handlers[CommunicatorActivity] = self._communicators.observe

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        self._extent.observe(activity)
        self._state.observe(activity)
        self._agent.observe(activity)
        self._names.observe(activity)
        self._unattributed_faults.observe(activity)
        end_unix_ns = END_OF[type(activity)](activity)
        if self._window.overlaps(end_unix_ns, end_unix_ns):
            self._places.observe(activity)
        handler = self._handlers.get(type(activity))
        if handler is not None:
            handler(activity)
        self._take(self._explainer.push(activity))

    def _follow(self, growth: SeriesDelta) -> None:
        self._buckets.follow(growth)
        self._allocations.origin_unix_ns = self._window.start_unix_ns or self._extent.start_unix_ns
        self._allocations.follow(growth, self._state.middles_ns)

    def finish(self, source: str, notes: Sequence[str] = ()) -> Document:
        """
        Make the document; call it once, at the end.

        Args:
            source: The name of the source.
            notes: Further notes.
        """
        self._take(self._explainer.close())
        if not self._pids:
            self._others.close(self._programs.keys())
        start_unix_ns = self._window.start_unix_ns or self._extent.start_unix_ns
        end_unix_ns = max(start_unix_ns, self._window.end_unix_ns or self._extent.end_unix_ns)
        found = self._state.figures()
        incidents = tuple(self._all_incidents(found.values(), start_unix_ns, end_unix_ns))
        chosen = [one for one in found.values() if self._chooses(one.process)]
        self._names.learn_programs(one.process for one in found.values())
        lags = self._communicators.lags(end_unix_ns)
        settings = self._explainer.settings
        verdicts = [
            with_bounds(verdict, incidents)
            for verdict in find_verdicts(
                figures=chosen,
                settings=settings,
                places=self._places,
                around=found.values(),
                lags=lags,
            )
        ]
        launching = {key_of(verdict.process) for verdict in verdicts}
        # Programs that only executed another program, as forks do.
        transient = (
            self._replaced.keys() - launching - self._state.callers() - self._programs.keys()
        )
        for one in chosen:
            key = key_of(one.process)
            if one.series or key in launching:
                self._programs[key] = one.process
        programs = {
            key: program
            for key, program in sorted(self._programs.items(), key=_process_order)
            if key not in transient
        }
        memory, memory_notes = self._memory_rows(chosen, incidents, end_unix_ns)
        devices, advice, device_notes = self._devices.finish()
        communicators, communicator_notes = communicator_rows(
            self._communicators, end_unix_ns, self._pids
        )
        apis = api_rows(chosen, self._state.middles_ns)
        document = Document(
            source=source,
            window=Window(start_unix_ns, end_unix_ns),
            processes=tuple(processes_of(programs.values(), verdicts, self._names.find)),
            apis=tuple(apis),
            balances=tuple(balances(chosen)),
            incidents=incidents,
            chains=self._chains.rows(),
            culprit_times=self._chains.culprit_times(),
            off_cpu=tuple(
                off_cpu_rows(one for one in chosen if key_of(one.process) not in transient)
            ),
            time_buckets=tuple(self._buckets.rows(programs, end_unix_ns, self._interval_ns())),
            load=self._pressure.load(),
            losses=self._agent.losses(self._rejected),
            notes=(
                *self._notes(found.values()),
                *(
                    f"{printable(program.service_name)} ({program.pid}) was ended by {self._deaths[key]}."
                    for key, program in programs.items()
                    if key in self._deaths
                ),
                *self._unattributed_faults.notes(),
                *memory_notes,
                *device_notes,
                *communicator_notes,
                *notes,
            ),
            memory=memory,
            devices=devices,
            advice=advice,
            event_times=tuple(event_time_rows(chosen, self._state.middles_ns)),
            communicators=communicators,
            steps=step_rows(self._steps, self._chains.rows(), self._pids),
            uncovered=tuple(self._extent.uncovered(Window(start_unix_ns, end_unix_ns))),
        )
        commands = {one.process.pid: program_of(one.process) for one in found.values()}

        def found_of(pid: int) -> str:
            return "" if pid in commands else self._names.find(Who(pid)).comm

        return with_one_name(document, lambda pid: commands.get(pid, ""), found_of)

    def _memory_rows(
        self, figures: Sequence[Figures], incidents: Sequence[Incident], end_unix_ns: int
    ) -> tuple[tuple[DeviceMemory, ...], tuple[str, ...]]:
        histories = self._explainer.histories
        rows, notes = memory_rows(
            (
                snapshot,
                histories[device],
                self._failures.get((*key_of(SNAPSHOT_PROGRAM), device), ()),
            )
            for device, snapshot in sorted(self._memory.items())
        )
        devices = [one for one in self._blocks.devices() if self._chooses(one.process)]
        blocks = tuple(block_rows(devices, self._failures, self._block_mode))
        known = frozenset((*key_of(one.process), one.number) for one in devices)
        churn = {
            key_of(process): self._explainer.churn.churn_of(key_of(process))
            for incident in incidents
            if incident.causes and incident.causes[0].kind in CHURN_KINDS
            for process in incident.processes
        }
        calls = MemoryCalls(self._allocations, churn, end_unix_ns)
        layers = layer_rows(figures=figures, calls=calls, failures=self._failures, known=known)
        pauses = self._agent.status.get("blocks", {})
        return (*rows, *blocks, *layers), (*notes, *block_notes(devices, pauses))

    def _observe_capture(self, activity: CaptureActivity) -> None:
        mode = activity.info.get("settings", {}).get("memory_blocks")
        self._block_mode = mode if isinstance(mode, str) and mode in MODES else None

    def _observe_memory(self, activity: MemoryActivity) -> None:
        # A newer snapshot replaces an older one.
        self._memory[activity.snapshot.device] = activity.snapshot

    def _observe_exit(self, activity: ExitActivity) -> None:
        process, is_replaced = activity.process, activity.is_replaced
        self._communicators.end(process)
        signal_number = (activity.exit_code or 0) & _SIGNAL_OF_EXIT
        if signal_number and not is_replaced and len(self._deaths) < MAX_REPLACED:
            self._deaths[key_of(process)] = signal_name(signal_number)
        if is_replaced:
            self._replaced[key_of(process)] = None
        if not self._pids or process.pid not in self._pids:
            self._others.end(process, is_replaced=is_replaced, named=self._programs.keys())

    def _observe_probes(self, activity: ProbesActivity) -> None:
        if failed := activity.info.get("failed"):
            self._failed_symbols[activity.info["library"]] = len(failed)

    def _chooses(self, process: Program) -> bool:
        return not self._pids or process.pid in self._pids

    def _notes(self, figures: Iterable[Figures]) -> Iterator[str]:
        return write_notes(
            [series.aggregate for one in figures for series in one.calls],
            self._state,
            self._agent,
            failed_symbols=self._failed_symbols,
            chains_left_out=self._chains.left_out,
            given_up=Counter(self._explainer.given_up) + Counter(samples=self._places.left_out),
            of_calls=not self._devices.traces,
        )

    def _interval_ns(self) -> int:
        # 0 without any reading.
        return self._state.read_ns // max(1, self._state.readings)

    def _take(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            effect = chain.effect
            end_unix_ns = effect.start_unix_ns + effect.duration_ns
            if self._chooses(effect.process) and self._window.overlaps(
                effect.start_unix_ns, end_unix_ns
            ):
                self._take_chosen(chain, end_unix_ns)

    def _take_chosen(self, chain: Chain, end_unix_ns: int) -> None:
        effect = chain.effect
        program = key_of(effect.process)
        if (failure := chain.failure) is not None:
            failed = self._failures.setdefault((*program, failure.device), [])
            failed.append(failure)
            del failed[:-MAX_FAILURES]
        if effect.process is not SNAPSHOT_PROGRAM:
            self._programs.setdefault(program, effect.process)
        if self._is_part:
            self._incidents.add(chain)
        totals = Totals(lost_ns=self._chains.add(chain))
        self._buckets.spread(
            program=program,
            start_unix_ns=effect.start_unix_ns,
            end_unix_ns=end_unix_ns,
            totals=totals,
        )

    def _all_incidents(
        self, figures: Iterable[Figures], start_unix_ns: int, end_unix_ns: int
    ) -> list[Incident]:
        if not self._is_part:
            incidents = self._explainer.incidents()
        else:
            self._find_chronic(tuple(figures), start_unix_ns, end_unix_ns)
            self._incidents.close()
            # Allocation churn is found only in the whole capture.
            churn = filter(self._is_churn, self._explainer.incidents())
            incidents = [*self._incidents.all(), *churn]
        return sorted(incidents, key=worst_first)

    def _is_churn(self, incident: Incident) -> bool:
        return (
            any(map(self._chooses, incident.processes))
            and self._window.overlaps(incident.start_unix_ns, incident.end_unix_ns)
            and bool(incident.causes)
            and incident.causes[0].kind in CHURN_KINDS
        )

    def _find_chronic(
        self, figures: Sequence[Figures], start_unix_ns: int, end_unix_ns: int
    ) -> None:
        # The readings just outside of the window: counts cover the time between them.
        start_unix_ns = self._state.start_unix_ns or start_unix_ns
        end_unix_ns = self._state.end_unix_ns or end_unix_ns
        settings, resources = self._explainer.settings, resources_of(figures)
        lags = self._communicators.lags_by(end_unix_ns)
        around = {key_of(one.process): one for one in figures}
        for one in figures:
            if self._chooses(one.process):
                # A finding lasts at most as long as its captures.
                first_unix_ns, last_unix_ns = self._buckets.captured(key_of(one.process))
                times = (
                    max(start_unix_ns, first_unix_ns or start_unix_ns),
                    min(end_unix_ns, last_unix_ns or end_unix_ns),
                )
                found = [
                    *find_chronic(one, *times, settings, self._places, resources, self._names),
                    *find_stragglers(
                        figures=one,
                        figures_of=around.get,
                        lags=lags,
                        times_unix_ns=times,
                        settings=settings,
                        places=self._places,
                    ),
                ]
                self._incidents.add_chronic(ChronicFinding(one.process, end_unix_ns, tuple(found)))


def _process_order(item: tuple[ProcessKey, Program]) -> tuple[bool, ProcessKey]:
    return item[1].pid == OTHER_PROCESSES_PID, item[0]
