"""
Read a capture of another tool, list what was imported and what was not, and explain it like a
recording. With --otlp, also send its spans and metrics, with their original times, to the endpoint
of OTEL_EXPORTER_OTLP_*. With --store, also keep it for query and explain. What the other tool did
not record stays unknown, and its own conclusions are not imported. The file is not changed.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from otel_gpu import pipeline
from otel_gpu.cli.commands import JSON_HELP, Output, UsageError, add_file
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.formatting.units import counted
from otel_gpu.importers import KINDS, open_capture
from otel_gpu.importers.import_counts import ImportCounts
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document
from otel_gpu.report.memory.snapshot_readings import AsReadings
from otel_gpu.report.wording.formats import printable

if TYPE_CHECKING:
    from otel_gpu.cli.capture_sinks import CaptureSinks

CONFIG_FLAGS = ("export.otlp_file",)

_BYTES_PER_GIB = 1 << 30
_NOT_SENT = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}


def add_arguments(parser: ArgumentParser) -> None:
    kinds = "; ".join(f"{name}: {kind.description}" for name, kind in KINDS.items())
    parser.add_argument("kind", choices=tuple(map(str, KINDS)), metavar="KIND", help=kinds)
    add_file(parser, "file", "the capture to import")
    more = "further files of the same capture: of a Flight Recorder, those of the other ranks"
    add_file(parser, "others", more, nargs="*")
    memory = "the memory of the device in GiB, which a memory snapshot does not contain"
    parser.add_argument("--device-gib", type=float, default=0.0, metavar="GIB", help=memory)
    json = f"{JSON_HELP}: what was imported, and the report that explain prints"
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument(
        "--otlp", action="store_true", help="send it to the endpoint of OTEL_EXPORTER_OTLP_*"
    )
    add_file(parser, "--store", "also write it into this store, made if needed")


def run(args: Namespace, config: Config, out: Output) -> int:
    """Import; return 1 if not everything could be exported."""
    to_stdout = config.export.otlp_file == "-"
    if args.json and to_stdout:
        raise UsageError("--json and --otlp-file - both write to standard output: leave out one")
    environ = None
    if args.otlp or config.export.otlp_file:
        # Without --otlp nothing goes to the endpoint.
        environ = os.environ if args.otlp else os.environ | _NOT_SENT
        _note_destination(args, config, out)
    name = f"{args.file} and {len(args.others)} more" if args.others else str(args.file)
    with (
        open_capture(args.kind, args.file, config, **_choices(args)) as capture,
        _open_sinks(config, environ, args.store) as sinks,
    ):
        counts = capture.counts
        explainer = Explainer(pipeline.explain_settings(config))
        collector = Collector(explainer, rejected=counts.rejected)
        kept = map(AsReadings, sinks.observers if sinks else ())
        pipeline.process_events(capture.events(), Enricher(), [*kept, collector])
        complete = True
        if sinks is not None:
            sinks.conclude_import(name, counts.notes, counts.rejected)
            complete = sinks.close(out)
    report = collector.finish(name, counts.notes)
    if args.json:
        out.json({"import": _document(counts), "report": make_document(report)})
    else:
        console = out.stderr_console if to_stdout else out.stdout_console
        from otel_gpu.report.render.text.document import write_text  # noqa: PLC0415 -- as in _open_sinks

        write_text(report, console)
        console.print()
        for line in _lines(name, counts):
            # Not folded, so it can be searched.
            console.print(line, soft_wrap=True)
    return 0 if complete else 1


def _note_destination(args: Namespace, config: Config, out: Output) -> None:
    from otel_gpu.cli.flight_recorder import has_destination  # noqa: PLC0415 -- as in _open_sinks

    if args.otlp and not has_destination(config):
        out.note("nothing is sent: set OTEL_EXPORTER_OTLP_ENDPOINT")


def _open_sinks(
    config: Config, environ: Mapping[str, str] | None, store: Path | None
) -> AbstractContextManager["CaptureSinks | None"]:
    if environ is None and store is None:
        return nullcontext()
    # Half of the import time of a verb that only reports.
    from otel_gpu.cli.capture_sinks import open_sinks  # noqa: PLC0415

    return open_sinks(config, environ, store)


def _choices(args: Namespace) -> dict[str, int | Sequence[Path]]:
    given: dict[str, int | Sequence[Path]] = {
        "device_bytes": round(args.device_gib * _BYTES_PER_GIB),
        "others": args.others,
    }
    given = {name: value for name, value in given.items() if value}
    if unknown := given.keys() - KINDS[args.kind].choices:
        if "others" in unknown:
            raise UsageError(
                f"{args.kind}: expected one file, got several", hint="import them one by one"
            )
        raise UsageError(f"--device-gib does not apply to {args.kind}: leave it out")
    return given


def _document(counts: ImportCounts) -> dict[str, object]:
    names = ("source", "taken", "left_out", "rejected")
    return {name: dict(getattr(counts, name)) for name in names} | {"notes": list(counts.notes)}


def _lines(source: str, counts: ImportCounts) -> Iterator[str]:
    about = ", ".join(f"{name} {value}" for name, value in counts.source.items())
    yield printable(f"{source}: {about}")
    for name in ("taken", "left_out", "rejected"):
        for what, count in getattr(counts, name).most_common():
            if count:
                yield printable(
                    f"  {name.replace('_', ' '):<9} {count:>9,}  {counted(count, what)}"
                )
