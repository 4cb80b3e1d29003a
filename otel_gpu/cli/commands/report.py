"""
Write the report of explain about a recording, a store or a capture of another tool as one
self-contained HTML file. It loads nothing and can be sent to others. A timeline that can be zoomed
shows when things happened. Needs no privileges and no GPU. The same recording gives the same page,
byte for byte.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from otel_gpu.cli.commands import Output, UsageError, add_file, add_pids
from otel_gpu.cli.import_source import ImportSource, find_any
from otel_gpu.cli.part_reports import (
    add_source_arguments,
    make_collector,
    open_for_writing,
    part_of,
)
from otel_gpu.config import Config
from otel_gpu.report.json_form import make_document, to_text
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.stacks.top_stacks import (
    CALLED,
    CPU,
    IN_USE,
    PEAK,
    WAITED,
    WALL,
    StackCollector,
)
from otel_gpu.report.timeline.activities import ActivityTracks
from otel_gpu.report.timeline.chains import draw_document
from otel_gpu.report.timeline.devices import draw_devices
from otel_gpu.report.timeline.timeline import TimelineDrawing
from otel_gpu.report.wording.formats import format_size

_STANDARD_OUTPUT = Path("-")


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "report on, or a file that import reads")
    add_pids(parser, "report only this process")
    page = "write the page here; default: to standard output, unless that is a terminal"
    add_file(parser, "--html", page, default=_STANDARD_OUTPUT)
    add_file(parser, "--json", "write the JSON document of explain as well, from the same reading")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Report. The readable part of a damaged recording is written before the error is raised."""
    prints = args.html == _STANDARD_OUTPUT
    if prints and args.json is None and out.stdout.isatty():
        raise UsageError(
            "cannot print a page to a terminal", hint="name a file: --html report.html"
        )
    source = find_any(args, config, "report on")
    if args.pid and isinstance(source, ImportSource) and source.has_traces:
        raise UsageError(
            "--pid does not apply to a trace, which has one process per rank: leave it out"
        )
    with part_of(source, args) as window:
        collector = make_collector(config, source.rejected, window=window, pids=args.pid)
        kinds = (CALLED, WAITED, CPU, WALL)
        stacks: list[StackCollector | MemoryStackCollector] = [
            *(StackCollector(window, kind=kind, pids=args.pid) for kind in kinds),
            *(MemoryStackCollector(window, kind=kind, pids=args.pid) for kind in (PEAK, IN_USE)),
        ]
        drawing = TimelineDrawing()
        tracks = ActivityTracks(drawing, window, args.pid, only_slices=True)
        source.play(window, [collector, tracks, *stacks])
        document = collector.finish(source.name, source.notes)
        tracks.close()
        draw_devices(document, drawing)
        draw_document(document, drawing)
        flames = [one.finish(source.name) for one in stacks]
        # Without samples, the wall-clock graph would repeat the one of waits.
        page = make_page(
            document,
            flames=[one for one in flames if one.kind != WALL or one.samples],
            drawing=drawing.finish(),
        )
        if not prints:
            _write(args.html, page, out)
        elif not out.stdout.isatty():
            out.page(page)
        if args.json is not None:
            _write(args.json, to_text(make_document(document)) + "\n", out)
    return 0


def _write(path: Path, text: str, out: Output) -> None:
    with open_for_writing(path) as file:
        file.write(text)
    out.note(f"wrote {path}, {format_size(len(text.encode()))}")
