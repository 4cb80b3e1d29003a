"""
The reason of a blocked thread, refined by its own stack.

To the kernel a GIL, a mutex and a queue of Python are all a futex, and a driver's poll is a poll.
The user stack shows which. It only makes a reason more exact: each row lists the reasons that it
can replace, and without a matching row the kernel's reason stays.

The caller of the waiting function is matched first. Frames that only show *how* a thread waits (the
C library's, the interpreter's own) are skipped, and the first one behind them decides. If that is a
lock of Python's, the code that took it in Python can be more exact: the frames of the standard
library and of PyTorch's data loader are matched outwards, and no further. A program's own function
ends the search, as code outside of it called the program and not the wait.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from otel_gpu.enrich.identity import libraries
from otel_gpu.enrich.identity.libraries import is_standard_library, layer_of, source_of
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.wire.frames import Frame, FrameType


class UserRule(NamedTuple):
    """
    A reason, and the frames that mean it.

    Attributes:
        reason: The reason.
        functions: Whole names, as a pattern; of a method only what follows the last dot.
        instead_of: The reasons that this one is more exact than.
        files: If set, the frame is a Python frame, and its file ends so, as a pattern.
        layer: If set, the frame is native and in such a library.
        goes_on: Whether its caller in Python can be more exact.
    """

    reason: WaitReason
    functions: str
    instead_of: frozenset[WaitReason]
    files: str = ""
    layer: str = ""
    goes_on: bool = False


_VAGUE = frozenset({WaitReason.LOCK, WaitReason.UNKNOWN})
_WAITS = frozenset({WaitReason.LOCK, WaitReason.IPC, WaitReason.UNKNOWN})
_UNKNOWN_ONLY = frozenset({WaitReason.UNKNOWN})

# If two rows match a frame, the first one counts.
USER_RULES: tuple[UserRule, ...] = (
    UserRule(
        WaitReason.GIL,
        r"take_gil|PyEval_(RestoreThread|AcquireThread|AcquireLock)|PyGILState_Ensure"
        r"|_PyThreadState_Attach|tstate_wait_attach",
        _VAGUE,
    ),
    UserRule(
        WaitReason.LOCK,
        r"lock_PyThread_acquire_lock|rlock_acquire|acquire_timed|PyThread_acquire_lock\w*"
        r"|_?PyMutex_Lock\w*|_PyParkingLot_Park|_PyRecursiveMutex_Lock\w*|_PySemaphore_\w*Wait"
        r"|_multiprocessing_SemLock_acquire\w*",
        _UNKNOWN_ONLY,
        goes_on=True,
    ),
    UserRule(WaitReason.QUEUE, r"simplequeue_get\w*|_queue_SimpleQueue_get\w*", _VAGUE),
    # A mutex is a lock wherever it is, also between two threads in the driver.
    UserRule(
        WaitReason.LOCK,
        r"_*pthread_(mutex|rwlock)_\w*lock\w*|__lll_lock_wait\w*",
        _UNKNOWN_ONLY,
        layer=libraries.C_LIBRARY,
    ),
    # All other waits of the driver are for the device.
    UserRule(
        WaitReason.DRIVER,
        r".*",
        frozenset({WaitReason.LOCK, WaitReason.IPC, WaitReason.SLEEP, WaitReason.UNKNOWN}),
        layer=libraries.DRIVER,
    ),
    UserRule(
        WaitReason.IPC,
        r"sock_(recv|send|accept|connect|call)\w*|(select_)?(poll|epoll)_poll\w*|select_select\w*"
        r"|internal_connect|_ssl__SSLSocket_(read|write|do_handshake)\w*",
        _UNKNOWN_ONLY,
        goes_on=True,
    ),
    UserRule(
        WaitReason.IO,
        r"_io_FileIO_(read|readall|readinto|write)\w*|_?Py_(read|write)|_bufferedreader_\w+",
        _UNKNOWN_ONLY,
        goes_on=True,
    ),
    UserRule(WaitReason.SLEEP, r"time_sleep|pysleep", _UNKNOWN_ONLY),
    UserRule(
        WaitReason.LOCK,
        r"_*pthread_(cond_\w*wait|barrier_wait)\w*|__futex_\w+|_*(new_)?sem_\w*wait\w*",
        _UNKNOWN_ONLY,
        layer=libraries.C_LIBRARY,
        goes_on=True,
    ),
    UserRule(WaitReason.QUEUE, r"_try_get_data", _WAITS, files=r"torch/utils/data/dataloader\.py"),
    UserRule(WaitReason.QUEUE, r"get|put", _WAITS, files=r"lib/python/queue\.py"),
    UserRule(WaitReason.QUEUE, r"get|put", _WAITS, files=r"lib/python/multiprocessing/queues\.py"),
    UserRule(
        WaitReason.QUEUE,
        r"poll|recv(_bytes(_into)?)?|_poll|_recv(_bytes)?|wait",
        _WAITS,
        files=r"lib/python/multiprocessing/connection\.py",
    ),
    UserRule(
        WaitReason.IPC,
        r"recv\w*|send\w*|accept|connect|readinto|create_connection",
        _UNKNOWN_ONLY,
        files=r"lib/python/(socket|ssl)\.py",
    ),
)

# Beside the standard library, files whose functions wait for their callers.
_DATA_LOADER = re.compile(r"(?:.*/)?torch/utils/data/.*", re.DOTALL)
# Native frames that show how a thread waits, and not for what.
_HOW = frozenset({libraries.C_LIBRARY, libraries.PYTHON, libraries.PYTHON_MODULE})


class _Pattern(NamedTuple):
    rule: UserRule
    functions: str
    files: str | None


_PATTERNS = tuple(
    _Pattern(
        rule,
        # As in the kernel, a compiler can split a function in parts.
        rf"(?s:(?:{rule.functions})(?:\..*)?)",
        rf"(?:.*/)?{rule.files}" if rule.files else None,
    )
    for rule in USER_RULES
)
# When first needed: most starts never need them.
_compile: Callable[[str], re.Pattern[str]] = functools.cache(re.compile)


def find_user_rules(frames: Sequence[Frame]) -> tuple[UserRule, ...]:
    """Return the rows that match a stack (innermost frame first), the most exact first."""
    found: list[UserRule] = []
    outer = iter(frames)
    frame = _go_through_native(outer, found)
    if frame is not None and all(rule.goes_on for rule in found):
        _go_through_python(frame, outer, found)
    # Outer rows are more exact: a queue is made of locks.
    return tuple(reversed(found))


def refine_reason(reason: WaitReason, rules: Sequence[UserRule]) -> WaitReason:
    """Return a reason from the kernel, or the more exact one of the user stack."""
    for rule in rules:
        if reason in rule.instead_of:
            return rule.reason
    return reason


def _go_through_native(frames: Iterator[Frame], found: list[UserRule]) -> Frame | None:
    # The innermost Python frame, if only waits lie inside of it.
    for frame in frames:
        if frame.kind == FrameType.PYTHON:
            return frame
        if frame.kind != FrameType.NATIVE:
            return None
        layer = layer_of(frame.module)
        rule = _match(frame, layer)
        if rule is not None and rule not in found:
            found.append(rule)
            if not rule.goes_on:
                return None
        elif rule is None and layer not in _HOW:
            return None
    return None


def _go_through_python(frame: Frame, outer: Iterator[Frame], found: list[UserRule]) -> None:
    while is_standard_library(frame.file) or _DATA_LOADER.fullmatch(frame.file):
        rule = _match(frame, "")
        if rule is not None:
            found.append(rule)
            if rule.reason == WaitReason.QUEUE:
                return
        following = next((other for other in outer if other.kind != FrameType.NATIVE), None)
        if following is None or following.kind != FrameType.PYTHON:
            return
        frame = following


def _match(frame: Frame, layer: str) -> UserRule | None:
    is_python = frame.kind == FrameType.PYTHON
    name = frame.function.rpartition(".")[2] if is_python else frame.function
    for rule, functions, files in _PATTERNS:
        if (files is not None) != is_python or (rule.layer and rule.layer != layer):
            continue
        if _compile(functions).fullmatch(name) and (
            files is None or _compile(files).fullmatch(source_of(frame.file))
        ):
            return rule
    return None
