"""
What the agent was started with: its environment and its standard descriptors.

Both are its command's as well, which gets them as they were.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_NAME = 15  # from include/uapi/linux/prctl.h
# Python sets it where no locale is set, so that its own children use UTF-8.
_COERCED = "LC_CTYPE"


def start_isolated() -> None:
    """
    Start this program again without Python's variables, if there are any that Python obeys.

    They are for the command. ``otel-gpu`` itself starts so; this is for ``python -m otel_gpu``. Where
    PYTHONPATH is what leads to this package, nothing is done.
    """
    found = [name for name in os.environ if name.startswith("PYTHON")]
    if not found or sys.flags.ignore_environment or not sys.executable:
        return
    path = os.environ.get("PYTHONPATH")
    if path and str(Path(__file__).parents[3]) in map(os.path.abspath, path.split(os.pathsep)):
        return
    arguments = [sys.executable, "-E", *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, given_environment())  # noqa: S606


def given_environment() -> Mapping[str, str]:
    """Return the environment as it was given, without the locale that Python adds to it."""
    environment = dict(os.environ)
    with contextlib.suppress(OSError):
        given = Path("/proc/self/environ").read_bytes()
        if not any(one.startswith(f"{_COERCED}=".encode()) for one in given.split(b"\0")):
            environment.pop(_COERCED, None)
    return environment


def fill_closed_descriptors() -> None:
    """
    Open the standard descriptors that are closed, so that no file of the agent becomes one.

    They are closed on exec: the command has them as they were.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest one that is free, as all below are open by now.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def let_go_in_child() -> None:
    """Give up, in a child that outlives the agent, the signals and the standard descriptors of it."""
    # It ends by itself. What is sent to all of the agent's group is not for it.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    # Whoever reads the agent's output would wait for the child.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def name_child(name: str) -> None:
    """
    Give a child of the agent a name of its own, of at most 15 bytes.

    Not by ``/proc/self/comm``: where the agent's program has capabilities of its own, as in the image, that
    file is root's, and the agent need not be.
    """
    # Each run of the program would pay for it, and those that have children have it already.
    import ctypes  # noqa: PLC0415

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode("ascii"), 0, 0, 0)
