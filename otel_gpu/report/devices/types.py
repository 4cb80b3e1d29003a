"""
Rows of device use in a document.

They contain device time, from sources that record it. Times are nanoseconds.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from otel_gpu.explain.kinds import Bound
from otel_gpu.explain.traces.device_verdict import LossKind
from otel_gpu.explain.traces.idle_causes import IdleCause as IdleCause  # noqa: PLC0414 -- of rows of a report, too
from otel_gpu.formatting.field_types import NonEmpty
from otel_gpu.state.traces.critical_path import PathBound
from otel_gpu.state.traces.device_steps import StepTimePart as StepTimePart  # noqa: PLC0414 -- as IdleCause


class DeviceStepRow(NamedTuple):
    """
    One step of a program on one device.

    Its duration is the sum of ``compute_ns``, ``exposed_communication_ns``, ``exposed_copy_ns`` and
    ``idle_ns``.

    Attributes:
        host_ns: Its duration on the host.
        idle_ns: None: the source lacks it.
        parts: The duration by activity, of the device or else of the host.
        set_aside: Why medians exclude it; empty: they include it.
    """

    id: NonEmpty
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
    """
    Idle time of a device.

    Attributes:
        name: What the thread did whose launch ended the time.
        python: The Python function in which it did that.
    """

    cause: IdleCause
    name: str
    python: str
    time_ns: int


class GapRow(NamedTuple):
    """
    A long interval in which a device was idle.

    Attributes:
        name: What the thread did whose launch ended it.
        python: The Python function in which it did that.
    """

    id: NonEmpty
    start_unix_ns: int
    duration_ns: int
    cause: IdleCause
    name: str
    python: str


class KernelRow(NamedTuple):
    """
    All activities of one name.

    Attributes:
        times: The number of activities.
    """

    id: NonEmpty
    name: str
    kind: str
    times: int
    time_ns: int
    longest_ns: int


class KindRow(NamedTuple):
    """
    All activities of one kind.

    Attributes:
        times: The number of activities.
    """

    kind: str
    times: int
    time_ns: int


class OperationRow(NamedTuple):
    """
    All calls of one operator with inputs of one shape.

    Times exclude nested operators.

    Attributes:
        times: The number of calls.
        device_ns: Device time of the work that they launched.
    """

    id: NonEmpty
    name: str
    shapes: str
    times: int
    host_ns: int
    device_ns: int


class CopyRow(NamedTuple):
    """
    All copies of one direction.

    Attributes:
        way: ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP`` or empty.
        pageable: Whether the host's memory is not pinned.
        times: The number of copies.
    """

    way: str
    pageable: bool
    times: int
    time_ns: int
    size_bytes: int


class LaunchRow(NamedTuple):
    """
    Launches whose work was recorded.

    Attributes:
        linked: The number of launches; that of a graph is one.
        graphs: The number of launches of graphs.
        median_delay_ns: From the launch to the start of the work; None: not known.
        early: The number of launches whose work seems to begin before them.
        shorter: The number of launches that took longer than their work.
        most_queued: The most launches that waited for the device at one time.
        full_queue_ns: Time that launches waited because the queue was full.
    """

    linked: int
    graphs: int
    median_delay_ns: int | None
    early: int
    shorter: int
    most_queued: int
    full_queue_ns: int


class CollectiveRow(NamedTuple):
    """
    Collectives that other ranks have too.

    Attributes:
        matched: The number of collectives.
        waited_ns: Time that this rank waited for others.
        last: How often this rank came last, so that others waited for it.
    """

    matched: int
    waited_ns: int
    last: int


class CriticalRow(NamedTuple):
    """
    The segments of a critical path with the same bound and name.

    Attributes:
        times: The number of segments.
    """

    bound: PathBound
    name: str
    times: int
    time_ns: int


class CriticalPathRow(NamedTuple):
    """
    The critical path of a step: what it could not be shorter without.

    Attributes:
        step: The step; empty: the whole window.
        bounds: The duration by bound: host (``operator``, ``call``), device (``kernel``), between
            both (``launch``, ``sync``), between work of one stream (``queue``), and ``unknown``.
        rows: The longest parts.
    """

    step: str
    start_unix_ns: int
    duration_ns: int
    bounds: Mapping[PathBound, int]
    rows: tuple[CriticalRow, ...]


class DeviceReport(NamedTuple):
    """
    A program's use of one device.

    The window is the sum of ``compute_ns``, ``exposed_communication_ns``, ``exposed_copy_ns`` and
    ``idle_ns``. None: the source lacks the value, and ``gate`` has the reason.

    Attributes:
        id: Of this row; ids of its parts begin with it.
        source: The file.
        rank: The rank of the process.
        ranks: The number of ranks of the job.
        device: Its number; -1: not known.
        compute_ns: Fills count; work of two streams at the same time counts once.
        exposed_communication_ns: Communication without compute at the same time.
        exposed_copy_ns: Copies without compute or communication at the same time.
        overlap: The share of communication that ran in parallel to compute.
        idle: Idle time by cause; ``waits`` has details.
        waits: Idle time by what was waited for, the longest first.
        gaps: The longest idle intervals.
        steps: The number of steps.
        step_median_ns: Of the steps that are not set aside.
        useful: The share of the window with compute.
        lost: The rest of the window, by reason.
        utilization: The share of the steps, or else of the window, in which kernels ran.
        occupancy: Estimated by the profiler.
        processors: The share of the device's processors that had work, estimated by the profiler.
        tensor_core_share: Share of kernel time in tensor or matrix cores, by names of kernels.
        tensor_core_unknown_share: Share of kernel time whose names do not contain that.
        kinds: The most time first.
        kernels: The most time first.
        operations: By time of the device, then of the host.
        collectives: None: no other rank is known.
        gate: Problems of the source that concern this device.
        critical: Of the median step.
    """

    id: NonEmpty
    source: str
    rank: int | None
    ranks: int | None
    device: Annotated[int, Meta(ge=-1)]
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
    idle: Mapping[IdleCause, int] | None
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
    One thing to do.

    Attributes:
        text: What to do, and the figure behind it.
        evidence: Ids of devices, gaps, steps, kernels and operations that show it.
        gain_at_most: Upper bound of the share of the window that it can save; None: not known.
        check: The figure that changes if it helps.
    """

    text: str
    evidence: tuple[NonEmpty, ...]
    gain_at_most: float | None
    check: str
