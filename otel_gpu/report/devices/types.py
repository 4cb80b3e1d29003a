"""
Rows of device use in a document.

They contain device time, from sources that record it. Times are nanoseconds; None: the source lacks
the value, and ``gate`` has the reason.
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

    ``compute + exposed_communication + exposed_copy + idle`` is its duration. ``parts`` splits the
    same time by activity, on the device or else on the host. ``set_aside`` is the reason why
    medians exclude it.
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
    """Idle time of a device: the cause, the host's activity, and its Python function."""

    cause: IdleCause
    name: str
    python: str
    time_ns: int


class GapRow(NamedTuple):
    """A long interval in which a device was idle."""

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

    Times exclude nested operators; ``device_ns`` is that of launched work.
    """

    id: str
    name: str
    shapes: str
    times: int
    host_ns: int
    device_ns: int


class CopyRow(NamedTuple):
    """All copies of one direction; ``pageable``: the host's memory is not pinned."""

    way: str
    pageable: bool
    times: int
    time_ns: int
    size_bytes: int


class LaunchRow(NamedTuple):
    """
    Launches whose work was recorded; the launch of a graph is one.

    ``graphs``: launches of graphs. ``early``: work that seems to begin before its launch.
    ``shorter``: work that took less time than its launch. ``full_queue_ns``: time that launches
    waited because the queue was full.
    """

    linked: int
    graphs: int
    median_delay_ns: int | None
    early: int
    shorter: int
    most_queued: int
    full_queue_ns: int


class CollectiveRow(NamedTuple):
    """Collectives that other ranks have too: waiting time, and how often this rank was last."""

    matched: int
    waited_ns: int
    last: int


class CriticalRow(NamedTuple):
    """The parts of a critical path with the same bound and name."""

    bound: str
    name: str
    times: int
    time_ns: int


class CriticalPathRow(NamedTuple):
    """
    The critical path of a step; ``step`` is empty for the whole window.

    ``bounds`` split its duration: host (operator, call), device (kernel), between both (launch,
    sync), between work of one stream (queue), and unknown. ``rows`` are the longest.
    """

    step: str
    start_unix_ns: int
    duration_ns: int
    bounds: Mapping[str, int]
    rows: tuple[CriticalRow, ...]


class DeviceReport(NamedTuple):
    """
    A program's use of one device.

    ``compute + exposed_communication + exposed_copy + idle`` is the window.

    Attributes:
        id: Of this row; ids of its parts begin with it.
        overlap: The share of communication that ran in parallel to compute.
        idle: By cause; ``waits`` has details, and ``gaps`` are the longest.
        step_median_ns: Of the steps that count.
        useful: The share of the window with compute.
        lost: The rest of the window, by reason.
        utilization: The share of the steps, or of the window, in which kernels ran.
        occupancy: Estimated by the profiler; so is ``processors``, the share of the device's
            processors that had work.
        tensor_core_share: Share of kernel time in tensor or matrix cores, by names of kernels.
            Kernels with undecidable names are ``tensor_core_unknown_share``.
        gate: Problems of the source that concern this device.
        critical: Of the median step.
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
    An advice.

    Attributes:
        text: What to do, and the figure behind it.
        evidence: Ids of devices, gaps, steps, kernels and operations that show it.
        gain_at_most: Upper bound of the share of the window that it can save; None: not known.
        check: The figure that changes if it helps.
    """

    text: str
    evidence: tuple[str, ...]
    gain_at_most: float | None
    check: str
