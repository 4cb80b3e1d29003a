"""``otel-gpu explain``: what was slow in a capture, and why."""

import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from otel_gpu import pipeline
from otel_gpu.commands import Output, UsageError
from otel_gpu.commands._files import open_for_writing
from otel_gpu.commands._live import add_target_arguments, capture, check_targets
from otel_gpu.commands._moments import HELP as MOMENT_HELP
from otel_gpu.commands._moments import Moment, parse_moment
from otel_gpu.commands._salvage import Salvage
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import make_document, to_text
from otel_gpu.report.extent import Extent
from otel_gpu.report.model import Report, Window
from otel_gpu.report.text import write_text

NAME = "explain"
HELP = "Say what was slow, and why."
DESCRIPTION = (
    "Say what bounded each process, which CUDA calls and gaps between them were slow, and whose "
    "doing that was, with times. Explains a recording, which needs no privileges and no GPU; or "
    "captures live what is named by --pid, --cgroup, --all or a command after --, until that "
    "ends, the time is over or Ctrl-C is pressed, and explains that. With a command, its exit "
    "code is ours, and the report goes to standard error; --json goes to standard output."
)
CONFIG_FLAGS = ("spans.mode",)
TAKES_COMMAND = True

_LIVE = "live"
_COLUMNS = 160


def add_arguments(parser: ArgumentParser) -> None:
    """Add the verb's own arguments."""
    # "-30s" is a value here. Of what begins with a dash, argparse lets numbers be values.
    parser._negative_number_matcher = re.compile(r"-\d")  # noqa: SLF001 -- it has no other way
    parser.add_argument(
        "recording", type=Path, nargs="?", metavar="FILE", help="the recording to explain"
    )
    add_target_arguments(parser, pid_note="; of a recording, report only this process")
    parser.add_argument(
        "--from",
        "--since",
        dest="begin",
        metavar="TIME",
        help=f"of a recording, what happened from then on: {MOMENT_HELP}",
    )
    parser.add_argument(
        "--to", dest="end", metavar="TIME", help="of a recording, what happened before that"
    )
    parser.add_argument("--per-process", action="store_true", help="one part for each process")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; docs/explain.md describes it"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the report here instead of printing it"
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Explain; the command's exit code, or 0."""
    if args.recording is None:
        return _explain_live(args, config, out)
    return _explain_recording(args, config, out)


def _explain_recording(args: Namespace, config: Config, out: Output) -> int:
    if args.command or args.cgroup or args.all or args.duration is not None or args.record:
        raise UsageError(
            "a recording is explained as it is",
            hint="leave out what says what to capture, or the recording",
        )
    window = _resolve_window(args)
    rejected: Counter[str] = Counter()
    recording = Salvage(args.recording)
    collector = _make_collector(config, rejected, window, args.pid)
    pipeline.process(recording.batches(), Enricher(), [collector.observe], rejected)
    notes = []
    if recording.error:
        notes.append("The recording is damaged: what comes after that is not known.")
    _write(collector.finish(str(args.recording), notes), args, out)
    if recording.error:
        raise recording.error
    return 0


def _explain_live(args: Namespace, config: Config, out: Output) -> int:
    if args.begin is not None or args.end is not None:
        raise UsageError("--from and --to are for recordings", hint="see --duration")
    check_targets(args)
    rejected: Counter[str] = Counter()
    collector = _make_collector(config, rejected, Window(), ())

    def say() -> None:
        out.note("capturing; Ctrl-C ends that and explains it")

    code = capture(args, config, collector.observe, rejected, say)
    _write(collector.finish(_LIVE), args, out)
    return code


def _make_collector(
    config: Config, rejected: Mapping[str, int], window: Window, pids: Sequence[int]
) -> Collector:
    explainer = Explainer(pipeline.explain_settings(config))
    return Collector(explainer, window=window, pids=pids, rejected=rejected)


def _resolve_window(args: Namespace) -> Window:
    begin = None if args.begin is None else parse_moment(args.begin)
    end = None if args.end is None else parse_moment(args.end)
    named = [moment for moment in (begin, end) if moment is not None]
    extent = Extent()
    if any(moment.origin != "unix" for moment in named):
        # When a recording ends is known at its end: it is read twice.
        batches = Salvage(args.recording).batches()
        pipeline.process(batches, Enricher(), [extent.observe], Counter())

    def resolve(moment: Moment | None) -> int | None:
        if moment is None:
            return None
        return moment.resolve(extent.start_unix_ns, extent.end_unix_ns)

    window = Window(resolve(begin), resolve(end))
    if None not in window and window.start_unix_ns >= window.end_unix_ns:  # type: ignore[operator] # neither is None
        raise UsageError("the window ends before it begins")
    return window


def _write(report: Report, args: Namespace, out: Output) -> None:
    if args.json:
        text = to_text(make_document(report))
        if args.output is None:
            out.line(text)
            return
        with open_for_writing(args.output) as file:
            file.write(text + "\n")
        return
    if args.output is not None:
        with open_for_writing(args.output) as file:
            console = Console(file=file, width=_COLUMNS, highlight=False, markup=False, emoji=False)
            write_text(report, console, per_process=args.per_process)
        return
    console = out.stderr_console if args.command else out.stdout_console
    write_text(report, console, per_process=args.per_process)
