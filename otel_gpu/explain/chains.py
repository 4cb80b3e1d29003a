"""
The types of an explanation: effects, causes, chains, incidents, time trees, verdicts.

All are immutable. Times are nanoseconds. A ``share`` is of the effect's duration, and
``unexplained_ns`` is the time without a cause.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack, Program, Resource, Who, key_of
from otel_gpu.enrich.identity.identities import Culprit as Culprit  # noqa: PLC0414 -- a type of an explanation too
from otel_gpu.enrich.known_work import WorkName
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
from otel_gpu.formatting.field_types import NonEmpty, Signed, SpanId, TraceId
from otel_gpu.state.code_lines import NO_LINES, CodeLines
from otel_gpu.state.code_lines import Where as Where  # noqa: PLC0414 -- so is this
from otel_gpu.state.memory.snapshot import Kept, LineHolding
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory_snapshot import SHARED


class Evidence(NamedTuple):
    """
    One measured interval that a cause rests on.

    Attributes:
        culprit: Who had the CPU, held the lock or kept the thread waiting; None: not known.
        waker: Who ended the wait; None: not known.
        reason: Why the thread waited; of ``counters``, the counters that rose.
        functions: Functions of the kernel that the thread was in, innermost first.
        span_id: Of the exported span; empty: it has none.
        stack: Where in its program the thread was; absent: not known.
        is_cpu_idle: Of a ``run_queue`` wait: no thread had the CPU.
        trace_id: The trace of the span.
    """

    id: NonEmpty
    kind: EvidenceKind
    start_unix_ns: int
    end_unix_ns: int
    culprit: Culprit | None = None
    waker: Culprit | None = None
    reason: str = ""
    functions: tuple[str, ...] = ()
    span_id: SpanId = b""
    stack: CallStack | None = None
    is_cpu_idle: bool = False
    trace_id: TraceId = b""


class DeviceTrouble(NamedTuple):
    """
    What was wrong with a device: why its clocks were limited and to what, or its error.

    Attributes:
        device: Its UUID, else its place on the bus; empty: not known.
        xid: NVIDIA's number of the error; 0: none was reported.
        uncorrected: Memory errors that could not be corrected.
        reason: Why its clocks were limited, as ``gpu.clock.limit.reason``; empty: they were not.
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

    Attributes:
        share: Of the effect's duration.
        culprit: Who caused it; None: not known, or no process did.
        evidence: The measured intervals.
        via: The causes of this cause, found by following the thread that ended the wait; their
            times are parts of this one's.
        resource: The file, address or collective that was waited for; absent: not known.
        lines: The lines that a thread worked on in that time, those with the most samples first:
            the thread itself for its own work and unexplained time, the culprit for a wait for a
            CPU, and the other threads of the process for the GIL if its holder is not known. The
            time is measured; samples only show where it went.
        trouble: Of ``gpu_clocks`` and ``gpu_fault``: what was wrong with the device.
        others: Causes just as much as ``culprit``: of a collective that several ranks did not call,
            all but the first of them.
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

    Attributes:
        api: The call, or the call after a gap; the event of a network adapter's failure; the
            operation of a collective that hangs outside calls. Empty if a framework reports that
            memory ran out, or a driver that a device failed.
        comm: The name of the thread.
        excess_ns: The time above the median of calls of the same kind and size class.
        trace_id: The trace of the span that shows it; empty: none does.
        span_id: The span that shows it; empty: none does.
        stack: Where the call was made, or where its thread hangs; absent: not known.
        began_before_capture: Its entry was not seen: the duration is a lower bound.
    """

    kind: EffectKind
    process: Program
    api: str
    tid: Signed
    comm: str
    start_unix_ns: int
    duration_ns: int
    excess_ns: int
    trace_id: TraceId
    span_id: SpanId
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

    Attributes:
        unexplained_ns: Time of the effect without a cause.
        failure: Of an effect ``out_of_memory``: the request that failed. Its effect and its cause
            took no time.
    """

    id: NonEmpty
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

    Attributes:
        lost_ns: The excess of the effects that has a cause; of a chronic incident all lost time.
        unexplained_ns: Time of the effects without a cause.
        chains: The worst chains that are listed; there can be more effects.
        effects: The number of slow, failed or hung calls and slow gaps.
        chronic: Whether a cause takes much of all time of the launching threads, and not only of
            that of effects.
        process: Of a chronic incident: whose time it was; None: see its chains.
        examples: Of a chronic incident: recorded calls and gaps whose time is mostly due to its
            leading cause, the most first. They are not effects of it, whether they took longer than
            usual or not.
        severity_reason: Why it is that severe, in words: what the host lost and the bound that this
            missed, or why it is not a fault of the host.
    """

    id: NonEmpty
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
        state: ``all``; on the first level below it a state of time, then kinds of causes. Below
            work of a program, ``line``. ``other``: smaller ones together; ``unknown``: see
            ``note``.
        share: Of the whole tree.
        who: What had the CPU or was waited for; below that, the thread whose time this is. None:
            not known.
        where: Where in the program most of it was, among intervals that were sent one by one. None:
            not known.
        samples: The number of these. For work of a program, the number of on-CPU samples; without
            any, ``where`` is where it lost its CPU, or the call after it.
        children: Its parts, which sum to it; empty: no more is known.
        resource: The file, socket or similar that was waited for.
        note: A remark on what is not known or left out, in words.
        work: What most of it was, by its frames; absent: not known.
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
    work: WorkName = ""

    def child(self, state: NodeState) -> "TimeNode | None":
        """Return the largest child with a state."""
        return next((node for node in self.children if node.state == state), None)


class VerdictClass(NamedTuple):
    """
    A class that a verdict names.

    Attributes:
        name: The class, a key of ``verdict_shares``.
        share: Of the time of the launching threads.
        path: What dominates it: nodes of the time tree without children, its state first. Each is
            at least half of the first one, except one of many processes that had a CPU that was
            waited for: there it is the one that had it longest.
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
