"""A few small charts over one time axis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from otel_gpu.report.document import Document, Severity, TimeBucket, Window
from otel_gpu.report.render.fields import offset_of, phase_text
from otel_gpu.report.render.html.shapes import WIDTH, Rectangle
from otel_gpu.report.wording.formats import format_duration, format_share
from otel_gpu.report.wording.phases import NO_CAPTURE, PhaseKind, phase_of
from otel_gpu.report.wording.phrases import API, CPU, GPU, MEMORY, WORK

MOST_INCIDENTS = 12
LOST = "lost"
"""The tone of lost time, which has no kind of cause."""

UNCOVERED = "uncovered"
"""The tone of time without a capture."""

_HEIGHT = 10.0
_GAP = 0.3
_LEAST_SHARE = 0.005
_MARK_HEIGHT = 7
_LEAST_HEIGHT = 20
_NS_PER_S = 1e9
_COLOURS: Mapping[str, str] = {
    PhaseKind.STALLED: LOST,
    PhaseKind.NO_CALLS: "none",
    PhaseKind.ALLOCATING: MEMORY,
    PhaseKind.WAITING: GPU,
    PhaseKind.STEADY: "steady",
}


class Measure(NamedTuple):
    """The measure of one chart: time as a share of the bucket, or else the rate of calls."""

    name: str
    tone: str
    about: str
    share_of: str = ""

    def value_of(self, bucket: TimeBucket) -> float:
        """Return the value of a time bucket."""
        if self.share_of:
            return float(getattr(bucket, self.share_of)) / bucket.length_ns
        return bucket.calls / bucket.length_ns * _NS_PER_S

    def format(self, value: float) -> str:
        """Return a value in words."""
        return format_share(value) if self.share_of else f"{value:,.0f} per second"


MEASURES = (
    Measure(name="Lost", tone=LOST, about="Time lost by slow calls and gaps", share_of="lost_ns"),
    Measure("Calls", API, "CUDA calls"),
    Measure(
        name="GPU wait",
        tone=GPU,
        about="Time in calls that wait for the GPU",
        share_of="synchronize_ns",
    ),
    Measure(
        name="Run queue",
        tone=CPU,
        about="Time that threads were ready to run and did not",
        share_of="run_queue_ns",
    ),
    Measure(
        name="Alloc + free",
        tone=MEMORY,
        about="Time in calls that allocate or free",
        share_of="allocate_ns",
    ),
)


class Chart(NamedTuple):
    """A picture with its labels; ``keys`` are the colours that need a name."""

    label: str
    kind: str
    about: str
    blocks: Sequence[Rectangle]
    tone: str = ""
    note: str = ""
    keys: Sequence[tuple[str, str]] = ()
    height: int | None = None


def charts_of(
    document: Document, buckets: Sequence[TimeBucket], *, is_all: bool
) -> Iterator[Chart]:
    """
    Yield the charts of some time buckets, over the whole window: all processes together, or one.
    """
    yield _phases(document, buckets)
    if is_all and document.incidents:
        yield _incidents(document)
    for measure in MEASURES:
        values = [measure.value_of(bucket) for bucket in buckets]
        most = max(values)
        if most > (_LEAST_SHARE if measure.share_of else 0):
            yield _chart(
                document=document, measure=measure, buckets=buckets, values=values, most=most
            )


def is_busy(buckets: Sequence[TimeBucket]) -> bool:
    """Return whether there is anything to draw."""
    return any(bucket.calls or bucket.lost_ns for bucket in buckets)


def _chart(
    document: Document,
    measure: Measure,
    buckets: Sequence[TimeBucket],
    values: Sequence[float],
    most: float,
) -> Chart:
    scale = max(most, 1.0) if measure.share_of else most
    highest, of = measure.format(most), ", as a share of the time" if measure.share_of else ""
    blocks = _columns(
        document=document,
        rows=buckets,
        values=values,
        draw=lambda value: (measure.tone, value / scale, measure.format(value)),
    )
    about = f"{measure.about}{of}; at most {highest}"
    return Chart(
        label=measure.name,
        kind="chart",
        about=about,
        blocks=blocks,
        tone=measure.tone,
        note=f"up to {highest}",
    )


def _phases(document: Document, buckets: Sequence[TimeBucket]) -> Chart:
    rows = document.over_time(buckets[0].process)
    colours = [
        _COLOURS.get(phase_of(row).kind, WORK) if isinstance(row, TimeBucket) else UNCOVERED
        for row in rows
    ]
    drawn = list(zip(colours, map(phase_text, rows), strict=True))
    blocks = _columns(
        document=document, rows=rows, values=drawn, draw=lambda one: (one[0], 1.0, one[1])
    )
    kinds = (phase_of(row).kind if isinstance(row, TimeBucket) else NO_CAPTURE for row in rows)
    keys = list(dict.fromkeys(zip(colours, map(str, kinds), strict=True)))
    about = f"Phases: {', '.join(kind for _, kind in keys)}"
    return Chart(label="Phases", kind="chart band", about=about, blocks=blocks, keys=keys)


def _columns(
    document: Document,
    rows: Sequence[TimeBucket | Window],
    values: Sequence[object],
    draw: Callable[[Any], tuple[str, float, str]],
) -> list[Rectangle]:
    # Draws a column for each row; ``draw`` returns the tone, height and text of a value.
    start_unix_ns, length_ns = document.start_unix_ns, max(1, document.length_ns)
    blocks = []
    for row, value in zip(rows, values, strict=True):
        tone, part, text = draw(value)
        if part > 0:
            left = ((row.start_unix_ns or 0) - start_unix_ns) / length_ns * WIDTH
            width = max(1, (row.end_unix_ns or 0) - (row.start_unix_ns or 0)) / length_ns * WIDTH
            height, title = part * _HEIGHT, f"{offset_of(row, start_unix_ns)}: {text}"
            shown = max(width - _GAP, width / 2)
            blocks.append(
                Rectangle(
                    tone=tone,
                    left=left,
                    width=shown,
                    top=_HEIGHT - height,
                    height=height,
                    title=title,
                )
            )
    return blocks


def _incidents(document: Document) -> Chart:
    incidents, start_unix_ns = document.incidents, document.start_unix_ns
    length_ns = max(1, document.length_ns)
    shown = incidents[:MOST_INCIDENTS]
    height = _HEIGHT / len(shown)
    blocks = []
    for index, incident in enumerate(shown):
        edges_ns = (incident.start_unix_ns - start_unix_ns, incident.end_unix_ns - start_unix_ns)
        left, right = (min(max(edge / length_ns, 0.0), 1.0) * WIDTH for edge in edges_ns)
        place = (min(left, WIDTH - _GAP), max(right - left, _GAP), index * height, height * 0.8)
        kind, number = f"mark mark-{known(incident.severity)}", index + 1
        title = f"Incident {number}: {format_duration(incident.lost_ns)} lost"
        blocks.append(Rectangle("", *place, kind, title, f"#incident-{number}"))
    about = f"When the incidents were: {len(shown)} marks"
    note = "the worst" if len(incidents) > len(shown) else ""
    height_px = max(_LEAST_HEIGHT, _MARK_HEIGHT * len(shown))
    return Chart(
        label="Incidents", kind="marks", about=about, blocks=blocks, note=note, height=height_px
    )


def known(severity: str) -> str:
    """Return the severity, or the least one for an unknown one."""
    return severity if severity in set(Severity) else Severity.LOW
