"""
The document: what a capture adds up to, and the only thing that faces read.

All immutable. Times are nanoseconds. The fields are the keys of ``explain --json``, except
that a process, a chain, an interval and a stack are here themselves where JSON has their id
(see ``json_form``). What is not known about a window is said in the document's ``notes``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

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
from otel_gpu.report.devices.types import Advice, DeviceReport
from otel_gpu.report.memory.types import DeviceMemory
from otel_gpu.report.nccl.types import CommunicatorReport
from otel_gpu.report.steps import StepTotals
from otel_gpu.state.code_lines import NO_LINES, CodeLines, Line
from otel_gpu.state.pressure import Load, Throttled
from otel_gpu.state.window import Window
from otel_gpu.wire.frames import KERNEL, NATIVE, Frame
from otel_gpu.wire.thread_states import THREAD_STATES, ThreadState

__all__ = [
    "COLLECTIVE",
    "KERNEL",
    "NATIVE",
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

SCHEMA_VERSION = 2

OTHER_PROCESSES_PID = 0
"""Of what stands for many processes; no process has it."""


class Context(StrEnum):
    """What a thread was doing about CUDA while it did not run."""

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
    """Return the context with an enumerator of the wire; its number where that is unknown."""
    return _CONTEXTS.get(number, str(number))


def state_named(number: int) -> str:
    """Return the thread state with an enumerator of the wire, or its number."""
    return THREAD_STATES.get(number, str(number))


class ProcessReport(NamedTuple):
    """
    One program under one pid, and what bounds it.

    ``verdict`` is ``UNKNOWN``, and its figures are empty, where no time of its threads was
    accounted for. ``places`` are its attributes that say where it runs: container and pod.
    ``time_tree`` is where all the time of its threads that feed a GPU went; None: it has none.
    ``lines`` is where the work was that the verdict is due to: its own, or that of whom it waited for.
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
    All calls of one API by one process image, also those inside other calls.

    Percentiles are read from the kernel's buckets; NaN where there are none. All else is
    exact.
    """

    process: Program
    api: str
    layer: str
    calls: int
    errors: int
    p50_ns: float
    p99_ns: float
    max_ns: float
    sum_ns: int
    size_bytes: int


class EventTime(NamedTuple):
    """
    Device time that one process measured itself, from one CUDA event to another.

    ``device`` is its number as the process counts; None: not known. What was measured may overlap. Percentiles
    are read from the kernel's buckets; all else is exact.
    """

    process: Program
    device: int | None
    times: int
    p50_ns: float
    p99_ns: float
    max_ns: float
    sum_ns: int


class Balance(NamedTuple):
    """Device memory that one process asked for and gave back, by successful calls."""

    process: Program
    allocations: int
    allocated_bytes: int
    frees: int
    freed_bytes: int


class OffCpu(NamedTuple):
    """
    Time that threads of a process did not run, for one reason.

    ``reason`` of the run queue is ``PREEMPTED`` where a CPU was taken from them, else ``NONE``.
    """

    process: Program
    context: str
    state: str
    reason: WaitReason
    time_ns: int
    times: int


class CulpritTime(NamedTuple):
    """Time that one culprit cost the effects of one process, in one way."""

    process: Program
    culprit: Culprit
    kind: CauseKind
    time_ns: int
    effects: int


class TimeBucket(NamedTuple):
    """
    What happened in one stretch of the window that captures cover; ``process`` is None for all together.
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
        """How long it is; never nothing, so that it can be divided by."""
        return max(1, self.end_unix_ns - self.start_unix_ns)


class Document(NamedTuple):
    """
    Everything that a reader can learn of a window.

    ``incidents`` are in order of severity and lost time, ``chains`` by the start of their effects, ``apis``
    by total time. ``slots`` holds rows for all processes together, then for each. ``uncovered`` are
    the parts of the window that no capture covers, in order of time: nothing is known of them.
    """

    source: str
    window: Window
    processes: tuple[ProcessReport, ...] = ()
    apis: tuple[ApiTotals, ...] = ()
    balances: tuple[Balance, ...] = ()
    incidents: tuple[Incident, ...] = ()
    chains: tuple[Chain, ...] = ()
    blames: tuple[CulpritTime, ...] = ()
    off_cpu: tuple[OffCpu, ...] = ()
    slots: tuple[TimeBucket, ...] = ()
    load: Load | None = None
    losses: Mapping[str, int] = {}
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
        """When the window begins."""
        return self.window.start_unix_ns or 0

    @property
    def end_unix_ns(self) -> int:
        """When the window ends."""
        return self.window.end_unix_ns or 0

    @property
    def length_ns(self) -> int:
        """How long the window is."""
        return self.end_unix_ns - self.start_unix_ns

    @property
    def images(self) -> tuple[Program, ...]:
        """Return the process images that it is about."""
        return tuple(process.process for process in self.processes)

    @property
    def examples(self) -> tuple[Chain, ...]:
        """Return the calls and gaps that show incidents and are no effects, each once."""
        listed = {chain.id for chain in self.chains}
        found = {one.id: one for incident in self.incidents for one in incident.examples}
        return tuple(found[name] for name in sorted(found.keys() - listed))

    @property
    def judged(self) -> tuple[ProcessReport, ...]:
        """Return the processes whose threads' time was accounted for, so that it was judged."""
        return tuple(process for process in self.processes if process.budget_ns)

    def slots_of(self, process: Program | None) -> list[TimeBucket]:
        """Return what happened when to one process; None: to all together."""
        return [slot for slot in self.slots if slot.process is process]

    def over_time(self, process: Program | None) -> list[TimeBucket | Window]:
        """Return what happened when, as ``slots_of``, and what is ``uncovered``, in order of time."""
        slots = self.slots_of(process)
        breaks = self.uncovered
        if process is not None:
            breaks = tuple(
                one
                for one in breaks
                if slots
                and slots[0].start_unix_ns < (one.end_unix_ns or 0) <= slots[-1].start_unix_ns
            )
        return sorted(
            (*slots, *breaks), key=lambda row: (row.start_unix_ns or 0, row.end_unix_ns or 0)
        )

    def of_process(self, process: Program) -> "Document":
        """Return the part that is about one process; host, losses and notes are of all."""
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
            blames=tuple(filter(is_its, self.blames)),
            off_cpu=tuple(filter(is_its, self.off_cpu)),
            steps=tuple(filter(is_its, self.steps)),
            slots=tuple(slot for slot in self.slots if slot.process is process),
            # What a snapshot holds is of nobody that is known.
            memory=tuple(row for row in self.memory if row.pid in (None, process.pid)),
            communicators=tuple(
                row
                for row in self.communicators
                if any(key_of(rank.process) == key for rank in row.ranks)
            ),
        )


def processes_of(
    images: Iterable[Program],
    verdicts: Iterable[Verdict],
    names: Callable[[Who], Who] | None = None,
) -> Iterator[ProcessReport]:
    """
    Yield processes with what bounds them, in the order of their images.

    Args:
        images: Which.
        verdicts: What bounds those that feed a GPU.
        names: Says who it is that kept them waiting, as far as that is known.
    """
    judged = {key_of(verdict.process): verdict for verdict in verdicts}
    for image in images:
        verdict = judged.get(key_of(image))
        tree = verdict.time_tree if verdict else None
        arguments = image.attributes.get("process.command_args")
        is_list = isinstance(arguments, list | tuple)
        yield ProcessReport(
            process=image,
            service_name=str(image.attributes.get("service.name") or image.comm),
            command=" ".join(map(str, arguments)) if is_list and arguments else image.comm,
            start_unix_ns=image.start_unix_ns,
            places={
                name: str(value)
                for name, value in image.attributes.items()
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
    """Return a tree that says of everybody who it is, as far as that is known."""
    children = tuple(with_names(child, names) for child in node.children)
    return node._replace(who=node.who and names(node.who), children=children)
