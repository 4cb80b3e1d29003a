"""``otel-gpu explain``: what was slow in a capture, and why."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import closing
from pathlib import Path

from rich.console import Console

from otel_gpu.capture.host import collect_rarely
from otel_gpu.commands import Output, UsageError
from otel_gpu.commands._files import open_for_writing
from otel_gpu.commands._live import add_target_arguments, capture, check_targets
from otel_gpu.commands._reports import (
    add_source_arguments,
    find_source_or_capture,
    make_collector,
    window_of,
)
from otel_gpu.config import Config
from otel_gpu.faces.text import write_text
from otel_gpu.findings.document import Document, Window
from otel_gpu.findings.json_form import make_document, to_text

NAME = "explain"
HELP = "Say what was slow, and why."
DESCRIPTION = (
    "Say what bounded each process, which CUDA calls and gaps between them were slow, and whose "
    "doing that was, with times. Explains a recording or a store, which needs no privileges and no "
    "GPU; or captures live what is named by --pid, --cgroup, --all or a command after --, until that "
    "ends, the time is over or Ctrl-C is pressed, and explains that. With a command, its exit "
    "code is ours, and the report goes to standard error; --json goes to standard output."
)
CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True

_LIVE = "live"
_COLUMNS = 160


def add_arguments(parser: ArgumentParser) -> None:
    """Add the verb's own arguments."""
    add_source_arguments(parser, "explain", captures=True)
    add_target_arguments(parser, pid_note="; of a recording or store, report only this process")
    parser.add_argument("--per-process", action="store_true", help="one part for each process")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; docs/explain.md describes it"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the report here instead of printing it"
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Explain; the command's exit code, or 0."""
    source = find_source_or_capture(args, config, "explained")
    if source is None:
        return _explain_live(args, config, out)
    with closing(source):
        window = window_of(source, args)
        collector = make_collector(config, source.rejected, window, args.pid)
        collect_rarely()
        source.play(window, [collector.observe])
    _write(collector.finish(source.name, source.notes), args, out)
    if source.error:
        raise source.error
    return 0


def _explain_live(args: Namespace, config: Config, out: Output) -> int:
    if args.begin is not None or args.end is not None:
        raise UsageError("--from and --to are for recordings and stores", hint="see --duration")
    check_targets(args)
    rejected: Counter[str] = Counter()
    collector = make_collector(config, rejected, Window(), ())

    def say() -> None:
        out.note("capturing; Ctrl-C ends that and explains it")

    code = capture(args, config, collector, rejected, say)
    _write(collector.finish(_LIVE), args, out)
    return code


def _write(document: Document, args: Namespace, out: Output) -> None:
    if args.json:
        text = to_text(make_document(document))
        if args.output is None:
            out.line(text)
            return
        with open_for_writing(args.output) as file:
            file.write(text + "\n")
        return
    if args.output is not None:
        with open_for_writing(args.output) as file:
            console = Console(file=file, width=_COLUMNS, highlight=False, markup=False, emoji=False)
            write_text(document, console, per_process=args.per_process)
        return
    console = out.stderr_console if args.command else out.stdout_console
    write_text(document, console, per_process=args.per_process)
