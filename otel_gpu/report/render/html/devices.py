"""Devices on a page: time, causes of idle time, and advice."""

from collections.abc import Iterator, Sequence
from typing import Any

from otel_gpu.report.devices.types import Advice, DeviceReport, GapRow
from otel_gpu.report.document import Document
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.html.shapes import MOST_ROWS, ShareBar, SharePart
from otel_gpu.report.render.html.tables import HtmlTable, table_of
from otel_gpu.report.render.html.timeline import IDLE_COLOURS
from otel_gpu.report.render.text.devices import (
    OPERATION_FIELDS,
    OVERVIEW,
    STEP_FIELDS,
    kernel_fields,
    kind_fields,
    verdict_lines,
    wait_fields,
)
from otel_gpu.report.wording.formats import (
    format_duration,
    format_offset,
    format_share,
    format_size,
    name_of_device,
)
from otel_gpu.report.wording.phrases import GPU, LOCK, MEMORY, OTHER
from otel_gpu.report.wording.sentences import Name
from otel_gpu.report.wording.shares import largest_first

MOST_REPORTS = 16
MOST_ADVICE = 24
_LEAST_SHARE = 0.002


def device_figures(document: Document) -> Iterator[tuple[str, str]]:
    """Yield figures of all devices together."""
    rows = document.devices
    idle = [
        row.idle_ns / row.window_ns for row in rows if row.idle_ns is not None and row.window_ns
    ]
    steps = [row for row in rows if row.step_median_ns]
    of_many = ("", "", "") if len(rows) == 1 else (", the longest", ", the least", ", the most")
    longest, least, most = of_many
    window_ns = max(row.window_ns for row in rows)
    computing = min(row.compute_ns / (row.window_ns or 1) for row in rows)
    usual_ns = max((row.step_median_ns or 0 for row in steps), default=0)
    yield "devices", f"{len(rows):,}"
    yield f"device time{longest}", format_duration(window_ns)
    yield f"computing{least}", format_share(computing)
    yield f"idle{most}", format_share(max(idle)) if idle else "unknown"
    yield f"steps{most}", f"{max(row.steps for row in rows):,}"
    yield f"median step{longest}", format_duration(usual_ns) if steps else "unknown"


def phase_parts(row: DeviceReport) -> list[SharePart]:
    """Return the parts of a device's time; unknown idle time is the empty rest."""
    parts = (
        (GPU, "computing", row.compute_ns),
        (LOCK, "communication, exposed", row.exposed_communication_ns),
        (MEMORY, "copies, exposed", row.exposed_copy_ns),
        ("whole", "idle", row.idle_ns),
    )
    return [_part(row, *one) for one in parts if one[2]]


def idle_parts(row: DeviceReport) -> list[SharePart]:
    """Return idle time by cause, as shares of the window."""
    ranked = largest_first(row.idle or {}, _LEAST_SHARE * row.window_ns)
    return [
        _part(row=row, tone=IDLE_COLOURS.get(cause, OTHER), name=cause, time_ns=time_ns)
        for cause, time_ns in ranked
    ]


def device_lines(row: DeviceReport) -> list[str]:
    """Return the verdict in words, and figures of launches and collectives."""
    return [line.plain for line in verdict_lines(row) if line.plain]


def device_tables(row: DeviceReport, origin_unix_ns: int) -> Iterator[tuple[str, HtmlTable]]:
    """Yield headings and tables; rows with a time show it relative to an origin (0: not)."""
    kernel_ns = sum(one.time_ns for one in row.kinds) or 1
    yield from _unless_empty(
        ("What it waited for", table_of(HtmlTable("What it waited for", _waits(row)), row.waits)),
        ("Its longest gaps", _timed(_gaps(row), row.gaps, origin_unix_ns)),
        ("Steps", _timed(_STEPS, row.step_rows, origin_unix_ns)),
        ("What it did, by kind", table_of(_with_bar("Kinds", kind_fields(kernel_ns)), row.kinds)),
        (
            "Kernels and copies",
            _named(_with_bar("Kernels", kernel_fields(row.kernels, kernel_ns)), row.kernels),
        ),
        ("Operators, own time of device and host", _named(_OPERATIONS, _worked(row))),
        ("Copies by way", table_of(_COPIES, row.copies)),
    )


def overview_table(document: Document) -> HtmlTable:
    """Return a row for each device."""
    return table_of(_OVERVIEW, document.devices)


def evidence_of(advice: Advice, document: Document) -> list[tuple[str, str]]:
    """Return the evidence of an advice: name, and the row's id if it is on the page."""
    return [(one, f"at-{one}" if _is_shown(one, document) else "") for one in advice.evidence]


def _is_shown(name: str, document: Document) -> bool:
    device, _, rest = name.partition("/")
    kind, _, number = rest.partition("/")
    if device not in {row.id for row in document.devices[:MOST_REPORTS]}:
        return False
    return not rest or (kind in _TABLES and number.isdigit() and int(number) < MOST_ROWS)


def _part(row: DeviceReport, tone: str, name: str, time_ns: int | None) -> SharePart:
    share = (time_ns or 0) / (row.window_ns or 1)
    return SharePart(tone=tone, name=name, share=share, beside=format_duration(time_ns or 0))


def _unless_empty(*found: tuple[str, HtmlTable]) -> Iterator[tuple[str, HtmlTable]]:
    return ((title, table) for title, table in found if table.rows)


def _named(empty: HtmlTable, rows: Sequence[Any]) -> HtmlTable:
    return table_of(empty._replace(ids=[f"at-{one.id}" for one in rows]), rows)


def _timed(empty: HtmlTable, rows: Sequence[Any], origin_unix_ns: int) -> HtmlTable:
    found = _named(empty, rows)
    if not origin_unix_ns:
        return found
    times = [(one.start_unix_ns - origin_unix_ns, one.duration_ns) for one in rows]
    return found._replace(times=times)


def _waits(row: DeviceReport) -> tuple[Field, ...]:
    cause, time, *rest = wait_fields(row)
    return cause, time, _bar(lambda one: IDLE_COLOURS.get(one.cause, OTHER)), *rest


def _gaps(row: DeviceReport) -> HtmlTable:
    def start(gap: GapRow) -> Cell:
        return Cell(format_offset(gap.start_unix_ns, row.start_unix_ns), gap.start_unix_ns)

    cause, _, _, *named = wait_fields(row)
    took = fields.figure("took", "duration_ns", format_duration)
    return HtmlTable("Its longest gaps", (cause, Field("from", start), took, *named))


def _worked(row: DeviceReport) -> Sequence[object]:
    return row.operations if any(one.device_ns for one in row.operations) else ()


def _bar(tone: fields.Read) -> Field:
    def cell(row: Any) -> Cell:  # noqa: ANN401 -- any noun
        return Cell(ShareBar(tone(row), row.time_ns), row.time_ns)

    return Field("", cell, is_text=True, about="Time, as a share of the largest")


def _with_bar(about: str, columns: Sequence[Field]) -> HtmlTable:
    return HtmlTable(about, (*columns, _bar(lambda _: GPU)))


_TABLES = frozenset({"gap", "step", "kernel", "operation"})
_STEPS = HtmlTable("Steps", STEP_FIELDS)
_OPERATIONS = HtmlTable("Operators", OPERATION_FIELDS)
_COPIES = HtmlTable(
    "Copies by way",
    (
        fields.text("way", lambda one: one.way or "unknown"),
        fields.text("host's memory", lambda one: "pageable" if one.pageable else ""),
        fields.TIMES,
        fields.TIME,
        fields.figure("bytes", "size_bytes", format_size),
    ),
)
_OVERVIEW = HtmlTable(
    "Devices",
    (
        fields.text("device", name_of_device),
        *OVERVIEW,
        fields.text("source", lambda row: Name(row.source)),
    ),
)
