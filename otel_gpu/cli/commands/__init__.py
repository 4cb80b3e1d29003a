"""
The verbs of the command line, one module each. Shared code is in ``otel_gpu.cli``.

``otel_gpu.cli`` imports the module of a verb only when the verb is used. The module has the name of
the verb, with ``_`` added to Python keywords. Its docstring is the description in the help.
``add_arguments(parser)`` adds the verb's own arguments. ``run(args, config, out)`` returns the exit
code, or raises an ``OtelGpuError``. A module can also define:

``CONFIG_FLAGS``
    Keys of options, such as ``("spans.mode", "export.otlp_file")``, that the verb takes as flags.
    Names and help come from ``options.py``; values are in ``config``.
``TAKES_COMMAND``
    True: the words after ``--`` are in ``args.command``, which is an empty list without them.

Nothing here prints: text goes through the ``Output`` passed to ``run``.
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
"""Width of text without a terminal: in a file, long lines are better than folded ones."""

# Arguments that name files to write.
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
"""All verbs with their lines in ``otel-gpu --help``, which imports no verb."""


def add_file(parser: ArgumentParser, name: str, text: str, **more: Any) -> None:  # noqa: ANN401
    """Add an argument that names a file; ``more`` goes to ``add_argument``."""
    parser.add_argument(name, type=Path, metavar="FILE", help=text, **more)


def add_pids(parser: ArgumentParser, text: str, note: str = "") -> None:
    """Add ``--pid``, whose values are a list."""
    text = f"{text}; repeatable{note}"
    parser.add_argument("--pid", type=int, action="append", default=[], metavar="PID", help=text)


def check_pids(pids: Iterable[int]) -> None:
    """
    Check that these processes exist.

    Raises:
        UsageError: A pid does not exist, or is the id of a thread.
    """
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"no process {pid}", hint="list processes with ps -e")
        process = process_of(pid)
        if process not in {None, pid}:
            hint = f"name the process: --pid {process}"
            raise UsageError(f"{pid} is a thread of process {process}", hint=hint)


class UsageError(OtelGpuError):
    """The command line is invalid."""

    exit_code = 2


def refuse_overwriting(args: Namespace) -> None:
    """
    Check that no output would overwrite an input.

    Raises:
        UsageError: The command line names one file as both.
    """
    named = {name: value for name, value in vars(args).items() if isinstance(value, str | Path)}
    for path in written_files(args):
        others = (Path(value) for other, value in named.items() if other not in _WRITTEN)
        if path.is_file() and any(one.is_file() and one.samefile(path) for one in others):
            raise UsageError(f"{path} is both input and output", hint="name another file")


def written_files(args: Namespace) -> list[Path]:
    """Return the files that a command line names as outputs."""
    named = vars(args)
    return [Path(named[name]) for name in _WRITTEN if isinstance(named.get(name), str | Path)]


class Output:
    """Writes results to standard output, and notes for the operator to standard error."""

    @property
    def stdout(self) -> TextIO:
        """The stream of results, for code that writes to a file object."""
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
        """Write a document that declares UTF-8 as its encoding."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(text)

    def json(self, document: Any) -> None:  # noqa: ANN401 -- whatever JSON can hold
        """Write one JSON document as the result."""
        self.line(json.dumps(document, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Write a note for the operator to standard error, as ``otel-gpu: text``."""
        sys.stderr.write(f"{PROGRAM}: {printable(text)}\n")
        sys.stderr.flush()


def _console(stream: TextIO) -> "Console":
    # A pipe has no width.
    is_known = stream.isatty() or "COLUMNS" in os.environ
    return open_console(stream, None if is_known else PIPE_COLUMNS)


def open_console(stream: TextIO, width: int | None) -> "Console":
    """Return a rich console on a stream. Width ``None``: that of its terminal."""
    from rich.console import Console  # noqa: PLC0415 -- 20 ms, not needed for JSON

    class ConsoleOfPipes(Console):
        def on_broken_pipe(self) -> None:
            # Rich would exit with 1. ``cli.main`` handles closed pipes.
            raise BrokenPipeError

    return ConsoleOfPipes(file=stream, width=width, highlight=False, markup=False, emoji=False)
