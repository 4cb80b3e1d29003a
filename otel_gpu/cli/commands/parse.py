"""Print a recording as text, one record per line."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator

from otel_gpu.capture.recording import read_recording
from otel_gpu.cli.commands import Output, add_file
from otel_gpu.config import Config
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.event_text import KIND_NAMES, SERIES_KIND, TIME_KIND, describe

_REJECTED_KIND = "rejected"
_KINDS = (*KIND_NAMES.values(), SERIES_KIND, TIME_KIND, _REJECTED_KIND)
# Enough for a header and the first fields.
_SHOWN_BYTES = 64


def add_arguments(parser: ArgumentParser) -> None:
    add_file(parser, "recording", "the recording to print")
    text = f"print only these kinds; repeatable: {', '.join(_KINDS)}"
    parser.add_argument("--kind", action="append", choices=_KINDS, metavar="KIND", help=text)


def run(args: Namespace, config: Config, out: Output) -> int:  # noqa: ARG001 - one protocol
    """Print. The readable part of a damaged recording comes before the error."""
    kinds = frozenset(args.kind or _KINDS)
    stdout = out.stdout
    try:
        for batch in read_recording(args.recording):
            stdout.writelines(
                f"{line}\n"
                for record in batch
                for line in _describe_record(record)
                if line.partition(" ")[0] in kinds
            )
    finally:
        # So that the error of a damaged recording is below its records.
        stdout.flush()
    return 0


def _describe_record(record: bytes) -> Iterator[str]:
    rejected: Counter[str] = Counter()
    for event in decode([record], rejected):
        yield from describe(event)
    for reason in rejected:
        shown = record[:_SHOWN_BYTES].hex() + ("" if len(record) <= _SHOWN_BYTES else "...")
        yield f"{_REJECTED_KIND} 0 0/0 reason={reason} bytes={len(record)} start={shown}"
