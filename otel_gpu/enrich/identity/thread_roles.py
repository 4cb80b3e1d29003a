"""
Thread roles: the function that the stack of a thread without a name begins with.

Python's threads all have the name of their process, and so do its worker processes. The outermost
function that does not start threads or processes shows what a thread is for: ``_feed`` of a queue,
``_worker_loop`` of a data loader.
"""

from collections.abc import Sequence

from otel_gpu.enrich.identity import libraries
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.identity.libraries import (
    STANDARD_LIBRARY,
    is_standard_library,
    layer_of,
    source_of,
)
from otel_gpu.enrich.identity.services import is_python
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.frames import Frame, FrameType

MAX_THREADS = 8192
"""Threads whose role is kept; the one that was not used for longest is evicted first."""
# Code that runs the function of a new thread or process.
_STARTS = frozenset({"run", "_bootstrap", "_bootstrap_inner"})
_STARTERS = frozenset(
    {f"{STANDARD_LIBRARY}threading.py", f"{STANDARD_LIBRARY}multiprocessing/process.py"}
)
_MODULE = "<module>"
_IMPORT = "<frozen importlib."
_NOT_OWN = frozenset({libraries.C_LIBRARY, libraries.PYTHON})


class ThreadRoles:
    """The roles of threads that have one, by (pid, tid); bounded."""

    def __init__(self) -> None:
        self._roles: Recent[tuple[int, int], str] = Recent(MAX_THREADS, cache="known_processes")

    def learn(self, pid: int, tid: int, comm: str, process_comm: str, stack: CallStack) -> str:
        """Return the role of a thread when it is seen for the first time; else an empty text."""
        thread = (pid, tid)
        if self._roles.use(thread):
            return ""
        # The first thread of a program has the program's name, which is useless for an interpreter.
        if comm != process_comm or (pid == tid and not is_python(comm)):
            return ""
        role = find_role(stack)
        if role:
            self._roles[thread] = role
        return role

    def forget(self, pid: int, tid: int) -> None:
        """Forget one thread: another program runs in it."""
        self._roles.pop((pid, tid), None)

    def clear(self) -> None:
        """Forget everything: another capture begins."""
        self._roles.clear()


def find_role(stack: CallStack) -> str:
    """
    Return the outermost function of a stack that shows what its thread is for.

    Empty: not known, as frames were left out, or have no names.
    """
    frames = stack.frames
    python = [frame for frame in frames if frame.kind in (FrameType.PYTHON, FrameType.CUT)]
    if any(frame.kind == FrameType.PYTHON for frame in python):
        return _python_role(python)
    for frame in reversed(frames) if stack.complete else ():
        if (
            frame.kind == FrameType.NATIVE
            and frame.function
            and layer_of(frame.module) not in _NOT_OWN
        ):
            return frame.function
    return ""


def _python_role(frames: Sequence[Frame]) -> str:
    for inner, frame in enumerate(frames):
        if _own_name(frame) in _STARTS and source_of(frame.file) in _STARTERS:
            # The innermost starter: a process that was forked has its parent's frames as well.
            return _own_name(frames[inner - 1]) if inner else ""
        if frame.kind == FrameType.CUT:
            return ""
    for frame in reversed(frames):
        if frame.file.startswith(_IMPORT):
            return ""  # what a module does while it is loaded is not what its importer is for
        if not is_standard_library(frame.file) and frame.function != _MODULE:
            return _own_name(frame)
    return ""


def _own_name(frame: Frame) -> str:
    return frame.function.rpartition(".")[2] if frame.kind == FrameType.PYTHON else ""
