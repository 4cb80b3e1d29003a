"""
Export a recording as if it were captured now: to the endpoint of OTEL_EXPORTER_OTLP_*, to a file,
or into a store for query and explain. Needs no privileges and no GPU. The same recording gives the
same output, byte for byte.
"""

import os
from argparse import ArgumentParser, Namespace

from otel_gpu.cli.capture_sinks import list_counts, open_sinks
from otel_gpu.cli.commands import Output, add_file
from otel_gpu.cli.flight_recorder import has_destination
from otel_gpu.cli.sources import RecordingSource
from otel_gpu.config import Config
from otel_gpu.report.document import Window

CONFIG_FLAGS = ("stacks.mode", "export.otlp_file")


def add_arguments(parser: ArgumentParser) -> None:
    add_file(parser, "recording", "the recording to replay")
    add_file(parser, "--store", "also write it into this store, made if needed")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Replay. The readable part of a damaged recording is exported before the error is raised."""
    recording = RecordingSource(args.recording)
    if args.store is None and not has_destination(config):
        out.note("nothing is exported: set OTEL_EXPORTER_OTLP_ENDPOINT or give --otlp-file")
    with open_sinks(config, os.environ, args.store) as sinks:
        recording.play(Window(), sinks.observers)
        complete = sinks.close(out)
    if recording.rejected:
        out.note(f"records that could not be decoded: {list_counts(recording.rejected)}")
    if recording.error:
        raise recording.error
    return 0 if complete else 1
