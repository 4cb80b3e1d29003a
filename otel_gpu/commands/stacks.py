"""
Add up the stacks of CUDA calls that became spans: Python, C++ and CUDA in one, by calls, time or
bytes. Reads a recording or a store, which needs no privileges and no GPU; or captures live what is
named by --pid, --cgroup, --all or a command after --, until that ends, the time is over or Ctrl-C
is pressed. Sampled calls count as often as they were sampled from; --spans full gives every call a
stack. With a command, its exit code is ours, and the text goes to standard error; --json and
--folded go to standard output.
"""

import json
from argparse import ArgumentParser, Namespace

from otel_gpu.commands import JSON_HELP, Output, UsageError, add_file
from otel_gpu.commands._live import add_target_arguments
from otel_gpu.commands._live_source import LiveSource, find_source_or_capture, pids_of
from otel_gpu.commands._reports import add_source_arguments, open_for_writing, part_of, write_result
from otel_gpu.commands._threads import look_at_threads
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError
from otel_gpu.faces.folded import fold, folded_line
from otel_gpu.faces.html.flamegraph import flamegraph_page
from otel_gpu.faces.speedscope import speedscope_document
from otel_gpu.faces.stacks_text import write_stacks
from otel_gpu.findings.json_form import to_text
from otel_gpu.findings.stacks_document import make_stacks_document
from otel_gpu.findings.top_stacks import (
    BYTES,
    CALLED,
    MEASURES,
    WAITED,
    StackCollector,
    StackReport,
)

CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "look at", captures=True)
    add_target_arguments(parser, pid_note="; of a recording or store, only this process")
    by = "what counts; default: %(default)s"
    parser.add_argument("--by", choices=MEASURES, default=MEASURES[0], help=by)
    api = "only calls of this CUDA API, also those inside other calls; may be repeated"
    parser.add_argument("--api", action="append", default=[], metavar="API", help=api)
    parser.add_argument(
        "--waits",
        action="store_true",
        help="where threads were blocked instead, by what they waited for",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="list this many stacks, in text and JSON; default: %(default)s",
    )
    now = "where all threads of the processes that --pid names are, right now; none is stopped"
    parser.add_argument("--now", action="store_true", help=now)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help=f"{JSON_HELP}; docs/stacks.md describes it"
    )
    form.add_argument(
        "--folded",
        action="store_true",
        help="print all stacks in the format of FlameGraph's scripts; times are nanoseconds",
    )
    add_file(parser, "--output", "write there instead of printing")
    add_file(parser, "--speedscope", "also write a profile for speedscope")
    add_file(parser, "--flamegraph", "also write a flame graph, as a page of HTML")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Add up; the command's exit code, or 0."""
    if args.now:
        return look_at_threads(args, config, out)
    if args.limit < 1:
        raise UsageError("--limit must be at least 1")
    if args.waits and (args.api or args.by == BYTES):
        raise UsageError("waits are of no API and have no bytes", hint="leave out --api or --by")
    source = find_source_or_capture(args, config, out, handled="looked at", done="shows the stacks")
    if isinstance(source, LiveSource) and not config.stacks.enabled:
        raise UsageError("stacks.enabled is false", hint="set it to true, or read a recording")
    kind, pids = WAITED if args.waits else CALLED, pids_of(source, args)
    with part_of(source, args) as window:
        stacks = StackCollector(
            window, kind=kind, pids=pids, names=args.api, rejected=source.rejected
        )
        source.play(window, [stacks])
        _write(stacks.finish(source.name, args.by, source.notes), args, out)
    return source.exit_code


def _write(report: StackReport, args: Namespace, out: Output) -> None:
    lines: list[str] | None = None
    if args.json:
        lines = [to_text(make_stacks_document(report, args.limit))]
    elif args.folded:
        lines = [folded_line(stack) for stack in fold(report.rows, args.by)]
    write_result(args, out, lines, lambda console: write_stacks(report, console, args.limit))
    # What was asked for is written before it is said that there is nothing to draw.
    if (args.speedscope or args.flamegraph) and not report.total():
        hint = "see the notes above; `otel-gpu doctor` says what this host allows"
        raise OtelGpuError(f"no stack weighs anything by {args.by}", hint=hint)
    if args.speedscope:
        with open_for_writing(args.speedscope) as file:
            json.dump(speedscope_document(report), file)
    if args.flamegraph:
        title = f"{report.source}: {report.kind} by {report.by}"
        with open_for_writing(args.flamegraph) as file:
            file.write(flamegraph_page(fold(report.rows, args.by), args.by, title))
