"""What happened when: a few small charts over one axis of time."""

from collections.abc import Iterable, Sequence

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Incident
from otel_gpu.faces.html.bars import drawing, swatch
from otel_gpu.faces.html.elements import Child, Markup, element, number
from otel_gpu.faces.html.incidents import known
from otel_gpu.faces.html.measures import LOST, MEASURES, Measure, length_of, rate_of
from otel_gpu.faces.html.names import process_of
from otel_gpu.faces.html.phrases import GPU, MEMORY, WORK
from otel_gpu.faces.html.tables import Cell, Column, table
from otel_gpu.faces.tables import name_phase
from otel_gpu.findings.model import Report, Slot
from otel_gpu.findings.words import format_duration

MOST_PROCESSES = 8
MOST_INCIDENTS = 12
_WIDTH = 100.0
_HEIGHT = 10.0
_GAP = 0.3
_TICKS = 4
_LEAST_SHARE = 0.005
_MARK_HEIGHT = 7
_LEAST_HEIGHT = 20
_NS_PER_S = 1e9


def time_charts(report: Report) -> list[Markup]:
    """Charts over all processes together, then over each where there are several."""
    parts = [_charts(_slots_of(report, None), report, "all processes together")]
    images = [image for image in report.processes if _is_busy(_slots_of(report, image))]
    if len(images) > 1:
        parts += [
            element(
                "details",
                element("summary", "Only ", process_of(image)),
                _charts(_slots_of(report, image), report, "one process"),
            )
            for image in images[:MOST_PROCESSES]
        ]
    return parts


def has_charts(report: Report) -> bool:
    """Whether anything happened that could be drawn."""
    return _is_busy(_slots_of(report, None))


def _slots_of(report: Report, process: ProcessImage | None) -> list[Slot]:
    return [slot for slot in report.slots if slot.process is process]


def _is_busy(slots: Iterable[Slot]) -> bool:
    return any(slot.calls or slot.lost_ns for slot in slots)


def _charts(slots: Sequence[Slot], report: Report, about: str) -> Markup:
    is_all = about.startswith("all")
    rows = [_phases(slots)]
    if is_all and report.incidents:
        rows.append(_incidents(slots, report.incidents))
    rows += [_chart(measure, slots) for measure in MEASURES if _is_worth_drawing(measure, slots)]
    return element(
        "div",
        element("div", rows, _axis(slots), class_="card charts"),
        element("details", element("summary", "The same in figures"), _figures(slots)),
    )


def _is_worth_drawing(measure: Measure, slots: Sequence[Slot]) -> bool:
    return max(map(measure.value_of, slots)) > (_LEAST_SHARE if measure.is_share else 0)


def _chart(measure: Measure, slots: Sequence[Slot]) -> Markup:
    values = [measure.value_of(slot) for slot in slots]
    most = max(values)
    scale = max(most, 1.0) if measure.is_share else most
    blocks = [
        _column(measure, slot, value, scale, slots)
        for slot, value in zip(slots, values, strict=True)
        if value > 0
    ]
    label = [
        swatch(measure.tone),
        element("span", measure.name, class_="label"),
        " ",
        element("span", f"up to {measure.tell(most)}", class_="quiet"),
    ]
    about = f"{measure.about}; at most {measure.tell(most)}"
    return _row(label, drawing("chart", about, blocks))


def _column(
    measure: Measure, slot: Slot, value: float, scale: float, slots: Sequence[Slot]
) -> Markup:
    left, width = _place(slot, slots)
    height = value / scale * _HEIGHT
    return element(
        "rect",
        element("title", f"{_offset(slot, slots)}: {measure.tell(value)}"),
        class_=f"tone-{measure.tone}",
        x=number(left),
        width=number(width),
        y=number(_HEIGHT - height),
        height=number(height),
    )


def _phases(slots: Sequence[Slot]) -> Markup:
    blocks = []
    for slot in slots:
        left, width = _place(slot, slots)
        phase = name_phase(slot)
        blocks.append(
            element(
                "rect",
                element("title", f"{_offset(slot, slots)}: {phase}"),
                class_=f"tone-{_tone_of_phase(phase)}",
                x=number(left),
                width=number(width),
                y="0",
                height="10",
            )
        )
    seen = dict.fromkeys(_word_of_phase(name_phase(slot)) for slot in slots)
    names = [[swatch(_tone_of_phase(word)), word, " "] for word in seen]
    return _row(
        [
            element("span", "Phases", class_="label"),
            " ",
            element("span", names, class_="quiet keys"),
        ],
        drawing("chart band", f"Phases: {', '.join(seen)}", blocks),
    )


def _incidents(slots: Sequence[Slot], incidents: Sequence[Incident]) -> Markup:
    start_unix_ns, length_ns = _extent(slots)
    shown = incidents[:MOST_INCIDENTS]
    height = _HEIGHT / len(shown)
    links = []
    for index, incident in enumerate(shown):
        left = (incident.start_unix_ns - start_unix_ns) / length_ns * _WIDTH
        right = (incident.end_unix_ns - start_unix_ns) / length_ns * _WIDTH
        left, right = (min(max(edge, 0.0), _WIDTH) for edge in (left, right))
        mark = element(
            "rect",
            element("title", f"Incident {index + 1}: {format_duration(incident.lost_ns)} lost"),
            class_=f"mark mark-{known(incident.severity)}",
            x=number(min(left, _WIDTH - _GAP)),
            width=number(max(right - left, _GAP)),
            y=number(index * height),
            height=number(height * 0.8),
        )
        links.append(element("a", mark, href=f"#incident-{index + 1}"))
    about = f"When the incidents were: {len(shown)} marks"
    note = "the worst" if len(incidents) > len(shown) else ""
    label = [
        element("span", "Incidents", class_="label"),
        " ",
        element("span", note, class_="quiet"),
    ]
    return _row(
        label,
        drawing("marks", about, links, height=max(_LEAST_HEIGHT, _MARK_HEIGHT * len(shown))),
    )


def _axis(slots: Sequence[Slot]) -> Markup:
    _, length_ns = _extent(slots)
    ticks = [
        element("span", format_duration(length_ns * tick / _TICKS) if tick else "0")
        for tick in range(_TICKS + 1)
    ]
    return _row("", element("div", ticks, class_="axis", aria_hidden="true"))


def _row(label: Child, drawn: Markup) -> Markup:
    return element("div", element("div", label, class_="what"), drawn, class_="chart-row")


def _figures(slots: Sequence[Slot]) -> Markup:
    columns = (
        Column("from"),
        Column("calls/s"),
        Column("mean call"),
        Column("GPU wait"),
        Column("alloc + free/s"),
        Column("run queue"),
        Column("lost"),
        Column("phase", is_text=True),
    )
    rows = [
        (
            Cell(_offset(slot, slots), slot.start_unix_ns),
            Cell(f"{rate_of(slot.calls, slot):,.0f}", slot.calls),
            _duration(slot.call_ns / slot.calls if slot.calls else 0),
            _duration(slot.synchronize_ns),
            Cell(f"{rate_of(slot.allocate_calls, slot):,.0f}", slot.allocate_calls),
            _duration(slot.run_queue_ns),
            _duration(slot.lost_ns),
            Cell(name_phase(slot)),
        )
        for slot in slots
    ]
    return table("What happened when", columns, rows)


def _duration(duration_ns: float) -> Cell:
    return Cell(format_duration(duration_ns) if duration_ns else "", duration_ns)


def _extent(slots: Sequence[Slot]) -> tuple[int, int]:
    start_unix_ns = slots[0].start_unix_ns
    return start_unix_ns, max(1, slots[-1].end_unix_ns - start_unix_ns)


def _place(slot: Slot, slots: Sequence[Slot]) -> tuple[float, float]:
    start_unix_ns, length_ns = _extent(slots)
    left = (slot.start_unix_ns - start_unix_ns) / length_ns * _WIDTH
    width = length_of(slot) / length_ns * _WIDTH
    return left, max(width - _GAP, width / 2)


def _offset(slot: Slot, slots: Sequence[Slot]) -> str:
    return f"+{(slot.start_unix_ns - slots[0].start_unix_ns) / _NS_PER_S:g} s"


def _word_of_phase(phase: str) -> str:
    """The name of a phase without its share."""
    return phase.rstrip("%0123456789< ")


def _tone_of_phase(phase: str) -> str:
    return _PHASE_TONES.get(_word_of_phase(phase), WORK)


_PHASE_TONES = {
    "stalled": LOST,
    "no calls": "none",
    "allocating": MEMORY,
    "waiting for the GPU": GPU,
    "steady": "steady",
}
