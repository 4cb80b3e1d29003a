"""``otel-gpu replay``: a recording through the rooms of a live capture."""

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.commands import Output
from otel_gpu.commands._salvage import Salvage
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import NOT_SAMPLED, open_exports

NAME = "replay"
HELP = "Export a recording as if it were captured now."
DESCRIPTION = (
    "Export a recording as if it were captured now: to the endpoint of OTEL_EXPORTER_OTLP_*, "
    "or to a file. Needs no privileges and no GPU. The same recording gives the same output, "
    "byte for byte."
)
CONFIG_FLAGS = ("stacks.mode", "export.otlp_file")

# Naming any of these, even as "none", is a choice.
_DESTINATIONS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_TRACES_EXPORTER",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the verb's own arguments."""
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording to replay")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Replay; what a damaged recording still holds is exported before its error."""
    recording = Salvage(args.recording)
    rejected: Counter[str] = Counter()
    if not config.export.otlp_file and not any(map(os.environ.get, _DESTINATIONS)):
        out.note("nothing is exported: set OTEL_EXPORTER_OTLP_ENDPOINT or give --otlp-file")
    with open_exports(config, os.environ, live=False) as exports:
        blame = pipeline.Blame(config, exports)
        observers = [exports.observe, blame.observe]
        pipeline.process(recording.batches(), Enricher(), observers, rejected)
        blame.close()
        # Not flushed before: metrics would leave twice.
        complete = exports.shutdown(config.export.shutdown_timeout_s)
        dropped = Counter(exports.dropped())
    # Left out because the operator said so.
    del dropped[NOT_SAMPLED]
    if rejected:
        out.note(f"records that could not be decoded: {_list_counts(rejected)}")
    if dropped:
        out.note(f"spans that could not be exported: {_list_counts(dropped)}")
    if recording.error:
        raise recording.error
    return 0 if complete and not dropped else 1


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()) if count)
