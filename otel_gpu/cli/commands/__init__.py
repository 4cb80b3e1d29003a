"""
The verbs of the command line, one module each; what they share is beside this package.

``otel_gpu.cli`` imports a module of ``VERBS`` only when it is asked for; it is named as its verb, with
an ``_`` behind it where Python has a use for the name. ``add_arguments(parser)`` adds the verb's
own arguments. ``run(args, config, out)`` does the work and returns the exit code; what it cannot
do it raises as an ``OtelGpuError``. Its docstring stands above the arguments in its help. A verb
may also hold:

``CONFIG_FLAGS``
    Keys of options, such as ``("spans.mode", "export.otlp_file")``, that it takes as flags. Their
    names and help come from ``options.py``, and their values reach the verb in ``config``.
``TAKES_COMMAND``
    True: what follows ``--`` reaches it in ``args.command``, a list that is empty without it.

Nothing here prints: text goes through the ``Output`` that ``run`` is given.
"""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from otel_gpu.errors import OtelGpuError
from otel_gpu.formatting.printable import printable
from otel_gpu.procfs.proc_files import process_of

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "otel-gpu"
JSON_HELP = "print one JSON document"
PIPE_COLUMNS = 160
"""Width of text without a terminal: lines of a file are better long than folded."""

# What verbs write, by the names of their arguments.
_WRITTEN = frozenset(
    {"flamegraph", "html", "json", "output", "perfetto", "pprof", "record", "speedscope"}
)

VERBS: Mapping[str, str] = {
    "compare": "Report whether a second run was slower, and where.",
    "demo": "Run a program that is slow for a known cause, and explain it.",
    "doctor": "Check what this host allows, and what cannot be observed.",
    "explain": "Report what was slow, and why.",
    "export": "Write a timeline for the Perfetto UI.",
    "import": "Explain and export a capture of another tool.",
    "mcp": "Let an assistant investigate a capture, over the Model Context Protocol.",
    "parse": "Print a recording as text, one record per line.",
    "query": "Query the flight recorder in SQL.",
    "replay": "Export a recording as if it were captured now.",
    "report": "Write the report as a page for a browser.",
    "run": "Capture live, and export.",
    "service": "Install the agent as a systemd service, remove it, or show its status.",
    "stacks": "Show which code makes CUDA calls, uses CPUs, waits, or holds device memory.",
    "top": "Show live what CUDA programs do, and what is wrong.",
}
"""All verbs with their lines in ``otel-gpu --help``, which imports none of them."""


def add_file(parser: ArgumentParser, name: str, text: str, **more: Any) -> None:  # noqa: ANN401
    """Add an argument that names a file; ``more`` is argparse's."""
    parser.add_argument(name, type=Path, metavar="FILE", help=text, **more)


def add_pids(parser: ArgumentParser, text: str, note: str = "") -> None:
    """Add ``--pid``, whose values are a list."""
    text = f"{text}; repeatable{note}"
    parser.add_argument("--pid", type=int, action="append", default=[], metavar="PID", help=text)


def check_pids(pids: Iterable[int]) -> None:
    """
    Check that these are processes that there are now.

    Raises:
        UsageError: One is the id of a thread, or of nothing.
    """
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"no process {pid}", hint="list processes with ps -e")
        process = process_of(pid)
        if process not in {None, pid}:
            hint = f"name the process: --pid {process}"
            raise UsageError(f"{pid} is a thread of process {process}", hint=hint)


class UsageError(OtelGpuError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


def refuse_overwriting(args: Namespace) -> None:
    """
    Check that nothing is written over what is read.

    Raises:
        UsageError: A file to be written is another file of the command line as well.
    """
    named = {name: value for name, value in vars(args).items() if isinstance(value, str | Path)}
    for path in written_files(args):
        others = (Path(value) for other, value in named.items() if other not in _WRITTEN)
        if path.is_file() and any(one.is_file() and one.samefile(path) for one in others):
            raise UsageError(f"{path} is both input and output", hint="name another file")


def written_files(args: Namespace) -> list[Path]:
    """Return the files that a command line has a verb write."""
    named = vars(args)
    return [Path(named[name]) for name in _WRITTEN if isinstance(named.get(name), str | Path)]


class Output:
    """Results go to standard output, what is said to a person to standard error."""

    @property
    def stdout(self) -> TextIO:
        """The stream of results, for writers that want a file."""
        return sys.stdout

    @property
    def stdout_console(self) -> "Console":
        """A rich console on standard output."""
        return _console(sys.stdout)

    @property
    def stderr_console(self) -> "Console":
        """A rich console on standard error."""
        return _console(sys.stderr)

    def line(self, text: str = "") -> None:
        """Write one line of results."""
        sys.stdout.write(f"{text}\n")

    def page(self, text: str) -> None:
        """Write a document that says itself that it is in UTF-8."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(text)

    def json(self, document: Any) -> None:  # noqa: ANN401 -- whatever JSON can hold
        """Write one JSON document as the result."""
        self.line(json.dumps(document, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Tell the operator something, on standard error, as ``otel-gpu: text``."""
        sys.stderr.write(f"{PROGRAM}: {printable(text)}\n")
        sys.stderr.flush()


def _console(stream: TextIO) -> "Console":
    # A pipe has no width.
    is_known = stream.isatty() or "COLUMNS" in os.environ
    return open_console(stream, None if is_known else PIPE_COLUMNS)


def open_console(stream: TextIO, width: int | None) -> "Console":
    """Return a rich console on a stream; ``None``: as wide as its terminal."""
    from rich.console import Console  # noqa: PLC0415 -- 20 ms that JSON need not pay

    class ConsoleOfPipes(Console):
        def on_broken_pipe(self) -> None:
            # Rich's own ends the program with 1. What closed pipes mean is said in one place.
            raise BrokenPipeError

    return ConsoleOfPipes(file=stream, width=width, highlight=False, markup=False, emoji=False)
