"""
Say something of a process that is watched, such as `epoch=3`: for scripts, schedulers and callbacks. It holds for what
the process, and those that it makes, do from then on. Without `--pid` it is about the process around this command that uses
CUDA, else about the outermost one that is watched. The exit code is 0 if an agent listens, and 1 if none does.
"""

import ctypes
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from otel_gpu.annotations import pack_pairs
from otel_gpu.capture.libraries import ElfSymbols
from otel_gpu.commands import Output, UsageError, check_pids
from otel_gpu.config import Config
from otel_gpu.instrumentation.marks import annotate_function
from otel_gpu.native_library import MARKS, native_library

_CODE_BYTES: Final = 4
# An agent that watches this process places its probe when the library is mapped.
_PATIENCE_S: Final = 1.0
_LOOK_S: Final = 0.02


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pairs", nargs="+", metavar="KEY=VALUE", help="what to say")
    parser.add_argument(
        "--pid",
        type=int,
        default=0,
        metavar="PID",
        help="about this process, which has to be yours",
    )


def run(args: Namespace, config: Config, out: Output) -> int:  # noqa: ARG001 - one protocol
    """Say it, and whether anybody listens."""
    if not 0 <= args.pid < 1 << 31:
        raise UsageError(f"--pid {args.pid}: no process has this number")
    if Path(f"/proc/{args.pid}").exists():
        check_pids([args.pid])
    try:
        text = pack_pairs(args.pairs)
    except ValueError as error:
        raise UsageError(str(error)) from error
    function = annotate_function()
    if function is None or not _is_heard(function):
        out.note("nobody listens: no agent captures this program, or one of this installation")
        return 1
    function(args.pid, text, len(text))
    return 0


def _is_heard(function: Any) -> bool:  # noqa: ANN401 -- of ctypes
    """Wait for a probe, which replaces code in memory, as long as it takes to place one."""
    with native_library(MARKS).open("rb") as file:
        file.seek(dict(ElfSymbols(file).functions)[function.__name__])
        code = file.read(_CODE_BYTES)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    until_s = time.monotonic() + _PATIENCE_S
    while ctypes.string_at(address, _CODE_BYTES) == code:
        if time.monotonic() > until_s:
            return False
        time.sleep(_LOOK_S)
    return True
