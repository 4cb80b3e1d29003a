"""
Add up the stacks of CUDA calls that became spans, of threads on CPUs, of waits, and of device
memory, by calls, time or bytes. Stacks contain Python, C++, CUDA and the kernel. --diff compares
two of them. Reads a recording, a store or a memory snapshot of PyTorch, which needs no privileges
and no GPU. With --pid, --cgroup, --all or a command after --, it captures live until that ends, the
duration is over or Ctrl-C is pressed. Each sampled call counts for the calls that it represents;
--spans full gives every call a stack. With a command, it exits with the command's exit code, and
the text goes to standard error; --json and --folded go to standard output.
"""

import json
from argparse import ArgumentParser, Namespace

from otel_gpu.cli.commands import JSON_HELP, Output, UsageError, add_file
from otel_gpu.cli.live_source import LiveSource, find_source_or_capture, pids_of
from otel_gpu.cli.part_reports import (
    add_source_arguments,
    open_for_writing,
    open_for_writing_bytes,
    part_of,
    write_result,
)
from otel_gpu.cli.stack_sides import open_side
from otel_gpu.cli.targets import add_target_arguments
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import to_text
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.render.folded import folded_differences, folded_line
from otel_gpu.report.render.speedscope import speedscope_document
from otel_gpu.report.render.text.stacks import coverage, write_difference, write_stacks
from otel_gpu.report.source import Source
from otel_gpu.report.stacks.diff import StackDiff, compare
from otel_gpu.report.stacks.document import make_diff_document, make_stacks_document
from otel_gpu.report.stacks.folding import fold
from otel_gpu.report.stacks.top_stacks import (
    CALLED,
    GRAPHS,
    MEMORY,
    WAITED,
    StackCollector,
    StackKind,
    StackMeasure,
    StackReport,
)

CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True
_BY = tuple(map(str, (*StackMeasure, *GRAPHS, *MEMORY)))


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser, "read", captures=True)
    add_target_arguments(parser, pid_note="; of a recording or store, only this process")
    by = (
        "what to add up: of CUDA calls their time, number or bytes; of threads their time on CPUs "
        "(from samples), off them (in waits that became spans), or both; of device memory the bytes in "
        "use at the end, at the peak, or ever allocated; default: %(default)s"
    )
    parser.add_argument("--by", choices=_BY, default=str(StackMeasure.TIME), help=by)
    api = "only calls of this CUDA API, also inside other calls; repeatable"
    parser.add_argument("--api", action="append", default=[], metavar="API", help=api)
    thread = "only threads with this id or name, each separately; a name can contain *; repeatable"
    parser.add_argument("--thread", action="append", default=[], metavar="THREAD", help=thread)
    diff = (
        "compare two recordings or stores, or two windows FROM..TO of one: list the frames whose "
        "share of the total differs in B"
    )
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help=diff)
    parser.add_argument(
        "--waits",
        action="store_true",
        help="add up the waits of threads instead, by what they waited for",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="list this many stacks, in text and JSON; default: %(default)s",
    )
    now = "dump the stacks of all threads of the processes of --pid, without stopping them"
    parser.add_argument("--now", action="store_true", help=now)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=f"{JSON_HELP}; docs/json.md describes it")
    form.add_argument(
        "--folded",
        action="store_true",
        help="print all stacks in the format of FlameGraph's scripts; times are nanoseconds",
    )
    add_file(parser, "--output", "write there instead of printing")
    add_file(parser, "--speedscope", "also write a profile for speedscope")
    add_file(parser, "--pprof", "also write a profile for go tool pprof")
    add_file(parser, "--flamegraph", "also write a flame graph, as a page of HTML")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Add up stacks; return the command's exit code, or 0."""
    if args.now:
        from otel_gpu.cli.thread_dump import print_thread_dump  # noqa: PLC0415 -- needs a capture's imports

        return print_thread_dump(args, config, out)
    if args.limit < 1:
        raise UsageError(f"--limit must be at least 1, not {args.limit}")
    if args.waits and (args.api or args.by not in (StackMeasure.TIME, StackMeasure.CALLS)):
        raise UsageError("waits have no API and no bytes", hint="leave out --api or --by")
    if args.by in MEMORY and (args.api or args.thread):
        raise UsageError("memory has no API and no thread", hint="leave out --api and --thread")
    if args.diff:
        return _run_diff(args, config, out)
    source = find_source_or_capture(args, config, out, handled="looked at", done="shows the stacks")
    if isinstance(source, LiveSource) and not config.stacks.enabled:
        raise UsageError("stacks.enabled is false", hint="set it to true, or read a recording")
    with part_of(source, args) as window:
        _write(_add_up(source, window, args), args, out)
    return source.exit_code


def _add_up(source: Source, window: Window, args: Namespace) -> StackReport:
    if args.by in MEMORY:
        memory = MemoryStackCollector(
            window, kind=StackKind(args.by), pids=pids_of(source, args), rejected=source.rejected
        )
        source.play(window, [memory])
        return memory.finish(source.name, source.notes)
    kind = WAITED if args.waits else StackKind(args.by) if args.by in GRAPHS else CALLED
    stacks = StackCollector(
        window,
        kind=kind,
        pids=pids_of(source, args),
        names=args.api,
        threads=args.thread,
        rejected=source.rejected,
    )
    source.play(window, [stacks])
    return stacks.finish(
        source.name, StackMeasure.TIME if kind in GRAPHS else StackMeasure(args.by), source.notes
    )


def _write(report: StackReport, args: Namespace, out: Output) -> None:
    lines: list[str] | None = None
    if args.json:
        lines = [to_text(make_stacks_document(report, args.limit))]
    elif args.folded:
        lines = [folded_line(stack) for stack in fold(report.rows, report.by)]
    write_result(
        args, out, lines=lines, draw=lambda console: write_stacks(report, console, args.limit)
    )
    # The text or JSON is written before the error that nothing can be drawn.
    if (args.speedscope or args.flamegraph or args.pprof) and not report.total():
        hint = "see the notes above; `otel-gpu doctor` checks what this host allows"
        raise OtelGpuError(f"all stacks have 0 {args.by}", hint=hint)
    if args.speedscope:
        with open_for_writing(args.speedscope) as file:
            json.dump(speedscope_document(report), file)
    if args.pprof:
        from otel_gpu.report.render.pprof import pprof_file  # noqa: PLC0415 -- 15 ms, rarely needed

        with open_for_writing_bytes(args.pprof) as binary:
            binary.write(pprof_file(report))
    if args.flamegraph:
        from otel_gpu.report.render.html.flamegraph import flamegraph_page  # noqa: PLC0415 -- 20 ms

        title, about = f"{report.source}: {report.title}", [coverage(report), *report.notes]
        with open_for_writing(args.flamegraph) as file:
            file.write(
                flamegraph_page(fold(report.rows, report.by), report.by, title=title, about=about)
            )


def _run_diff(args: Namespace, config: Config, out: Output) -> int:
    if args.speedscope or args.pprof or args.command or args.duration is not None or args.record:
        hint = "its outputs are --json, --folded and --flamegraph"
        raise UsageError("--diff reads two recordings or stores, and writes no profile", hint=hint)
    reports = []
    for text in args.diff:
        with open_side(text, args, config) as (source, window):
            report = _add_up(source, window, args)
        reports.append(
            report if text == source.name else report._replace(source=f"{source.name} {text}")
        )
    diff = compare(*reports)
    lines: list[str] | None = None
    if args.json:
        lines = [to_text(make_diff_document(diff, args.limit))]
    elif args.folded:
        lines = list(folded_differences(diff))
    write_result(
        args, out, lines=lines, draw=lambda console: write_difference(diff, console, args.limit)
    )
    if args.flamegraph:
        with open_for_writing(args.flamegraph) as file:
            file.write(_difference_page(diff))
    return 0


def _difference_page(diff: StackDiff) -> str:
    from otel_gpu.report.render.html.flamegraph import difference_page  # noqa: PLC0415 -- as above

    sides = zip("AB", (diff.before, diff.after), strict=True)
    about = [
        " ".join((f"{mark}: {report.source}. {coverage(report)}", *report.notes))
        for mark, report in sides
    ]
    return difference_page(diff, f"{diff.after.title}: B against A", about)
