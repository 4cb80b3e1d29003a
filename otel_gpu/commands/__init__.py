"""
The verbs of the command line, one module each.

A module here that has a ``NAME`` is a verb. ``cli.py`` imports it only when it is asked
for, and reads ``NAME`` and ``HELP`` from its source, so both are plain string literals.
A verb holds:

``NAME``
    The verb; the file's name, with ``-`` for ``_``. A name that Python has a use for has
    an ``_`` behind it in the file's.
``HELP``
    One line for ``otel-gpu --help``: a sentence.
``add_arguments(parser)``
    Adds the verb's own arguments. ``cli.py`` adds ``--config`` and ``-v`` to every verb.
``run(args, config, out)``
    Does the work and returns the exit code. What it cannot do it raises as an
    ``OtelGpuError``: ``cli.py`` prints that and picks the code.

and may hold:

``DESCRIPTION``
    The paragraph above the arguments in the verb's own help; default: ``HELP``.
``CONFIG_FLAGS``
    Keys of options, such as ``("spans.mode", "export.otlp_file")``, that the verb takes
    as flags. Name and help of a flag come from the table in ``config.py``; its value
    reaches the verb in ``config``, not in ``args``.
``TAKES_COMMAND``
    True: what follows ``--`` reaches the verb in ``args.command`` as a list of strings,
    which is empty without it.

Nothing here prints: text goes through the ``Output`` that ``run`` is given. Imports at
the top of a verb are paid only by that verb.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError

if TYPE_CHECKING:
    from rich.console import Console


class UsageError(OtelGpuError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class Output(Protocol):
    """Where text goes: results to standard output, what is said to a person to standard error."""

    @property
    def stdout(self) -> TextIO:
        """The stream of results, for writers that want a file."""

    @property
    def stdout_console(self) -> "Console":
        """A rich console on standard output; plain text when that is no terminal."""

    @property
    def stderr_console(self) -> "Console":
        """A rich console on standard error; plain text when that is no terminal."""

    def line(self, text: str = "") -> None:
        """Write one line of results."""

    def json(self, document: Any) -> None:  # noqa: ANN401 -- whatever JSON can hold
        """Write one JSON document as the result."""

    def note(self, text: str) -> None:
        """Tell the operator something, on standard error, as ``otel-gpu: text``."""


class Command(Protocol):
    """What a verb's module holds; the rest of the module's names are optional."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the verb's own arguments."""

    def run(self, args: Namespace, config: Config, out: Output) -> int:
        """Do the work; the exit code."""
