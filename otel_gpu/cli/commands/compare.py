"""
Compare two runs of one program. Report whether their times are comparable, whether the second run
is slower by more than noise, and where the difference is. A and B are recordings, stores, windows
FROM..TO of the store that --store names, traces of torch.profiler (or a folder with one per rank),
exports of Nsight Systems or memory snapshots. Needs no privileges and no GPU.
"""

import re
from argparse import ArgumentParser, Namespace
from functools import partial

from otel_gpu.cli.commands import JSON_HELP, Output, UsageError, add_file
from otel_gpu.cli.compared_side import make_side
from otel_gpu.cli.import_source import open_any
from otel_gpu.cli.part_reports import make_collector, write_result
from otel_gpu.cli.stack_sides import open_side
from otel_gpu.config import Config
from otel_gpu.report.comparison.comparison import Side, compare
from otel_gpu.report.comparison.json_form import comparison_document
from otel_gpu.report.json_form import to_text
from otel_gpu.report.render.text.comparison import headline, write_comparison
from otel_gpu.report.wording.formats import printable

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)


def add_arguments(parser: ArgumentParser) -> None:
    # "-10m..-5m" is a value here; see add_source_arguments.
    parser._negative_number_matcher = re.compile(r"-\d")  # noqa: SLF001 -- argparse has no other way
    parser.add_argument("a", metavar="A", help="the run before")
    parser.add_argument("b", metavar="B", help="the run to judge")
    add_file(parser, "--store", "the store of the windows; default: the one that run writes")
    slower = (
        "exit with 1 if B takes longer by more than this and by more than noise, or if the runs "
        "are not comparable"
    )
    parser.add_argument("--fail-if-slower", metavar="PERCENT", help=slower)
    json = f"{JSON_HELP}; docs/json.md describes it"
    parser.add_argument("--json", action="store_true", help=json)
    add_file(parser, "--output", "write the report here instead of printing it")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Compare; return 1 if --fail-if-slower fails."""
    limit = _limit(args.fail_if_slower)
    args.recording = args.begin = args.end = None
    found = compare(*(_side(text, args, config) for text in (args.a, args.b)))
    lines = [to_text(comparison_document(found))] if args.json else None
    write_result(args, out, lines=lines, draw=partial(write_comparison, found))
    if limit is None:
        return 0
    if not found.comparable:
        out.note(f"error: whether it is slower is not known: {printable(found.reasons[0])}")
        return 1
    if found.is_slower_by(limit):
        out.note(f"error: {headline(found)}")
        return 1
    return 0


def _side(text: str, args: Namespace, config: Config) -> Side:
    with open_side(text, args, config=config, opens=open_any) as (source, window):
        return make_side(
            text, source, window=window, make_collector=partial(make_collector, config)
        )


def _limit(text: str | None) -> float | None:
    if text is None:
        return None
    if (found := _SHARE.fullmatch(text)) is None:
        raise UsageError(
            f"--fail-if-slower: expected a percentage, got {text}", hint="write 5% for five percent"
        )
    return float(found[1]) / 100
