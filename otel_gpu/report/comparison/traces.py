"""A side of a comparison from traces: work and times per step, or per window."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TypeVar

from otel_gpu.explain.traces.device_use import DeviceUse, examine
from otel_gpu.explain.traces.trace_health import Fault
from otel_gpu.report.comparison.comparison import Basis, DeltaKind, Figures, Side
from otel_gpu.state.traces.device_steps import PROFILER_STEP, counted
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.wire.device_activity import DeviceTrace, HostWork, Work

T = TypeVar("T")
MAX_DEVICES = 1_024

_FATAL = {
    Fault.REJECTED: "too much of it is damaged",
    Fault.WRONG_DURATIONS: "durations of it are wrong",
    Fault.DISORDERED: "its times are wrong",
}


class TraceSide:
    """Adds the traces of a run, one after another, without keeping them."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._programs: set[str] = set()

    def take(self, trace: DeviceTrace) -> None:
        """Add one trace."""
        for use in examine(trace):
            if len(self._uses) < MAX_DEVICES:
                self._uses.append(_Use(use))

    def side(self, source: str) -> Side | None:
        """Return the side; None: no device work."""
        uses = self._uses
        if not uses:
            return None
        has_steps = all(use.steps_ns for use in uses)
        basis = Basis.STEP if has_steps else Basis.WINDOW
        # Devices of a job take their steps together, so they add no samples.
        times_ns = (
            [fmean(step) for step in zip(*(use.steps_ns for use in uses), strict=False)]
            if has_steps
            else [fmean(use.window_ns for use in uses)]
        )
        return Side(
            source=source,
            tool=uses[0].tool,
            basis=basis,
            times_ns=tuple(times_ns),
            devices=tuple(use.model for use in uses),
            ranks=next((use.ranks for use in uses if use.ranks), None),
            programs=frozenset(),
            work=_mean([use.work(basis) for use in uses]),
            operators=_mean([use.operators(basis) for use in uses]),
            shapes=_mean([use.shapes(basis) for use in uses]),
            grids=_mean([use.grids(basis) for use in uses]),
            figures=_mean([use.figures(basis) for use in uses]),
            has_stacks=any(use.has_stacks for use in uses),
            verdict="; ".join(sorted({use.verdict for use in uses})),
            faults=tuple(sorted({fault for use in uses for fault in use.faults})),
            notes=tuple(dict.fromkeys(note for use in uses for note in use.notes)),
        )


class _Use:
    def __init__(self, use: DeviceUse) -> None:
        trace, steps = use.trace, counted(use.steps)
        self.tool, self.ranks = trace.tool, trace.ranks
        self.model = use.model.name
        self.has_stacks = trace.has_stacks
        self.verdict = use.verdict.verdict
        self.window_ns = use.phases.window_ns
        self.steps_ns = [step.duration_ns for step in steps]
        self.faults = [
            _FATAL[one.fault] for one in use.health if one.is_fatal and one.fault in _FATAL
        ]
        self.notes = [
            f"{trace.source}: {step.name} is set aside: {step.set_aside}"
            for step in use.steps
            if step.set_aside
        ]
        # Counts over the window are divided by all steps, including those that are set aside.
        self._steps = max(1, len(use.steps))
        self._parts: Mapping[str, float] = {}
        if steps:
            self._parts = {name: fmean(one.parts[name] for one in steps) for name in steps[0].parts}
        self._phases = _phases(use)
        self._kernels = use.work.kernels
        self._operations = use.work.operations
        causes = use.idle_ns if use.is_reliable else {}
        self._causes = {cause.replace("_", " "): time_ns for cause, time_ns in causes.items()}
        if not use.is_reliable:
            self.notes.append(f"{trace.source}: why it was idle is not known")
        self._places: Counter[str] = Counter()
        for place, time_ns in use.places if use.is_reliable else ():
            if what := place.python or place.name:
                self._places[f"{what} ({place.cause.replace('_', ' ')})"] += time_ns
        self._shapes = _shapes(trace)
        self._grids = _grids(use)

    def work(self, basis: Basis) -> Mapping[str, float]:
        found: Counter[str] = Counter()
        for kernel in self._kernels:
            found[kernel.name] += kernel.times
        return _divided(found, self._per(basis))

    def operators(self, basis: Basis) -> Mapping[str, float]:
        found: Counter[str] = Counter()
        for operation in self._operations:
            if not PROFILER_STEP.fullmatch(operation.name):
                found[operation.name] += operation.times
        return _divided(found, self._per(basis))

    def shapes(self, basis: Basis) -> Mapping[tuple[str, str], float]:
        return _divided(self._shapes, self._per(basis))

    def grids(self, basis: Basis) -> Mapping[tuple[str, float], float]:
        return _divided(self._grids, self._per(basis))

    def figures(self, basis: Basis) -> Figures:
        per = self._per(basis)
        found: dict[tuple[DeltaKind, str], float] = {
            (DeltaKind.PART, name): time_ns
            for name, time_ns in self._parts.items()
            if basis is Basis.STEP
        }
        for kind, figures in (
            (DeltaKind.PHASE, self._phases),
            (DeltaKind.CAUSE, self._causes),
            (DeltaKind.LINE, self._places),
        ):
            found |= {(kind, name): time_ns / per for name, time_ns in figures.items()}
        sums: Counter[tuple[DeltaKind, str]] = Counter()
        for kernel in self._kernels:
            sums[DeltaKind.KERNEL_KIND, kernel.kind.replace("_", " ")] += kernel.total_ns
            sums[DeltaKind.KERNEL, kernel.name] += kernel.total_ns
        for operation in self._operations:
            # Old versions of the profiler write steps as operators.
            if not PROFILER_STEP.fullmatch(operation.name):
                sums[DeltaKind.OPERATION, operation.name] += operation.host_ns
        return found | {key: time_ns / per for key, time_ns in sums.items()}

    def _per(self, basis: Basis) -> int:
        return self._steps if basis is Basis.STEP else 1


def _phases(use: DeviceUse) -> Mapping[str, float]:
    phases = use.phases
    return {
        "computing": phases.compute_ns,
        "exposed communication": phases.exposed_communication_ns,
        "exposed copies": phases.exposed_copy_ns,
        "idle": phases.idle_ns,
    }


def _shapes(trace: DeviceTrace) -> Counter[tuple[str, str]]:
    # Counts of operator calls by shapes; bounded by the trace's own limit.
    host = trace.host
    pairs: Counter[tuple[int, int]] = Counter(
        (name, shape)
        for kind, name, shape in zip(host.kinds, host.names, host.shapes, strict=True)
        if kind == HostWork.OPERATION and shape
    )
    return Counter(
        {
            (trace.names[name], trace.shapes[shape]): count
            for (name, shape), count in pairs.items()
            if not PROFILER_STEP.fullmatch(trace.names[name])
        }
    )


def _grids(use: DeviceUse) -> Counter[tuple[str, float]]:
    activities, names = use.trace.activities, use.trace.names
    return Counter(
        (names[activities.names[row]], round(activities.blocks[row], 2))
        for row in use.timeline.rows
        if activities.kinds[row] == Work.KERNEL
        and use.kinds[activities.names[row]] is not KernelKind.COMMUNICATION
    )


def _divided(counts: Mapping[T, float], per: int) -> dict[T, float]:
    return {name: count / per for name, count in counts.items()}


def _mean(found: Iterable[Mapping[T, float]]) -> dict[T, float]:
    # The mean over devices; missing values count as 0.
    mappings = list(found)
    sums: defaultdict[T, float] = defaultdict(float)
    for one in mappings:
        for key, value in one.items():
            sums[key] += value
    return {key: value / len(mappings) for key, value in sums.items()}
