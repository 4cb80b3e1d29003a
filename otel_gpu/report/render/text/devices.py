"""Use of devices, and causes of idle time, as text."""

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from rich.console import RenderableType
from rich.text import Text

from otel_gpu.report.devices.types import (
    Advice,
    CriticalPathRow,
    DeviceReport,
    GapRow,
    IdleRow,
    KernelRow,
    LaunchRow,
    StepTimePart,
)
from otel_gpu.report.render import fields
from otel_gpu.report.render.text.tables import draw_table
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_share,
    format_size,
    name_of_device,
    printable,
    short_function,
)
from otel_gpu.report.wording.shares import SHOWN_SHARE, largest_first
from otel_gpu.report.wording.short_names import short_names

_MAX_ROWS = 10
_MAX_ADVICE = 12
_MAX_IDS = 3
_MAX_DEVICES = 64
_MOST_DETAILED = 2
_MAX_GATES = 24


def gate_sections(rows: Sequence[DeviceReport]) -> Iterator[tuple[str, Sequence[Text]]]:
    """Yield problems of the traces of all devices, those that prevent verdicts first."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for text in row.gate:
            rank = printable(row.source) if row.rank is None else f"rank {row.rank}"
            found.setdefault(text, []).append(f"{rank}, device {row.device}")
    if not found:
        return
    if len(rows) == 1:
        yield (
            f"What the trace of {name_of_device(rows[0])} cannot say",
            [Text(f"- {text}") for text in found],
        )
        return
    ranked = sorted(found.items(), key=lambda item: not item[0].endswith("unknown"))
    lines = [Text(f"- {_listed(names, len(rows))}: {text}") for text, names in ranked[:_MAX_GATES]]
    more = len(ranked) - _MAX_GATES
    yield (
        "What the traces cannot say",
        [*lines, *([Text(f"and {more:,} more", style="dim")] if more > 0 else [])],
    )


def _listed(names: Sequence[str], among: int) -> str:
    if len(names) == among:
        return f"all {among:,} devices"
    more = f" and {len(names) - _MAX_IDS:,} more" if len(names) > _MAX_IDS else ""
    return f"{'; '.join(names[:_MAX_IDS])}{more}"


def device_sections(row: DeviceReport) -> Iterator[tuple[str, Sequence[RenderableType]]]:
    """Yield headings with their contents."""
    of = name_of_device(row)
    window = format_duration(row.window_ns)
    yield f"Verdict for {of}: device time, {window}", list(verdict_lines(row))
    yield f"Where the time of {of} went", [draw_table(_PHASES, _phases(row))]
    if row.waits:
        yield f"Why {of} was idle", [draw_table(wait_fields(row), row.waits[:_MAX_ROWS])]
    if row.step_rows:
        usual = format_duration(row.step_median_ns or 0)
        heading = f"Steps of {of}: {row.steps:,}, the median {usual}"
        yield heading, [draw_table(STEP_FIELDS, row.step_rows[:_MAX_ROWS])]
    if path := row.critical:
        of_what = path.step or "the window"
        heading = f"What {of_what} of {of} waited for, in {format_duration(path.duration_ns)} (critical path)"
        yield heading, list(_critical(path))
    if row.kernels:
        whole_ns = sum(one.time_ns for one in row.kinds) or 1
        yield (
            f"What {of} did, by kind",
            [draw_table((*kind_fields(whole_ns), *_per_step(row.steps)), row.kinds[:_MAX_ROWS])],
        )
        yield (
            f"Its kernels and copies, {len(row.kernels):,} names",
            [draw_table(kernel_fields(row.kernels, whole_ns), row.kernels[:_MAX_ROWS])],
        )
    if row.copies:
        yield f"Copies of {of}, by where from and where to", [draw_table(_copies(row), row.copies)]
    if any(one.device_ns for one in row.operations):
        yield (
            "Operators, own time of device and host",
            [draw_table(OPERATION_FIELDS, row.operations[:_MAX_ROWS])],
        )


def device_overview(rows: Sequence[DeviceReport]) -> tuple[str, Sequence[RenderableType]]:
    """Return a heading, and a table with one row for each device, by rank."""
    has_ranks = any(row.rank is not None for row in rows)
    heading = count_of(len(rows), "rank" if has_ranks else "device")
    ordered = sorted(rows, key=lambda row: (row.rank is None, row.rank or 0))
    table = draw_table(_overview(has_ranks=has_ranks), ordered[:_MAX_DEVICES])
    more = len(rows) - _MAX_DEVICES
    lines: list[RenderableType] = [table, *([Text(f"and {more:,} more")] if more > 0 else [])]
    if len(rows) > _MOST_DETAILED:
        lines.append(
            Text(
                f"Below are the {_MOST_DETAILED} that computed least of their window. All are in --json and in "
                "otel-gpu report.",
                style="dim",
            )
        )
    return heading, lines


def detailed(rows: Sequence[DeviceReport]) -> Sequence[DeviceReport]:
    """Return the devices that are shown in full: of many, those with the least share of compute."""
    if len(rows) <= _MOST_DETAILED:
        return rows
    return sorted(rows, key=lambda row: row.compute_ns / (row.window_ns or 1))[:_MOST_DETAILED]


def _overview(*, has_ranks: bool) -> tuple[fields.Field, ...]:
    names = (fields.figure("rank", _rank, _unless_unknown, rank=0),) if has_ranks else ()
    device = fields.figure("device", "device", fields.in_full, rank=3 if has_ranks else 0)
    return (*names, device, *OVERVIEW)


def advice_lines(advice: Sequence[Advice]) -> Iterator[Text]:
    """Yield the advice."""
    for one in advice[:_MAX_ADVICE]:
        gain = (
            f"at most {format_share(one.gain_at_most)}"
            if one.gain_at_most is not None
            else "unknown"
        )
        yield Text(f"do: {printable(one.text)}", style="green")
        ids = ", ".join(one.evidence[:_MAX_IDS])
        yield Text(f"    gain {gain}; see {ids}; check: {one.check}", style="dim")
    if len(advice) > _MAX_ADVICE:
        yield Text(f"and {len(advice) - _MAX_ADVICE:,} more", style="dim")


def verdict_lines(row: DeviceReport) -> Iterator[Text]:
    """Yield a device's verdict, and figures of its kernels, launches and collectives."""
    line = Text()
    line.append(row.verdict, style="bold")
    if row.useful is not None and row.lost is not None:
        lost = [
            f"{name} {format_share(time_ns / row.window_ns)}"
            for name, time_ns in largest_first(row.lost, SHOWN_SHARE * row.window_ns)
        ]
        line.append(f": it computed {format_share(row.useful)} of the window")
        line.append(f"; lost: {', '.join(lost)}" if lost else "")
    yield line
    estimates = [
        ("kernels ran", row.utilization),
        ("processors with work (estimate)", row.processors),
        ("occupancy (estimate)", row.occupancy),
        ("communication overlapped", row.overlap),
    ]
    known = [f"{name} {format_share(value)}" for name, value in estimates if value is not None]
    yield Text("; ".join([*known, *_tensor_cores(row)]))
    one = row.launches
    if one.linked and one.median_delay_ns is not None:
        yield Text(
            f"{_launches(one)}, {format_duration(one.median_delay_ns)} from call to start in the "
            f"median, at most {one.most_queued:,} queued; {one.shorter:,} took less than their call"
        )
    if row.collectives:
        yield Text(
            f"{row.collectives.matched:,} collectives with other ranks: it waited "
            f"{format_duration(row.collectives.waited_ns)}, and came last in {row.collectives.last:,}"
        )


def _part(heading: str, name: str) -> fields.Field:
    # Empty if unknown.
    def share(row: DeviceReport) -> float:
        time_ns = getattr(row, name)
        return math.nan if time_ns is None else time_ns / (row.window_ns or 1)

    return fields.figure(
        heading, share, lambda value: "" if math.isnan(value) else format_share(value)
    )


def _rank(row: DeviceReport) -> float:
    return math.nan if row.rank is None else row.rank


def _unless_unknown(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.0f}"


def _waited(row: DeviceReport) -> int:
    return row.collectives.waited_ns if row.collectives else 0


def _launches(row: LaunchRow) -> str:
    if row.graphs == row.linked:
        return count_of(row.graphs, "graph launch")
    graphs = f", {row.graphs:,} of them of graphs" if row.graphs else ""
    return f"{count_of(row.linked, 'launch')}{graphs}"


def _tensor_cores(row: DeviceReport) -> Iterator[str]:
    used, unknown = row.tensor_core_share, row.tensor_core_unknown_share
    if used is None or unknown is None:
        return
    name = "matrix cores" if row.model.startswith("AMD") else "tensor cores"
    if unknown < SHOWN_SHARE:
        yield f"{name}, of kernel time {format_share(used)}"
    elif used:
        yield f"{name}, of kernel time {format_share(used)}, and not known of {format_share(unknown)}"
    else:
        yield f"{name}: not known of {format_share(unknown)} of kernel time"


def _critical(path: CriticalPathRow) -> Iterator[RenderableType]:
    whole = path.duration_ns or 1
    shares = (f"{name} {format_share(time_ns / whole)}" for name, time_ns in path.bounds.items())
    yield Text(", ".join(shares))
    names = short_names(one.name for one in path.rows)
    table = (
        fields.text("bound by", attrgetter("bound")),
        fields.figure("time", "time_ns", format_duration),
        fields.figure("share", lambda one: one.time_ns / whole, format_share),
        fields.figure("times", "times", fields.in_full),
        fields.text("what", lambda one: names[one.name]),
    )
    yield draw_table(table, path.rows[:_MAX_ROWS])


def _phases(row: DeviceReport) -> list[tuple[str, int, float]]:
    parts = [
        ("computing", row.compute_ns),
        ("communication, exposed", row.exposed_communication_ns),
        ("copies, exposed", row.exposed_copy_ns),
        ("idle", row.idle_ns),
        ("the window", row.window_ns),
    ]
    whole = row.window_ns or 1
    return [(name, time_ns, time_ns / whole) for name, time_ns in parts if time_ns is not None]


def wait_fields(row: DeviceReport) -> tuple[fields.Field, ...]:
    """Return the fields of idle time by wait."""
    whole = row.window_ns or 1
    waits: Sequence[IdleRow | GapRow] = (*row.waits, *row.gaps)
    names = short_names(name for one in waits for name in (one.name, one.python))
    return (
        fields.text("cause", attrgetter("cause")),
        fields.figure("time", "time_ns", format_duration),
        fields.figure("share", lambda one: one.time_ns / whole, format_share),
        fields.text("what the launching thread did", lambda one: names[one.name]),
        fields.text("in Python", lambda one: names[one.python], rank=2),
    )


def kind_fields(whole_ns: int) -> tuple[fields.Field, ...]:
    """Return the fields of device time by kind, as shares of a whole."""
    return (
        fields.text("kind", attrgetter("kind")),
        fields.figure("times", "times", fields.in_full),
        fields.figure("time", "time_ns", format_duration),
        fields.figure("share", lambda one: one.time_ns / whole_ns, format_share),
    )


def _per_step(steps: int) -> tuple[fields.Field, ...]:
    if not steps:
        return ()
    return (fields.figure("per step", lambda one: one.time_ns / steps, format_duration),)


def _copies(row: DeviceReport) -> tuple[fields.Field, ...]:
    whole = row.window_ns or 1
    return (
        fields.text("way", lambda one: f"{one.way or '?'}{', pageable' if one.pageable else ''}"),
        fields.figure("times", "times", fields.in_full),
        fields.figure("bytes", "size_bytes", format_size),
        fields.figure("time", "time_ns", format_duration),
        fields.figure("of the window", lambda one: one.time_ns / whole, format_share),
    )


def kernel_fields(kernels: Sequence[KernelRow], whole_ns: int) -> tuple[fields.Field, ...]:
    """Return the same fields by kernel; different kernels have different names."""
    names = short_names(one.name for one in kernels)
    return (
        fields.text("name", lambda one: names[one.name]),
        *kind_fields(whole_ns),
        fields.figure("mean", lambda one: one.time_ns / max(1, one.times), format_duration, rank=2),
        fields.figure("longest", "longest_ns", format_duration, rank=2),
    )


OVERVIEW: tuple[fields.Field, ...] = (
    fields.text("verdict", attrgetter("verdict")),
    fields.figure("window", "window_ns", format_duration),
    fields.figure("step", lambda row: row.step_median_ns or 0, fields.unless_nothing),
    _part("computing", "compute_ns"),
    _part("communication", "exposed_communication_ns"),
    _part("copies", "exposed_copy_ns"),
    _part("idle", "idle_ns"),
    fields.figure("waited for others", _waited, fields.unless_nothing, rank=2),
)
"""The cells of one of several devices, after its name."""
_PHASES: tuple[fields.Field, ...] = (
    fields.text("device time", lambda part: part[0]),
    fields.figure("", lambda part: part[1], format_duration),
    fields.figure("share", lambda part: part[2], format_share),
)
STEP_FIELDS: tuple[fields.Field, ...] = (
    fields.text("step", attrgetter("name")),
    fields.figure("took", "duration_ns", format_duration),
    fields.figure("computing", "compute_ns", format_duration),
    fields.figure("communication", "exposed_communication_ns", format_duration),
    fields.figure("copies", "exposed_copy_ns", format_duration),
    fields.figure(
        "idle", lambda step: math.nan if step.idle_ns is None else step.idle_ns, format_duration
    ),
    fields.figure(
        "data loader", lambda step: step.parts.get(StepTimePart.DATA_LOADER, 0), format_duration
    ),
    fields.text("", attrgetter("set_aside")),
)
OPERATION_FIELDS: tuple[fields.Field, ...] = (
    fields.text("operator", attrgetter("name")),
    fields.figure("times", "times", fields.in_full),
    fields.figure("device", "device_ns", format_duration),
    fields.figure("host", "host_ns", format_duration),
    fields.text("inputs", lambda one: short_function(one.shapes), rank=2),
)
