"""Rows of device use, and advice, for a document."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from otel_gpu.explain.traces.device_use import DeviceUse, examine
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.report.devices.advice import advice_for, straggler_advice
from otel_gpu.report.devices.trace_warnings import describe_no_device, gate_line
from otel_gpu.report.devices.types import (
    Advice,
    CollectiveRow,
    CopyRow,
    CriticalPathRow,
    CriticalRow,
    DeviceReport,
    DeviceStepRow,
    GapRow,
    IdleRow,
    KernelRow,
    KindRow,
    LaunchRow,
    OperationRow,
)
from otel_gpu.state.traces.collectives import Key, find_waits
from otel_gpu.state.traces.critical_path import PathBound
from otel_gpu.state.traces.device_steps import StepTimePart, TracedStep, counted
from otel_gpu.wire.device_activity import DeviceTrace

MAX_ROWS: Final = 100
"""Of kernels, operators and waits of a device."""
MAX_STEP_ROWS: Final = 1_000
MAX_DEVICES: Final = 4_096


class DeviceRows:
    """
    Makes rows of traces, one after another, without keeping the traces.

    ``traces`` counts them.
    """

    def __init__(self) -> None:
        self.traces = 0
        self._rows: list[DeviceReport] = []
        self._advice: list[tuple[int, Advice]] = []
        self._notes: list[str] = []
        self._collectives: dict[int, Mapping[Key, int]] = {}

    def add(self, trace: DeviceTrace) -> None:
        """Add one trace."""
        self.traces += 1
        uses = examine(trace)
        if not uses:
            self._notes.append(describe_no_device(trace))
        for use in uses:
            if len(self._rows) >= MAX_DEVICES:
                return
            number = len(self._rows)
            self._rows.append(_row(f"{number}", use))
            self._advice += ((number, one) for one in advice_for(f"{number}", use))
            if use.collectives and use.is_reliable:
                self._collectives[number] = use.collectives

    def finish(self) -> tuple[tuple[DeviceReport, ...], tuple[Advice, ...], tuple[str, ...]]:
        """Return the rows, the advice and the notes."""
        waits = {one.rank: one for one in find_waits(self._collectives)}
        rows = [
            row._replace(collectives=CollectiveRow(*waits[number][1:])) if number in waits else row
            for number, row in enumerate(self._rows)
        ]
        advice = (*straggler_advice(rows), *_together(rows, self._advice))
        return tuple(rows), advice, tuple(dict.fromkeys(self._notes))


def _together(
    rows: Sequence[DeviceReport], advice: Iterable[tuple[int, Advice]]
) -> Iterator[Advice]:
    # Each advice once: for the device with the most gain, which is named, and a count of others.
    kinds: dict[str, list[tuple[int, Advice]]] = {}
    for number, one in advice:
        kinds.setdefault(one.check, []).append((number, one))
    for found in kinds.values():
        number, most = max(found, key=lambda pair: (pair[1].gain_at_most or 0.0, -pair[0]))
        evidence = dict.fromkeys(
            (*most.evidence, *(name for _, one in found for name in one.evidence))
        )
        others = {of for of, _ in found} - {number}
        more = f" and {len(others):,} more" if others else ""
        owner = f"{_named(rows[number], rows)}{more}: " if len(rows) > 1 else ""
        yield most._replace(text=f"{owner}{most.text}", evidence=tuple(evidence))


def _named(row: DeviceReport, rows: Sequence[DeviceReport]) -> str:
    if row.rank is not None:
        return f"rank {row.rank}"
    is_alone = sum(one.device == row.device for one in rows) == 1
    return f"device {row.device}" if is_alone else f"device {row.device} of {row.source}"


def _row(name: str, use: DeviceUse) -> DeviceReport:
    trace, phases, work = use.trace, use.phases, use.work
    base_ns = trace.base_unix_ns
    steps = counted(use.steps)
    covered_ns = sum(step.duration_ns for step in use.steps)
    busy_ns = sum(step.parts[StepTimePart.KERNEL] for step in use.steps)
    whole_ns = covered_ns or phases.window_ns or 1
    return DeviceReport(
        id=name,
        source=trace.source,
        rank=trace.rank,
        ranks=trace.ranks,
        device=use.device,
        model=use.model.name,
        start_unix_ns=base_ns + use.start_ns,
        window_ns=phases.window_ns,
        compute_ns=phases.compute_ns,
        communication_ns=phases.communication_ns,
        exposed_communication_ns=phases.exposed_communication_ns,
        copy_ns=phases.copy_ns,
        exposed_copy_ns=phases.exposed_copy_ns,
        idle_ns=phases.idle_ns if use.knows_idle else None,
        overlap=phases.overlap,
        idle=dict(Counter(use.idle_ns).most_common()) if use.is_reliable else None,
        waits=tuple(_waits(use)) if use.is_reliable else (),
        gaps=tuple(_gaps(name, use)) if use.is_reliable else (),
        steps=len(use.steps),
        step_median_ns=round(median(step.duration_ns for step in steps)) if steps else None,
        step_rows=tuple(
            _step_row(f"{name}/step/{number}", step, base_ns, knows_idle=use.knows_idle)
            for number, step in enumerate(use.steps[:MAX_STEP_ROWS])
        ),
        verdict=use.verdict.verdict,
        useful=use.verdict.useful if use.can_judge else None,
        lost=dict(use.verdict.lost_ns) if use.can_judge else None,
        utilization=(busy_ns if covered_ns else phases.compute_ns) / whole_ns
        if use.knows_idle
        else None,
        occupancy=work.occupancy,
        processors=None if work.processors_ns is None else work.processors_ns / whole_ns,
        tensor_core_share=work.tensor_ns(True) / work.kernel_ns if work.kernel_ns else None,  # noqa: FBT003 -- an answer
        tensor_core_unknown_share=work.tensor_ns(None) / work.kernel_ns if work.kernel_ns else None,
        kinds=tuple(KindRow(kind, *found) for kind, found in work.by_kind().items()),
        kernels=tuple(
            KernelRow(f"{name}/kernel/{number}", *one[:5])
            for number, one in enumerate(work.kernels[:MAX_ROWS])
        ),
        operations=tuple(
            OperationRow(f"{name}/operation/{number}", *one[:5])
            for number, one in enumerate(work.operations[:MAX_ROWS])
        ),
        copies=tuple(CopyRow(*one) for one in work.copies),
        launches=LaunchRow(
            use.launches.linked,
            use.launches.graphs,
            use.launches.median_delay_ns,
            *use.launches[3:],
        ),
        collectives=None,
        gate=tuple(gate_line(trace, one) for one in use.health),
        critical=_critical(use),
    )


def _waits(use: DeviceUse) -> Iterator[IdleRow]:
    for place, time_ns in use.places[:MAX_ROWS]:
        yield IdleRow(cause=place.cause, name=place.name, python=place.python, time_ns=time_ns)
    # The rest has a cause, too: all rows are all of the idle time.
    rest: Counter[IdleCause] = Counter()
    for place, time_ns in use.places[MAX_ROWS:]:
        rest[place.cause] += time_ns
    for cause, time_ns in rest.most_common():
        yield IdleRow(cause=cause, name="", python="", time_ns=time_ns)


def _gaps(name: str, use: DeviceUse) -> Iterator[GapRow]:
    for number, gap in enumerate(use.gaps):
        start_unix_ns = use.trace.base_unix_ns + gap.start_ns
        yield GapRow(f"{name}/gap/{number}", start_unix_ns, gap.duration_ns, *gap.place)


def _critical(use: DeviceUse) -> CriticalPathRow | None:
    if use.critical is None:
        return None
    step, path = use.critical
    bounds: Counter[PathBound] = Counter()
    for part in path.parts:
        bounds[part.bound] += part.time_ns
    return CriticalPathRow(
        step=step,
        start_unix_ns=use.trace.base_unix_ns + path.start_ns,
        duration_ns=path.end_ns - path.start_ns,
        bounds=dict(bounds.most_common()),
        rows=tuple(CriticalRow(*part) for part in path.parts[:MAX_ROWS]),
    )


def _step_row(name: str, step: TracedStep, base_ns: int, *, knows_idle: bool) -> DeviceStepRow:
    return DeviceStepRow(
        id=name,
        name=step.name,
        start_unix_ns=base_ns + step.start_ns,
        duration_ns=step.duration_ns,
        host_ns=step.host_ns,
        compute_ns=step.phases.compute_ns,
        exposed_communication_ns=step.phases.exposed_communication_ns,
        exposed_copy_ns=step.phases.exposed_copy_ns,
        idle_ns=step.phases.idle_ns if knows_idle else None,
        parts=step.parts,
        set_aside=step.set_aside,
    )
