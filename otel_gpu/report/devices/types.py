"""
The nouns of a document that say what devices did.

This is device time, from sources that record it. Times are nanoseconds; what a source cannot say
is None, and ``gate`` says why.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.explain.kinds import Bound
from otel_gpu.explain.traces.device_verdict import LossKind
from otel_gpu.explain.traces.idle_causes import IdleCause as IdleCause  # noqa: PLC0414 -- of rows of a report, too
from otel_gpu.state.traces.device_steps import StepTimePart as StepTimePart  # noqa: PLC0414 -- as IdleCause


class DeviceStepRow(NamedTuple):
    """
    One step of a program on one device.

    ``compute + exposed_communication + exposed_copy + idle`` is its duration. ``parts`` is the same time by
    who had it, on the device or else on the host. ``set_aside`` says why it counts in no median.
    """

    id: str
    name: str
    start_unix_ns: int
    duration_ns: int
    host_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int | None
    parts: Mapping[StepTimePart, int]
    set_aside: str


class IdleRow(NamedTuple):
    """What a device waited for: the cause, what its thread did, and in which function of Python."""

    cause: IdleCause
    name: str
    python: str
    time_ns: int


class GapRow(NamedTuple):
    """A long stretch in which a device did nothing."""

    id: str
    start_unix_ns: int
    duration_ns: int
    cause: IdleCause
    name: str
    python: str


class KernelRow(NamedTuple):
    """All activities of one name."""

    id: str
    name: str
    kind: str
    times: int
    time_ns: int
    longest_ns: int


class KindRow(NamedTuple):
    """All activities of one kind."""

    kind: str
    times: int
    time_ns: int


class OperationRow(NamedTuple):
    """
    All calls of one operator with inputs of one shape.

    Times are its own, without those of operators in it; that of the device is of what it launched.
    """

    id: str
    name: str
    shapes: str
    times: int
    host_ns: int
    device_ns: int


class CopyRow(NamedTuple):
    """All copies of one way; ``pageable``: the host's side can be paged out."""

    way: str
    pageable: bool
    times: int
    time_ns: int
    size_bytes: int


class LaunchRow(NamedTuple):
    """
    What can be said of calls whose work was recorded; a call that launches a graph is one.

    ``graphs``: calls that launched a graph. ``early``: work that seems to begin before its call.
    ``shorter``: work that took less time than its call. ``full_queue_ns``: how long launches had to
    wait for room.
    """

    linked: int
    graphs: int
    median_delay_ns: int | None
    early: int
    shorter: int
    most_queued: int
    full_queue_ns: int


class CollectiveRow(NamedTuple):
    """Collectives that other ranks have too: how long it waited in them, and how often it was last."""

    matched: int
    waited_ns: int
    last: int


class CriticalRow(NamedTuple):
    """All pieces of a critical path of one bound and name."""

    bound: str
    name: str
    times: int
    time_ns: int


class CriticalPathRow(NamedTuple):
    """
    What a step could not be shorter without; ``step`` is empty where it is all of the window.

    ``bounds`` are all of its duration: host (operator, call), device (kernel), between both (launch,
    sync), between work of one stream (queue), and unknown. ``rows`` are the longest.
    """

    step: str
    start_unix_ns: int
    duration_ns: int
    bounds: Mapping[str, int]
    rows: tuple[CriticalRow, ...]


class DeviceReport(NamedTuple):
    """
    How a program used one device.

    ``compute + exposed_communication + exposed_copy + idle`` is the window.

    Attributes:
        id: Of this row; ids of its parts begin with it.
        overlap: The share of communication during which it computed.
        idle: By cause; ``waits`` says more, and ``gaps`` are the longest.
        step_median_ns: Of the steps that count.
        useful: The share of the window in which it computed.
        lost: The rest of the window, by what it was lost to.
        utilization: The share of the steps, or of the window, in which kernels ran.
        occupancy: As estimated by who recorded it; so is ``processors``, the share of the device's
            processors that had work.
        tensor_core_share: Of the time of kernels, by their names, in tensor or matrix cores. Kernels whose
            names do not tell are ``tensor_core_unknown_share``.
        gate: What is wrong with the source, as far as it says anything about this device.
        critical: Of the step in the middle.
    """

    id: str
    source: str
    rank: int | None
    ranks: int | None
    device: int
    model: str
    start_unix_ns: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    idle_ns: int | None
    overlap: float | None
    idle: Mapping[str, int] | None
    waits: tuple[IdleRow, ...]
    gaps: tuple[GapRow, ...]
    steps: int
    step_median_ns: int | None
    step_rows: tuple[DeviceStepRow, ...]
    verdict: Bound
    useful: float | None
    lost: Mapping[LossKind, int] | None
    utilization: float | None
    occupancy: float | None
    processors: float | None
    tensor_core_share: float | None
    tensor_core_unknown_share: float | None
    kinds: tuple[KindRow, ...]
    kernels: tuple[KernelRow, ...]
    operations: tuple[OperationRow, ...]
    copies: tuple[CopyRow, ...]
    launches: LaunchRow
    collectives: CollectiveRow | None
    gate: tuple[str, ...]
    critical: CriticalPathRow | None


class Advice(NamedTuple):
    """
    Something to do.

    Attributes:
        text: What, and the figure that it rests on.
        evidence: Ids of what shows it: of devices, their gaps, steps, kernels and operations.
        gain_at_most: The share of the window that it can save, as an upper bound; None: not known.
        check: What will have changed if it helped.
    """

    text: str
    evidence: tuple[str, ...]
    gain_at_most: float | None
    check: str
