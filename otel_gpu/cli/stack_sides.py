"""The two sides of ``stacks --diff`` and ``compare``: files, or windows of one file."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_gpu.cli.commands import UsageError
from otel_gpu.cli.part_reports import find_source, resolve_window
from otel_gpu.cli.sources import open_source
from otel_gpu.config import Config
from otel_gpu.report.document import Window
from otel_gpu.report.source import Source

_HINT = "name a recording or a store, or a window FROM..TO of the one that is named"


@contextmanager
def open_side(
    text: str,
    args: Namespace,
    config: Config,
    opens: Callable[[Path, Config], Source] = open_source,
) -> Iterator[tuple[Source, Window]]:
    """
    Yield the source and the window of one side; afterwards close the source, and raise its error.

    ``opens`` opens the file if ``text`` is a path.
    """
    path, (begin, dots, end) = Path(text), text.partition("..")
    if path.exists():
        source: Source | None = opens(path, config)
        begin, end = args.begin, args.end
    elif dots:
        if args.begin is not None or args.end is not None:
            raise UsageError("--from and --to are given twice", hint="leave them out")
        source = find_source(args, config)
    else:
        raise UsageError(f"{text}: neither a file nor a window", hint=_HINT)
    if source is None:
        raise UsageError(
            f"{text}: no recording or store for this window",
            hint="name a recording, or --store FILE",
        )
    try:
        yield source, source.about(resolve_window(source, begin or None, end or None))
    finally:
        source.close()
    if source.error:
        raise source.error
