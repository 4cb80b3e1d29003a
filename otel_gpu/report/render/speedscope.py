"""
Stacks as a file for speedscope (https://www.speedscope.app), which runs in a browser.

One profile per process (or thread, where they are separate) and measure; speedscope switches
between them. The format: frames are shared by all profiles, a sample is a list of their indices
from the outermost to the innermost, and there is one weight for each sample.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from otel_gpu import __version__
from otel_gpu.report.document import Frame, key_of
from otel_gpu.report.stacks.top_stacks import (
    GRAPHS,
    MEMORY,
    StackMeasure,
    StackReport,
    StackRow,
)
from otel_gpu.report.wording.formats import printable, process_name, thread_name, whole_line

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {StackMeasure.TIME: "nanoseconds", StackMeasure.CALLS: "none", StackMeasure.BYTES: "bytes"}


def speedscope_document(report: StackReport) -> dict[str, object]:
    """Return the document; the profile that is shown first has the report's measure."""
    # Indices, in the order of first use.
    frames: defaultdict[Frame, int] = defaultdict(lambda: len(frames))
    by_process: dict[tuple[object, ...], list[StackRow]] = {}
    for row in report.rows:
        tid = row.thread.tid if row.thread else 0
        by_process.setdefault((key_of(row.process), tid), []).append(row)
    # A sum of counts of samples and waits has no meaning.
    others = (
        ()
        if report.kind in (*GRAPHS, *MEMORY)
        else (one for one in StackMeasure if one != report.by)
    )
    profiles = [
        _profile(name=_name(rows[0]), rows=rows, by=by, frames=frames)
        for by in (report.by, *others)
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


def _describe(frame: Frame) -> dict[str, object]:
    document: dict[str, object] = {"name": whole_line(frame)}
    if frame.file:
        document |= {"name": printable(frame.function) or "??", "file": printable(frame.file)}
        if frame.line:
            document["line"] = frame.line
    return document


def _name(row: StackRow) -> str:
    name = process_name(row.process)
    return name if row.thread is None else f"{name}, {thread_name(row.thread)}"


def _profile(
    name: str, rows: Iterable[StackRow], by: StackMeasure, frames: Mapping[Frame, int]
) -> dict[str, Any]:
    weighing = [row for row in rows if row.measure(by) > 0]
    return {
        "type": "sampled",
        "name": f"{name}, by {by}",
        "unit": _UNITS[by],
        "startValue": 0,
        "endValue": sum(row.measure(by) for row in weighing),
        "samples": [[frames[frame] for frame in reversed(row.stack.frames)] for row in weighing],
        "weights": [row.measure(by) for row in weighing],
    }
