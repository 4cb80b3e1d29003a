"""
The command line. No other module sets exit codes.

The module of a verb is imported only when the verb is used, so ``otel-gpu --version`` costs no more
than argparse.
"""

import argparse
import codecs
import contextlib
import gc
import importlib
import io
import json
import keyword
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import otel_gpu
from otel_gpu import config
from otel_gpu.capture.processes.inherited import fill_closed_descriptors, start_isolated
from otel_gpu.capture.processes.stopped_processes import AGENT_NAME
from otel_gpu.cli import commands
from otel_gpu.cli.commands import PROGRAM, Output, UsageError
from otel_gpu.errors import BpfError, OtelGpuError
from otel_gpu.formatting.printable import printable, printable_lines
from otel_gpu.lean_imports import import_hashes

_LOG_LINES = 12
_INDENT = "    "
_COMMAND = "What follows -- is the command to run, with its arguments."
# As a shell reports the death of a command by SIGINT and SIGPIPE.
_EXIT_INTERRUPTED = 130
_EXIT_BROKEN_PIPE = 141
_ESCAPING = "otel_gpu.escaping"
# Nearly all objects of the start live until the end.
_YOUNG_OBJECTS = 50_000

_logger = logging.getLogger("otel_gpu")


class _Parser(argparse.ArgumentParser):
    takes_command = False

    def error(self, message: str) -> NoReturn:
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        if is_unknown and self.takes_command and not words.startswith("-"):
            hint = f"a command stands after --, as in {self.prog} -- python train.py"
            raise UsageError(message, hint=hint)
        raise UsageError(message, hint=f"see {self.prog} --help")

    def format_usage(self) -> str:
        usage = super().format_usage()
        return f"{usage.rstrip()} [-- CMD ...]\n" if self.takes_command else usage

    def format_help(self) -> str:
        usage = super().format_usage()
        return super().format_help().replace(usage, self.format_usage(), 1)


# Verbs that run as long as the host does.
_LASTING = frozenset({"run"})


def import_verb(name: str) -> ModuleType:
    """Import the module of a verb, which must be in ``commands.VERBS``."""
    module = name.replace("-", "_") + ("_" if keyword.iskeyword(name) else "")
    return importlib.import_module(f"{commands.__name__}.{module}")


def program_parser() -> argparse.ArgumentParser:
    """Return the parser of a command line without a verb; its help lists the verbs."""
    parser = _Parser(
        prog=PROGRAM,
        description="Count every CUDA call of unmodified programs with eBPF and export it as OTLP.",
        epilog="Endpoints, headers, TLS and protocols are the standard OTEL_EXPORTER_OTLP_* "
        f"variables. '{PROGRAM} doctor' checks what this host allows.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {otel_gpu.__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in commands.VERBS.items():
        subparsers.add_parser(name, help=text)
    return parser


def verb_parser(name: str, verb: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of the arguments after a verb."""
    parser = _Parser(
        prog=f"{PROGRAM} {name}",
        description=" ".join((verb.__doc__ or commands.VERBS[name]).split()),
        epilog=_COMMAND if _takes_command(verb) else None,
        allow_abbrev=False,
    )
    parser.takes_command = _takes_command(verb)
    verb.add_arguments(parser)
    for key in getattr(verb, "CONFIG_FLAGS", ()):
        option = config.OPTIONS[key]
        parser.add_argument(
            option.flag or f"--{key.replace('.', '-').replace('_', '-')}",
            dest=_destination(key),
            metavar="|".join(option.choices) or key.rpartition("_")[2].upper(),
            help=option.text.replace("`", "").replace("%", "%%"),
        )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration file")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more; -vv logs everything"
    )
    return parser


def _takes_command(verb: ModuleType) -> bool:
    return bool(getattr(verb, "TAKES_COMMAND", False))


def _destination(key: str) -> str:
    return "option:" + key


def program() -> int:
    """Run ``main`` in a process that then ends; return the exit code."""
    # Collecting reference cycles after imports and at the end takes a sixth of a short program's time.
    gc.set_threshold(_YOUNG_OBJECTS)
    start_isolated()
    fill_closed_descriptors()
    _escape_unencodable_text()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(AGENT_NAME, encoding="ascii")
    code = main()
    gc.freeze()
    return code


def _escape_unencodable_text() -> None:
    # Escapes as in JSON, so JSON output stays valid.
    def escape(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error(_ESCAPING, escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPING)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Errors are printed, not raised."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    handler = logging.StreamHandler()
    handler.setFormatter(_LogFormatter(f"{PROGRAM}: %(level)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except OtelGpuError as error:
        _report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed it.
        return _EXIT_BROKEN_PIPE
    finally:
        _leave_broken_pipes()
        root.removeHandler(handler)
    return code


def _leave_broken_pipes() -> None:
    # At exit Python flushes the streams again, prints another error and ends with 120.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main(arguments: list[str]) -> int:
    try:
        return _run_verb(arguments)
    except SystemExit as end:  # how argparse ends after --help and --version
        return end.code if isinstance(end.code, int) else 0


def _run_verb(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        _main_without_verb(arguments)
    name, *rest = arguments
    if name not in commands.VERBS:
        hint = config.nearest(name, commands.VERBS) or f"see {PROGRAM} --help"
        raise UsageError(f"unknown verb {name!r}", hint=hint)
    if name in _LASTING:
        import_hashes()
    verb = import_verb(name)
    at = rest.index("--") if "--" in rest else len(rest)
    if rest[at:] and not _takes_command(verb):
        raise UsageError(f"{name} runs no command: remove -- and what follows")
    args = verb_parser(name, verb).parse_args(rest[:at])
    args.command = rest[at + 1 :]
    commands.refuse_overwriting(args)
    flags = {key: vars(args).get(_destination(key)) for key in config.OPTIONS}
    settings = config.load(args.config, os.environ, flags)
    _set_log_level(settings, args.verbose)
    code: int = verb.run(args, settings, Output())
    return code


def _main_without_verb(arguments: list[str]) -> NoReturn:
    hint = f"see {PROGRAM} --help"
    if not arguments:
        raise UsageError("a verb is needed", hint=hint)
    if arguments[0] not in {"-h", "--help", "--version"}:
        raise UsageError(f"{arguments[0]} before the verb", hint=hint)
    program_parser().parse_args(arguments[:1])
    raise AssertionError(arguments)  # argparse ends the program after both


def _set_log_level(settings: config.Config, verbose: int) -> None:
    level = settings.log.level.upper()
    if verbose:
        level = "INFO" if verbose == 1 else "DEBUG"
    _logger.setLevel(level)
    if not verbose:
        # The SDK logs each failed attempt of each request; we log an outage, once.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        # A message stays one line, whatever names it contains.
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 -- as logging has it
        return _INDENT + printable_lines(super().formatException(ei), _INDENT)


def _report(error: OtelGpuError) -> None:
    Output().note(f"error: {error}")
    if isinstance(error, BpfError) and error.log:
        lines = error.log.rstrip().splitlines()
        # The verifier logs every step, and its verdict last.
        if len(lines) > _LOG_LINES and not _logger.isEnabledFor(logging.INFO):
            print(f"({len(lines) - _LOG_LINES} lines before these: -v)", file=sys.stderr)
            lines = lines[-_LOG_LINES:]
        print(printable_lines("\n".join(lines)), file=sys.stderr)
    if error.hint:
        print(printable(f"hint: {error.hint}"), file=sys.stderr, flush=True)
