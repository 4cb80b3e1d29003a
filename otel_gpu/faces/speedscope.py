"""
Stacks as a file for speedscope (https://www.speedscope.app), which runs in a browser.

One profile per process and measure; speedscope switches between them. The facts of its
format: frames are shared by all profiles, a sample is a list of their numbers from the
outermost to the innermost, and there is one weight for each sample.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from otel_gpu import __version__
from otel_gpu.findings.document import Frame, ProcessImage, key_of
from otel_gpu.findings.top_stacks import BYTES, CALLS, MEASURES, TIME, StackReport, StackRow
from otel_gpu.findings.words import printable, process_name, whole_line

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {TIME: "nanoseconds", CALLS: "none", BYTES: "bytes"}


def speedscope_document(report: StackReport) -> dict[str, Any]:
    """Return the document; the profile that is shown first is of the report's measure."""
    # Their numbers, in the order in which they are first seen.
    frames: defaultdict[Frame, int] = defaultdict(lambda: len(frames))
    by_process: dict[tuple[int, int], list[StackRow]] = {}
    for row in report.rows:
        by_process.setdefault(key_of(row.process), []).append(row)
    profiles = [
        _profile(rows[0].process, rows, by, frames)
        for by in (report.by, *(measure for measure in MEASURES if measure != report.by))
        for rows in by_process.values()
        if any(row.measure(by) > 0 for row in rows)
    ]
    return {
        "$schema": _SCHEMA,
        "exporter": f"otel-gpu@{__version__}",
        "name": printable(report.source),
        "activeProfileIndex": 0,
        "shared": {"frames": list(map(_describe, frames))},
        "profiles": profiles,
    }


def _describe(frame: Frame) -> dict[str, Any]:
    document: dict[str, Any] = {"name": whole_line(frame)}
    if frame.file:
        document |= {"name": printable(frame.function) or "??", "file": printable(frame.file)}
        if frame.line:
            document["line"] = frame.line
    return document


def _profile(
    process: ProcessImage, rows: Iterable[StackRow], by: str, frames: Mapping[Frame, int]
) -> dict[str, Any]:
    weighing = [row for row in rows if row.measure(by) > 0]
    return {
        "type": "sampled",
        "name": f"{process_name(process)}, by {by}",
        "unit": _UNITS[by],
        "startValue": 0,
        "endValue": sum(row.measure(by) for row in weighing),
        "samples": [[frames[frame] for frame in reversed(row.stack.frames)] for row in weighing],
        "weights": [row.measure(by) for row in weighing],
    }
