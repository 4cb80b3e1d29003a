"""Draws devices of a document: steps, and causes of idle time."""

from otel_gpu.report.devices.types import DeviceReport, GapRow
from otel_gpu.report.document import Document
from otel_gpu.report.timeline.device_tracks import OTHERS, device_title
from otel_gpu.report.timeline.tracks import Drawing, Slice, SliceCategory, Track
from otel_gpu.report.wording.formats import short_function

IDLE = "idle: "
"""The category of idle time begins with it, and ends with its cause."""

# Before the streams, which have their own numbers; -1 is an unknown one.
_STEPS, _GAPS = -3, -2


def draw_devices(document: Document, drawing: Drawing) -> None:
    """Draw the steps of devices, and their longest idle times."""
    for number, row in enumerate(document.devices):
        title = device_title(row.device, row.model, row.source)
        steps = Track(
            process=OTHERS + number,
            process_name=title,
            thread=_STEPS,
            thread_name="steps",
            is_device=True,
        )
        for step in row.step_rows:
            end_ns = step.start_unix_ns + step.duration_ns
            drawing.began(
                Slice(
                    track=steps,
                    name=step.name,
                    category=SliceCategory.STEP,
                    start_unix_ns=step.start_unix_ns,
                    end_unix_ns=end_ns,
                )
            )
        _draw_gaps(row, steps._replace(thread=_GAPS, thread_name="idle"), drawing)


def _draw_gaps(row: DeviceReport, track: Track, drawing: Drawing) -> None:
    for gap in sorted(row.gaps, key=lambda one: one.start_unix_ns):
        end_ns = gap.start_unix_ns + gap.duration_ns
        details = {"cause": gap.cause, "python": gap.python}
        drawing.began(
            Slice(
                track=track,
                name=describe_gap(gap),
                category=f"{IDLE}{gap.cause}",
                start_unix_ns=gap.start_unix_ns,
                end_unix_ns=end_ns,
                details=details,
            )
        )


def describe_gap(gap: GapRow) -> str:
    """Return why a device was idle."""
    names = [short_function(name) for name in (gap.name, gap.python) if name]
    return f"{gap.cause}: {', in '.join(dict.fromkeys(names))}" if names else gap.cause
