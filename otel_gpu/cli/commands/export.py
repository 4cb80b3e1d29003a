"""
Write a recording, a store or a capture of another tool as a timeline for the Perfetto UI
(https://ui.perfetto.dev): threads with their calls and waits, device activity, arrows from culprits
to waiting threads, incidents and counters. A name that ends in .gz is compressed. Needs no
privileges, no GPU and no connection.
"""

import gzip
import io
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from otel_gpu.cli.commands import Output, UsageError, add_file, add_pids
from otel_gpu.cli.import_source import ImportSource, find_any
from otel_gpu.cli.part_reports import (
    add_source_arguments,
    make_collector,
    open_for_writing,
    open_for_writing_bytes,
    part_of,
)
from otel_gpu.config import Config
from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.report.document import Document, Window
from otel_gpu.report.render.perfetto import PerfettoFile
from otel_gpu.report.timeline.activities import ActivityTracks
from otel_gpu.report.timeline.chains import draw_document
from otel_gpu.report.wording.formats import format_size


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "export, or a file that import reads")
    add_pids(parser, "export only this process")
    add_file(parser, "--perfetto", "write the timeline here")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Export. The readable part of a damaged recording is written before the error is raised."""
    if args.perfetto is None:
        raise UsageError("no output: name a file", hint="--perfetto trace.json.gz")
    source = find_any(args, config, "export")
    with part_of(source, args) as window, _open(args.perfetto) as file:
        timeline = _Timeline(file, window, args.pid)
        if isinstance(source, ImportSource) and source.has_traces:
            # They have no calls, so nothing to explain.
            source.play(window, [timeline])
            document = Document(
                source.name, window, losses=source.rejected, notes=tuple(source.notes)
            )
        else:
            collector = make_collector(config, source.rejected, window=window, pids=args.pid)
            source.play(window, [timeline, collector])
            document = collector.finish(source.name, source.notes)
        drawing = timeline.close()
        draw_document(document, drawing)
        drawing.close(source.name, document.notes, document.losses)
    counts = ", ".join(f"{count:,} {what}" for what, count in drawing.written.items())
    size = format_size(args.perfetto.stat().st_size)
    out.note(f"wrote {args.perfetto}, {size}: {counts or 'nothing'}; open it in ui.perfetto.dev")
    return 0


class _Timeline:
    # Starts the drawing with the first activity, because its time is the origin.

    def __init__(self, file: TextIO, window: Window, pids: list[int]) -> None:
        self._file, self._window, self._pids = file, window, pids
        self._begun: tuple[PerfettoFile, ActivityTracks] | None = None

    def observe(self, activity: object) -> None:
        if self._begun is None:
            first_ns = activity.unix_ns if isinstance(activity, CaptureActivity) else 0
            self._begun = self._begin(self._window.start_unix_ns or first_ns)
        self._begun[1].observe(activity)

    def close(self) -> PerfettoFile:
        # The drawing stays open.
        drawing, tracks = self._begun or self._begin(self._window.start_unix_ns or 0)
        tracks.close()
        return drawing

    def _begin(self, about_unix_ns: int) -> tuple[PerfettoFile, ActivityTracks]:
        drawing = PerfettoFile(self._file, about_unix_ns)
        return drawing, ActivityTracks(drawing, self._window, self._pids)


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with open_for_writing(path) as file:
            yield file
        return
    with (
        open_for_writing_bytes(path) as binary,
        # Without name and time, so the same recording gives the same bytes.
        gzip.GzipFile("", "wb", 6, binary, 0) as packed,
        io.TextIOWrapper(packed, "utf-8") as text,
    ):
        yield text
