"""
The environment and the standard descriptors that the agent was started with.

Its command gets both unchanged.
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
    Execute this program again without Python's environment variables, if there are any.

    They are meant for the command. The script ``otel-gpu`` already ignores them; this is for
    ``python -m otel_gpu``. If PYTHONPATH contains this package, nothing is done.
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
    """Return the original environment, without the locale that Python adds."""
    environment = dict(os.environ)
    with contextlib.suppress(OSError):
        given = Path("/proc/self/environ").read_bytes()
        if not any(one.startswith(f"{_COERCED}=".encode()) for one in given.split(b"\0")):
            environment.pop(_COERCED, None)
    return environment


def fill_closed_descriptors() -> None:
    """
    Open closed standard descriptors on /dev/null, so that no file of the agent gets their numbers.

    They are closed on exec, so the command gets them closed.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # Gets this number, because all lower ones are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def let_go_in_child() -> None:
    """Detach a child that outlives the agent from its signals and standard descriptors."""
    # The child ends by itself. Signals to the agent's process group are not meant for it.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    # A reader of the agent's output would otherwise wait for the child.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def name_child(name: str) -> None:
    """
    Set the name of a child of the agent, of at most 15 bytes.

    Not by ``/proc/self/comm``: if the agent's executable has file capabilities, as in the container image,
    that file belongs to root, and the agent may run as another user.
    """
    # Imported here, because most runs do not need ctypes.
    import ctypes  # noqa: PLC0415

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode("ascii"), 0, 0, 0)
