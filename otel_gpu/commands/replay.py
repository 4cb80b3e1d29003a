"""``otel-gpu replay``: a recording through the rooms of a live capture."""

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from otel_gpu import pipeline
from otel_gpu.commands import Output
from otel_gpu.commands._recorder import has_destination, open_store
from otel_gpu.commands._salvage import Salvage
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import NOT_SAMPLED, open_exports
from otel_gpu.store.losses import describe_losses

NAME = "replay"
HELP = "Export a recording as if it were captured now."
DESCRIPTION = (
    "Export a recording as if it were captured now: to the endpoint of OTEL_EXPORTER_OTLP_*, "
    "or to a file, or into a store for query and explain. Needs no privileges and no GPU. The "
    "same recording gives the same output, byte for byte."
)
CONFIG_FLAGS = ("stacks.mode", "export.otlp_file")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the verb's own arguments."""
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording to replay")
    parser.add_argument(
        "--store", type=Path, metavar="FILE", help="also write it into this store, made if needed"
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Replay; what a damaged recording still holds is exported before its error."""
    recording = Salvage(args.recording)
    rejected: Counter[str] = Counter()
    if args.store is None and not has_destination(config):
        out.note("nothing is exported: set OTEL_EXPORTER_OTLP_ENDPOINT or give --otlp-file")
    with ExitStack() as stack:
        store = None
        if args.store is not None:
            store = stack.enter_context(open_store(args.store, config, live=False))
        exports = stack.enter_context(open_exports(config, os.environ, live=False))
        keepers: list[pipeline.Keeper] = [exports] if store is None else [exports, store]
        blame = pipeline.Blame(config, *keepers)
        observers = [*(keeper.observe for keeper in keepers), blame.observe]
        pipeline.process(recording.batches(), Enricher(), observers, rejected)
        blame.close()
        # Not flushed before: metrics would leave twice.
        complete = exports.shutdown(config.export.shutdown_timeout_s)
        dropped = Counter(exports.dropped())
        if store is not None:
            complete = store.close() and complete
            for sentence in describe_losses(store.lost()):
                out.note(sentence)
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
