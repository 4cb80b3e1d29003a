"""
Write what explain says of a recording or a store as one HTML file that is complete in itself: it
loads nothing, and can be sent to others. Needs no privileges and no GPU. The same recording gives
the same page, byte for byte.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from otel_gpu.commands import Output, UsageError, add_file, add_pids
from otel_gpu.commands._reports import (
    add_source_arguments,
    find_source,
    make_collector,
    open_for_writing,
    part_of,
)
from otel_gpu.config import Config
from otel_gpu.faces.html.page import make_page
from otel_gpu.findings.json_form import make_document, to_text
from otel_gpu.findings.memory_stacks import MemoryStackCollector
from otel_gpu.findings.top_stacks import CALLED, CPU, IN_USE, PEAK, WAITED, WALL, StackCollector
from otel_gpu.findings.words import format_size

_STANDARD_OUTPUT = Path("-")


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "report on")
    add_pids(parser, "report only this process")
    page = "write the page here; default: to standard output, unless that is a terminal"
    add_file(parser, "--html", page, default=_STANDARD_OUTPUT)
    add_file(parser, "--json", "write the JSON document of explain as well, from the same reading")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Report; what a damaged recording still holds is written before its error."""
    prints = args.html == _STANDARD_OUTPUT
    if prints and args.json is None and out.stdout.isatty():
        raise UsageError("a terminal shows no pages", hint="name a file: --html report.html")
    source = find_source(args, config)
    if source is None:
        raise UsageError("name what to report on", hint="a recording, or --store FILE")
    with part_of(source, args) as window:
        collector = make_collector(config, source.rejected, window, args.pid)
        kinds = (CALLED, WAITED, CPU, WALL)
        stacks: list[StackCollector | MemoryStackCollector] = [
            *(StackCollector(window, kind=kind, pids=args.pid) for kind in kinds),
            *(MemoryStackCollector(window, kind=kind, pids=args.pid) for kind in (PEAK, IN_USE)),
        ]
        source.play(window, [collector, *stacks])
        document = collector.finish(source.name, source.notes)
        flames = [one.finish(source.name) for one in stacks]
        # Without samples, the last one would be of waits alone, once more.
        page = make_page(
            document, flames=[one for one in flames if one.kind != WALL or one.samples]
        )
        if not prints:
            _write(args.html, page, out)
        elif not out.stdout.isatty():
            out.stdout.write(page)
        if args.json is not None:
            _write(args.json, to_text(make_document(document)) + "\n", out)
    return 0


def _write(path: Path, text: str, out: Output) -> None:
    with open_for_writing(path) as file:
        file.write(text)
    out.note(f"wrote {path}, {format_size(len(text.encode()))}")
