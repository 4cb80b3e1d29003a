"""Arguments, windows and outputs of reports about a part of a recording or store."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TextIO

from otel_gpu import pipeline
from otel_gpu.cli.commands import PIPE_COLUMNS, Output, UsageError, add_file, open_console
from otel_gpu.cli.flight_recorder import store_path
from otel_gpu.cli.sources import StoreSource, open_recording
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError
from otel_gpu.explain.explainer import Explainer
from otel_gpu.options import StoreUse
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.source import Source

if TYPE_CHECKING:
    from rich.console import Console

MOMENT_HELP = (
    "Unix seconds, ISO 8601 (UTC unless it has an offset), 30s or -30s before the end, or +30s "
    "after the beginning"
)

_RELATIVE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3_600 * 10**9, "d": 86_400 * 10**9}
_NS_PER_S = 10**9
# 1973 in seconds: a smaller number is a duration that lacks its unit.
_FIRST_UNIX_S = 10**8


class TimePoint(NamedTuple):
    """A time relative to ``origin``: ``unix``, or the ``begin`` or ``end`` of a capture."""

    origin: str
    offset_ns: int

    def resolve(self, begin_unix_ns: int, end_unix_ns: int) -> int:
        """Return the Unix time for a capture of this extent."""
        origins = {"unix": 0, "begin": begin_unix_ns, "end": end_unix_ns}
        return max(0, origins[self.origin] + self.offset_ns)


def parse_time_point(text: str) -> TimePoint:
    """Parse a time as ``MOMENT_HELP`` describes it; raise ``UsageError`` for other text."""
    if found := _RELATIVE.fullmatch(text):
        sign, amount, unit = found.groups()
        offset_ns = round(float(amount) * _UNITS_NS[unit])
        return TimePoint("begin", offset_ns) if sign == "+" else TimePoint("end", -offset_ns)
    if _NUMBER.fullmatch(text):
        whole, _, part = text.partition(".")
        if int(whole) < _FIRST_UNIX_S:
            raise UsageError(f"{text}: the unit is missing", hint=f"write {text}s for seconds")
        return TimePoint("unix", int(whole) * _NS_PER_S + int(f"{part:0<9.9}"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a point in time", hint=MOMENT_HELP) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return TimePoint("unix", since_1970 // timedelta(microseconds=1) * 1_000)


def add_source_arguments(parser: ArgumentParser, verb: str, *, captures: bool = False) -> None:
    """Add the arguments that name a recording or a store, and a part of it."""
    # "-30s" is a value. argparse accepts a value that begins with a dash only if it looks like a number.
    parser._negative_number_matcher = re.compile(r"-\d")  # noqa: SLF001 -- argparse has no other way
    what = "the recording, or memory snapshot of PyTorch, to"
    add_file(parser, "recording", f"{what} {verb}", nargs="?")
    named = "nothing else is named" if captures else "no recording is named"
    store = f"the store to {verb}; default, where {named}: the one that run writes"
    add_file(parser, "--store", store)
    of = "of a recording or store, " if captures else ""
    text = f"{of}start of the time window: {MOMENT_HELP}"
    parser.add_argument("--from", "--since", dest="begin", metavar="TIME", help=text)
    parser.add_argument("--to", dest="end", metavar="TIME", help=f"{of}end of the time window")


def find_source(args: Namespace, config: Config) -> Source | None:
    """Open the named source, else the store that ``run`` writes. None: there is neither."""
    if args.recording is not None and args.store is not None:
        raise UsageError("name a recording or a store, not both")
    if args.recording is not None:
        return open_recording(args.recording, config)
    if args.store is not None:
        return StoreSource(args.store)
    path = store_path(config)
    return StoreSource(path) if config.store.enabled != StoreUse.OFF and path.exists() else None


@contextmanager
def part_of(source: Source, args: Namespace) -> Iterator[Window]:
    """Yield the window to report. Afterwards close the source, and raise its error."""
    with closing(source):
        yield source.about(resolve_window(source, args.begin, args.end))
    if source.error:
        raise source.error


def resolve_window(source: Source, begin: str | None, end: str | None) -> Window:
    """Return the window between two times of a source; raise ``UsageError`` for invalid ones."""
    named = [None if text is None else parse_time_point(text) for text in (begin, end)]
    extent = (0, 0)
    if any(moment is not None and moment.origin != "unix" for moment in named):
        extent = source.extent()
    window = Window(*(None if moment is None else moment.resolve(*extent) for moment in named))
    start_unix_ns, end_unix_ns = window
    if start_unix_ns is not None and end_unix_ns is not None and start_unix_ns >= end_unix_ns:
        raise UsageError("the window ends before it begins")
    return window


def make_collector(
    config: Config, rejected: Mapping[str, int], window: Window, pids: Sequence[int]
) -> Collector:
    """Return the collector of the report of a window."""
    explainer = Explainer(pipeline.explain_settings(config))
    return Collector(explainer, window=window, pids=pids, rejected=rejected)


def write_result(
    args: Namespace, out: Output, lines: Iterable[str] | None, draw: Callable[["Console"], None]
) -> None:
    """
    Write ``lines`` (for programs) or the drawn report to ``--output``, else print it.

    A drawn report goes to standard error if a command uses standard output.
    """
    if args.output is not None:
        with open_for_writing(args.output) as file:
            if lines is None:
                draw(open_console(file, PIPE_COLUMNS))
            else:
                file.writelines(f"{line}\n" for line in lines)
    elif lines is None:
        draw(out.stderr_console if args.command else out.stdout_console)
    else:
        for line in lines:
            out.line(line)


@contextmanager
def open_for_writing(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing, replacing an old one; raise ``OtelGpuError`` if that fails."""
    with _explained(path), path.open("w", encoding="utf-8") as file:
        yield file


@contextmanager
def open_for_writing_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file, as ``open_for_writing`` does."""
    with _explained(path), path.open("wb") as file:
        yield file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "name a file in a writable folder"
        raise OtelGpuError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error
