"""
The document: all results of a capture, and the renderers' only input.

All types are immutable. Times are nanoseconds. The fields are the keys of ``explain --json``,
except that processes, chains, intervals and stacks are objects here and ids in JSON (see
``json_form``). ``notes`` state what is not known about the window.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import CallStack, ProcessKey, Program, Who, key_of
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.chains import (
    COLLECTIVE,
    OWN_TIME,
    Cause,
    Chain,
    Culprit,
    Effect,
    Evidence,
    Failure,
    Incident,
    TimeNode,
    Verdict,
    VerdictClass,
    Where,
    stack_of_cause,
)
from otel_gpu.explain.kinds import (
    Bound,
    CauseKind,
    EffectKind,
    EvidenceKind,
    NodeKind,
    Severity,
    TimeClass,
    TimeState,
)
from otel_gpu.formatting.field_types import OrNan, Positive, one_of
from otel_gpu.report.devices.types import Advice, DeviceReport
from otel_gpu.report.memory.types import DeviceMemory
from otel_gpu.report.nccl.types import CommunicatorReport
from otel_gpu.report.steps import StepTotals
from otel_gpu.state.code_lines import NO_LINES, CodeLines, Line
from otel_gpu.state.pressure import Load, Throttled
from otel_gpu.state.window import Window
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.probe_table import LAYER_NAMES
from otel_gpu.wire.thread_states import THREAD_STATES, ThreadState

__all__ = [
    "COLLECTIVE",
    "OTHER_PROCESSES_PID",
    "OWN_TIME",
    "Advice",
    "ApiTotals",
    "Balance",
    "Bound",
    "CallStack",
    "Cause",
    "CauseKind",
    "Chain",
    "CodeLines",
    "CommunicatorReport",
    "Context",
    "Culprit",
    "CulpritTime",
    "DeviceMemory",
    "DeviceReport",
    "Document",
    "Effect",
    "EffectKind",
    "EventTime",
    "Evidence",
    "EvidenceKind",
    "Failure",
    "Frame",
    "FrameType",
    "Incident",
    "Line",
    "Load",
    "NodeKind",
    "OffCpu",
    "ProcessKey",
    "ProcessReport",
    "Program",
    "Severity",
    "StepTotals",
    "ThreadState",
    "Throttled",
    "TimeBucket",
    "TimeClass",
    "TimeNode",
    "TimeState",
    "VerdictClass",
    "WaitReason",
    "Where",
    "Who",
    "Window",
    "key_of",
    "processes_of",
    "stack_of_cause",
    "with_names",
]

OTHER_PROCESSES_PID = 0
"""The pid of merged processes; no process has it."""


class Context(StrEnum):
    """A thread's CUDA context while it was off the CPU."""

    GAP = "gap"
    SYNCHRONIZE = "synchronize"
    CALL = "call"
    OTHER = "other"


_CONTEXTS: Mapping[int, Context] = {
    wire.CONTEXT_GAP: Context.GAP,
    wire.CONTEXT_SYNCHRONIZE: Context.SYNCHRONIZE,
    wire.CONTEXT_CALL: Context.CALL,
    wire.CONTEXT_OTHER: Context.OTHER,
}


def context_named(number: int) -> str:
    """Return the context of a wire number; the number itself if unknown."""
    return _CONTEXTS.get(number, str(number))


def state_named(number: int) -> str:
    """Return the thread state of a wire number; the number itself if unknown."""
    return THREAD_STATES.get(number, str(number))


class ProcessReport(NamedTuple):
    """
    One program under one pid, and what bounds it.

    Attributes:
        service_name: Of merged processes their count and service: "19,500 more processes of storm".
        command: Its arguments, joined by spaces; secrets are masked.
        start_unix_ns: When the program began.
        places: Its attributes ``container.*`` and ``k8s.*``.
        verdict: What it is bound by, of all time of its launching threads; ``mixed``: two classes
            are nearly equal; ``unknown``: the times of its threads are not known.
        verdict_shares: The share of each class that the verdict compares; empty: not known.
        budget_ns: The time of its launching threads, by state; empty: not known.
        time_tree: All time of its launching threads, by reason; None: it has none.
        lines: The lines with the work behind the first of ``verdict_bounds``: its own, or those of
            the thread that it waited for. Absent if most of that time is not work, or no sample
            shows it.
        verdict_bounds: The classes that the verdict names, those with the most time first: the one
            that leads, or at least two if ``mixed``; then all with at least a fifth. Absent: the
            verdict is not known.
    """

    process: Program
    service_name: str
    command: str
    start_unix_ns: int
    places: Mapping[str, str]
    verdict: Bound
    verdict_shares: Mapping[TimeClass, float]
    budget_ns: Mapping[TimeState, int]
    time_tree: TimeNode | None = None
    lines: CodeLines = NO_LINES
    verdict_bounds: tuple[VerdictClass, ...] = ()


class ApiTotals(NamedTuple):
    """
    All calls of one API by one program, including those inside other calls.

    Percentiles are read from the kernel's buckets. All else is exact.

    Attributes:
        p50_ns: None: no call has a duration.
        p99_ns: None: as ``p50_ns``.
        sum_ns: The time of all calls.
        size_bytes: Bytes copied, set or allocated by calls that succeeded.
    """

    process: Program
    api: str
    layer: Annotated[str, one_of(LAYER_NAMES.values())]
    calls: int
    errors: int
    p50_ns: OrNan
    p99_ns: OrNan
    max_ns: float
    sum_ns: int
    size_bytes: int


class EventTime(NamedTuple):
    """
    Device time that one process measured itself, between CUDA events.

    Measured intervals can overlap. Percentiles are read from the kernel's buckets; all else is
    exact.

    Attributes:
        device: The process's device index; None: not known.
        times: The number of measured intervals.
        p50_ns: None: no interval is in a bucket.
        p99_ns: None: as ``p50_ns``.
    """

    process: Program
    device: int | None
    times: int
    p50_ns: OrNan
    p99_ns: OrNan
    max_ns: float
    sum_ns: int


class Balance(NamedTuple):
    """Device memory that one process allocated and freed, by successful calls."""

    process: Program
    allocations: int
    allocated_bytes: int
    frees: int
    freed_bytes: int


class OffCpu(NamedTuple):
    """
    Time that threads of a process were off the CPU, for one reason.

    Attributes:
        context: ``gap``: between calls; ``synchronize``: waiting for the GPU; ``call``: in another
            call; ``other``: the thread makes no calls.
        state: ``run_queue`` or ``blocked``.
        reason: Of a run queue ``preempted`` if another thread took the CPU, else empty.
        times: The number of intervals.
    """

    process: Program
    context: str
    state: str
    reason: WaitReason
    time_ns: int
    times: int


class CulpritTime(NamedTuple):
    """
    Time that one culprit cost the effects of one process, by one kind of cause.

    Attributes:
        effects: The number of effects.
    """

    process: Program
    culprit: Culprit
    kind: CauseKind
    time_ns: int
    effects: int


class TimeBucket(NamedTuple):
    """
    Sums of one interval of the window that captures cover.

    Counts are spread evenly between two readings, so they need not be whole.

    Attributes:
        process: None: all processes together.
        lost_ns: The excess of slow calls and gaps.
    """

    process: Program | None
    start_unix_ns: int
    end_unix_ns: int
    calls: float
    call_ns: float
    synchronize_ns: float
    allocate_calls: float
    allocate_ns: float
    run_queue_ns: float
    lost_ns: float

    @property
    def length_ns(self) -> int:
        """Its length, at least 1, so that it can be a divisor."""
        return max(1, self.end_unix_ns - self.start_unix_ns)


class Document(NamedTuple):
    """
    What bounds each process of a window, which calls and gaps were slow, and why.

    Times that end in ``_unix_ns`` are Unix time, other times are durations, both in nanoseconds.
    Shares are parts of 1.

    Attributes:
        source: The name of the recording as given, or ``live``.
        apis: By total time, the longest first. Calls inside other calls have rows, too.
        balances: Allocated and freed device memory, by process.
        incidents: By severity, then by lost time, the worst first.
        chains: By the start of their effects.
        culprit_times: How much time each culprit cost each process, over all chains, the most
            first.
        off_cpu: Time that threads did not run, by reason; that of launching threads first.
        time_buckets: Sums over time: of all processes together, then of each. Intervals without a capture
            are in ``uncovered``.
        load: The load that the host reports, which is never a cause; None: it was not read.
        losses: What was not recorded or could not be read, by reason.
        notes: What is not known about the window, in words.
        memory: Held memory of each device, by source. Sources hold the same memory: never add them
            up. Empty: no source reports it; see ``balances``.
        devices: How a program used each device, from sources that record device time; else empty.
        advice: What to do about the use of devices. Incidents and memory have their own.
        event_times: Device time between CUDA events, by process and device.
        communicators: NCCL communicators with ranks on this host: those that hang first, then by
            time. Numbers of collectives can be compared between ranks.
        steps: Steps of threads: reported by their program, or found as a period of its calls. By
            total time.
        uncovered: The parts of the window without a capture, in order of time: nothing is known
            about them.
    """

    source: str
    window: Window
    processes: tuple[ProcessReport, ...] = ()
    apis: tuple[ApiTotals, ...] = ()
    balances: tuple[Balance, ...] = ()
    incidents: tuple[Incident, ...] = ()
    chains: tuple[Chain, ...] = ()
    culprit_times: tuple[CulpritTime, ...] = ()
    off_cpu: tuple[OffCpu, ...] = ()
    time_buckets: tuple[TimeBucket, ...] = ()
    load: Load | None = None
    losses: Mapping[str, Positive] = {}
    notes: tuple[str, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    advice: tuple[Advice, ...] = ()
    event_times: tuple[EventTime, ...] = ()
    communicators: tuple[CommunicatorReport, ...] = ()
    steps: tuple[StepTotals, ...] = ()
    uncovered: tuple[Window, ...] = ()

    @property
    def start_unix_ns(self) -> int:
        """The start of the window."""
        return self.window.start_unix_ns or 0

    @property
    def end_unix_ns(self) -> int:
        """The end of the window."""
        return self.window.end_unix_ns or 0

    @property
    def length_ns(self) -> int:
        """The length of the window."""
        return self.end_unix_ns - self.start_unix_ns

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of the report."""
        return tuple(process.process for process in self.processes)

    @property
    def examples(self) -> tuple[Chain, ...]:
        """Examples of incidents that are not effects themselves, each once."""
        listed = {chain.id for chain in self.chains}
        found = {one.id: one for incident in self.incidents for one in incident.examples}
        return tuple(found[name] for name in sorted(found.keys() - listed))

    @property
    def judged(self) -> tuple[ProcessReport, ...]:
        """The processes with thread times, and so with a verdict."""
        return tuple(process for process in self.processes if process.budget_ns)

    def buckets_of(self, process: Program | None) -> list[TimeBucket]:
        """Return the time buckets of one process; None: of all together."""
        return [bucket for bucket in self.time_buckets if bucket.process is process]

    def over_time(self, process: Program | None) -> list[TimeBucket | Window]:
        """
        Return the time buckets as ``buckets_of``, and the ``uncovered`` windows, in order of time.
        """
        buckets = self.buckets_of(process)
        breaks = self.uncovered
        if process is not None:
            breaks = tuple(
                one
                for one in breaks
                if buckets
                and buckets[0].start_unix_ns < (one.end_unix_ns or 0) <= buckets[-1].start_unix_ns
            )
        return sorted(
            (*buckets, *breaks), key=lambda row: (row.start_unix_ns or 0, row.end_unix_ns or 0)
        )

    def of_process(self, process: Program) -> "Document":
        """Return the part about one process; host, losses and notes stay those of all."""
        key = key_of(process)

        def is_its(
            row: "ProcessReport | ApiTotals | EventTime | Balance | CulpritTime | OffCpu | StepTotals",
        ) -> bool:
            return key_of(row.process) == key

        def lost(chain: Chain) -> bool:
            return key_of(chain.effect.process) == key

        return self._replace(
            processes=tuple(filter(is_its, self.processes)),
            apis=tuple(filter(is_its, self.apis)),
            event_times=tuple(filter(is_its, self.event_times)),
            balances=tuple(filter(is_its, self.balances)),
            incidents=tuple(one for one in self.incidents if key in map(key_of, one.processes)),
            chains=tuple(filter(lost, self.chains)),
            culprit_times=tuple(filter(is_its, self.culprit_times)),
            off_cpu=tuple(filter(is_its, self.off_cpu)),
            steps=tuple(filter(is_its, self.steps)),
            time_buckets=tuple(bucket for bucket in self.time_buckets if bucket.process is process),
            # The process of a memory snapshot is unknown.
            memory=tuple(row for row in self.memory if row.pid in (None, process.pid)),
            communicators=tuple(
                row
                for row in self.communicators
                if any(key_of(rank.process) == key for rank in row.ranks)
            ),
        )


def processes_of(
    programs: Iterable[Program],
    verdicts: Iterable[Verdict],
    names: Callable[[Who], Who] | None = None,
) -> Iterator[ProcessReport]:
    """
    Yield process rows, in the order of the programs.

    Args:
        programs: The programs.
        verdicts: Verdicts of those with launching threads.
        names: Adds the names of threads and processes that kept them waiting.
    """
    judged = {key_of(verdict.process): verdict for verdict in verdicts}
    for program in programs:
        verdict = judged.get(key_of(program))
        tree = verdict.time_tree if verdict else None
        arguments = program.attributes.get("process.command_args")
        is_list = isinstance(arguments, list | tuple)
        yield ProcessReport(
            process=program,
            service_name=str(program.attributes.get("service.name") or program.comm),
            command=" ".join(map(str, arguments)) if is_list and arguments else program.comm,
            start_unix_ns=program.start_unix_ns,
            places={
                name: str(value)
                for name, value in program.attributes.items()
                if name.startswith(("container.", "k8s."))
            },
            verdict=verdict.verdict if verdict else Bound.UNKNOWN,
            verdict_shares=verdict.shares if verdict else {},
            budget_ns=verdict.budget_ns if verdict else {},
            time_tree=with_names(tree, names) if tree and names else tree,
            lines=verdict.lines if verdict else NO_LINES,
            verdict_bounds=tuple(_named(verdict, names)) if verdict else (),
        )


def _named(verdict: Verdict, names: Callable[[Who], Who] | None) -> Iterator[VerdictClass]:
    for one in verdict.bounds:
        yield one._replace(
            path=tuple(with_names(node, names) if names else node for node in one.path)
        )


def with_names(node: TimeNode, names: Callable[[Who], Who]) -> TimeNode:
    """Return a tree with the known names of threads and processes."""
    children = tuple(with_names(child, names) for child in node.children)
    return node._replace(who=node.who and names(node.who), children=children)
