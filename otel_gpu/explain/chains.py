"""
The types of an explanation: effects, causes, chains, incidents, time trees, verdicts.

All are immutable. Times are nanoseconds. A ``share`` is of the effect's duration, and
``unexplained_ns`` is the time without a cause.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack, Program, Resource, Who, key_of
from otel_gpu.enrich.identity.identities import Culprit as Culprit  # noqa: PLC0414 -- a type of an explanation too
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
from otel_gpu.state.code_lines import NO_LINES, CodeLines
from otel_gpu.state.code_lines import Where as Where  # noqa: PLC0414 -- so is this
from otel_gpu.state.memory.snapshot import Kept, LineHolding
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory import SHARED


class Evidence(NamedTuple):
    """
    One measured interval that a cause rests on.

    ``reason`` of ``COUNTERS`` names those that rose. ``span_id`` is the exported span's, or empty, and ``trace_id`` that
    of its trace. ``functions`` is the thread's kernel stack, and ``stack`` where in its program it
    was. ``is_cpu_idle``: no thread had the CPU of a ``run_queue`` wait.
    """

    id: str
    kind: EvidenceKind
    start_unix_ns: int
    end_unix_ns: int
    culprit: Culprit | None = None
    waker: Culprit | None = None
    reason: str = ""
    functions: tuple[str, ...] = ()
    span_id: bytes = b""
    stack: CallStack | None = None
    is_cpu_idle: bool = False
    trace_id: bytes = b""


class DeviceTrouble(NamedTuple):
    """
    What was wrong with a device.

    Attributes:
        device: Its UUID, else its place on the bus.
        xid: NVIDIA's number of the error; 0: none was reported.
        uncorrected: Memory errors that could not be corrected.
        reason: Why its clocks were limited; empty: they were not.
        clock_mhz: Its clock; 0: not known.
        clock_limit_mhz: The highest clock; 0: not known.
    """

    device: str
    xid: int = 0
    uncorrected: int = 0
    reason: str = ""
    clock_mhz: int = 0
    clock_limit_mhz: int = 0


class Cause(NamedTuple):
    """
    A part of an effect's time with one cause.

    ``via`` are the causes of this cause, found by following the
    thread that ended the wait; their times are parts of this one's. ``resource`` is the file,
    address or similar that was waited for, if known. ``lines`` are the lines that a thread worked
    on during that time: the thread itself for its own work and unexplained time, the culprit for a
    wait for a CPU, and the other threads of the process for the GIL if its holder is unknown.
    ``trouble`` is what was wrong with the device. ``others`` are causes just as much as
    ``culprit``: all ranks that did not call a collective.
    """

    kind: CauseKind
    time_ns: int
    share: float
    culprit: Culprit | None
    evidence: tuple[Evidence, ...]
    via: tuple["Cause", ...] = ()
    resource: Resource | None = None
    lines: CodeLines = NO_LINES
    trouble: DeviceTrouble | None = None
    others: tuple[Culprit, ...] = ()

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """All culprits, equally; empty: not known."""
        return () if self.culprit is None else (self.culprit, *self.others)

    @property
    def is_counted(self) -> bool:
        """Whether counters prove that it happened, and its duration is unknown."""
        return not self.time_ns and any(one.kind == EvidenceKind.COUNTERS for one in self.evidence)


OWN_TIME = frozenset({CauseKind.HOST_WORK, CauseKind.UNEXPLAINED})
"""Kinds of causes whose ``lines`` are of the thread itself, and not of its culprit."""


COLLECTIVE = frozenset(
    {CauseKind.COLLECTIVE_WAIT, CauseKind.COLLECTIVE_MISMATCH, CauseKind.COLLECTIVE_STUCK}
)
"""Kinds of causes that ranks of one communicator share."""


def stack_of_cause(cause: Cause) -> CallStack | None:
    """Return where in its program the thread was for most of a cause; None: not known."""
    if cause.kind in OWN_TIME and cause.lines.first is not None:
        return cause.lines.first.stack
    longest = max(
        (evidence for evidence in cause.evidence if evidence.stack is not None),
        key=lambda evidence: evidence.end_unix_ns - evidence.start_unix_ns,
        default=None,
    )
    return None if longest is None else longest.stack


class Effect(NamedTuple):
    """
    What went wrong, or an example that took no longer than others.

    ``api`` is empty if a framework reports that memory ran out, or a driver that a device failed.
    It is the event of a network adapter's failure, and the operation of a collective that hangs
    outside calls. ``excess_ns`` is over the series' own median for the same kind and size class.
    ``trace_id`` and ``span_id`` are of the span that shows it; ``stack`` is where in the program it
    was. The duration of an effect that ``began_before_capture`` is a lower bound.
    """

    kind: EffectKind
    process: Program
    api: str
    tid: int
    comm: str
    start_unix_ns: int
    duration_ns: int
    excess_ns: int
    trace_id: bytes
    span_id: bytes
    stack: CallStack | None = None
    began_before_capture: bool = False


class Pin(NamedTuple):
    """A line whose blocks keep holes from being released; ``hole_bytes`` are those beside them."""

    place: Frame
    hole_bytes: int
    size_bytes: int
    blocks: int


class Failure(NamedTuple):
    """
    A request for memory that failed.

    Attributes:
        device: The number of the device, as the process numbers it.
        unix_ns: When; 0: not known.
        place: Where it was made.
        asked_bytes: The requested size.
        device_free_bytes: What the device had free; None: not known.
        reserved_bytes: What the allocator held.
        live_bytes: The part of it in use.
        hole_bytes: The free part of it that could have served the request.
        largest_hole_bytes: The largest such hole; None: not known.
        elsewhere_bytes: Free for other streams, pools or sizes only, if known.
        outside_bytes: Taken by other processes at least, or by this one without the allocator;
            None: not
          known.
        capacity_bytes: The size of the device's memory; 0: not known.
        is_expandable: Whether its segments can grow; None: not known.
        cause: Why.
        holders: The lines that held memory in use, the most first.
        pins: The lines whose blocks kept holes apart, the most bytes first.
        leaks: The lines that hold more from phase to phase, the most first.
        pool: The pool of the request.
        stream: The stream of the request.
        whole_bytes: Part of ``hole_bytes`` that no block is beside, so that the device could have
            it back.
        was_freed_late: Whether the hole that would have served it became free only during the
            attempt.
        kept: What is free for others, and what its own pool does not release; the most first.
    """

    device: int
    unix_ns: int
    place: Frame
    asked_bytes: int
    device_free_bytes: int | None
    reserved_bytes: int
    live_bytes: int
    hole_bytes: int
    largest_hole_bytes: int | None
    elsewhere_bytes: int
    outside_bytes: int | None
    capacity_bytes: int
    is_expandable: bool | None
    cause: CauseKind
    holders: tuple[LineHolding, ...]
    pins: tuple[Pin, ...]
    leaks: tuple[LineHolding, ...]
    pool: tuple[int, int] = SHARED
    stream: int = 0
    whole_bytes: int = 0
    was_freed_late: bool = False
    kept: tuple[Kept, ...] = ()

    @property
    def lacking_bytes(self) -> int:
        """What was needed beyond the free memory of the device, if that is known."""
        return max(0, self.asked_bytes - (self.device_free_bytes or 0))


class Chain(NamedTuple):
    """
    One effect and its causes, ranked by the time that they add to what is usual.

    ``failure`` describes a request for memory, if the effect is its failure.
    """

    id: str
    effect: Effect
    causes: tuple[Cause, ...]
    unexplained_ns: int
    severity: Severity
    failure: Failure | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it is reported before slow effects: it took no time and is worse."""
        return self.failure is not None or self.effect.kind == EffectKind.DEVICE_FAULT


class Incident(NamedTuple):
    """
    Effects of the same causes in one window, or a cause that takes much of all time there.

    ``lost_ns`` is the sum of their excess that has a cause; for a ``chronic`` one, all lost time.
    ``effects`` counts them, and ``chains`` are the worst of them. A chronic one has the ``process``
    whose time it was, and ``examples``: recorded calls and gaps whose time is mostly due to its
    leading cause. They are not effects of it, whether they took longer than usual or not.
    ``severity_reason`` explains the severity in words.
    """

    id: str
    severity: Severity
    start_unix_ns: int
    end_unix_ns: int
    lost_ns: int
    causes: tuple[Cause, ...]
    unexplained_ns: int
    advice: tuple[str, ...]
    chains: tuple[Chain, ...]
    effects: int = 0
    chronic: bool = False
    process: Program | None = None
    examples: tuple[Chain, ...] = ()
    severity_reason: str = ""

    @property
    def processes(self) -> tuple[Program, ...]:
        """The processes whose time was lost, each once."""
        found = [chain.effect.process for chain in self.chains]
        found += [self.process] if self.process else []
        return tuple({key_of(program): program for program in found}.values())


NodeState = TimeState | CauseKind | NodeKind
"""What a node of a time tree is."""


class TimeNode(NamedTuple):
    """
    A part of the time of launching threads.

    Attributes:
        state: On the first level a state of time; below it a kind of cause. ``note`` gives the
            reason of ``UNKNOWN``. Below work of a program, ``LINE``.
        time_ns: The time.
        share: Of the whole tree.
        who: What had the CPU or was waited for; below that, the thread whose time this is.
        where: Where in the program most of it was, among intervals that were sent one by one.
        samples: The number of these. For work of a program, the number of on-CPU samples; without
            any,
          ``where`` is where it lost its CPU, or the call after it.
        children: What it consists of; empty: no more is known.
        resource: The file, socket or similar that was waited for.
        note: A remark, in words.
        work: What most of it was, if its frames show that.
    """

    state: NodeState
    time_ns: int
    share: float
    who: Who | None = None
    where: Where | None = None
    samples: int = 0
    children: tuple["TimeNode", ...] = ()
    resource: Resource | None = None
    note: str = ""
    work: str = ""

    def child(self, state: NodeState) -> "TimeNode | None":
        """Return the largest child with a state."""
        return next((node for node in self.children if node.state == state), None)


class VerdictClass(NamedTuple):
    """
    A class that a verdict names.

    Attributes:
        name: The class.
        share: Of the time of the launching threads.
        path: What dominates it: nodes of the time tree without children, its state first. Each is
            at least
          half of the first one, except one of many processes that had a CPU that was waited for: there it
          is the one that had it longest.
    """

    name: TimeClass
    share: float
    path: tuple[TimeNode, ...] = ()


class Verdict(NamedTuple):
    """
    What bounds a process in a window, with the numbers.

    ``budget_ns`` is the time of its launching threads by state. ``shares`` are the shares of the classes
    that the verdict compares, and ``bounds`` those that it names, by their time. ``time_tree``
    shows what kept the threads waiting, and ``lines`` the work behind the first of ``bounds``:
    their own, or that of the threads that they waited for.
    """

    process: Program
    verdict: Bound
    shares: Mapping[TimeClass, float]
    budget_ns: Mapping[TimeState, int]
    time_tree: TimeNode | None = None
    lines: CodeLines = NO_LINES
    bounds: tuple[VerdictClass, ...] = ()
