"""
Report what bounded each process, which CUDA calls and gaps between them were slow, and what caused
that, with times. Explains a recording or a store, which needs no privileges and no GPU. With --pid,
--cgroup, --all or a command after --, it captures live until that ends, the duration is over or
Ctrl-C is pressed, and explains the capture. With a command, it exits with the command's exit code,
and the report goes to standard error; --json goes to standard output. The answer comes first, then
what it rests on; with --verbose all incidents and causes.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from otel_gpu.capture.host.host_facts import collect_rarely
from otel_gpu.cli.commands import JSON_HELP, Output, add_file
from otel_gpu.cli.live_source import find_source_or_capture, pids_of
from otel_gpu.cli.part_reports import add_source_arguments, make_collector, part_of, write_result
from otel_gpu.cli.targets import add_target_arguments
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError
from otel_gpu.report.json_form import make_document, to_text

if TYPE_CHECKING:
    from rich.console import Console

CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "explain", captures=True)
    add_target_arguments(parser, pid_note="; of a recording or store, report only this process")
    parser.add_argument("--per-process", action="store_true", help="report each process separately")
    section = "print only the sections whose title begins so, in any case"
    parser.add_argument("--section", metavar="TITLE", default="", help=section)
    json = f"{JSON_HELP}; docs/json.md describes it"
    parser.add_argument("--json", action="store_true", help=json)
    add_file(parser, "--output", "write the report here instead of printing it")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Explain; return the command's exit code, or 0."""
    source = find_source_or_capture(args, config, out, handled="explained", done="explains it")
    with part_of(source, args) as window:
        collector = make_collector(
            config, source.rejected, window=window, pids=pids_of(source, args)
        )
        collect_rarely()
        source.play(window, [collector])
        document = collector.finish(source.name, source.notes)
        lines = [to_text(make_document(document))] if args.json else None

        def draw(console: "Console") -> None:
            from otel_gpu.report.render.text.document import write_text  # noqa: PLC0415 -- 20 ms, not needed for JSON

            try:
                write_text(
                    document,
                    console,
                    per_process=args.per_process,
                    is_verbose=args.verbose > 0,
                    section=args.section,
                )
            except ValueError as error:
                raise OtelGpuError(f"--section: {error}") from error

        write_result(args, out, lines=lines, draw=draw)
    return source.exit_code
