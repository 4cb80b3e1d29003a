"""Says what the program does to whoever watches this process; where nobody does, that is a call."""

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Final

from otel_gpu import wire
from otel_gpu.files.built_libraries import MARKS, built_library
from otel_gpu.instrumentation.context import Identity

_NO_SPAN: Final = (0, 0, 0)
_U64: Final = (1 << 64) - 1


@functools.cache
def _step_function() -> Callable[[bytes], None] | None:
    try:
        # It is shorter than releasing the GIL for it.
        step = ctypes.PyDLL(str(built_library(MARKS))).otel_gpu_step
    except OSError:
        return None
    step.argtypes, step.restype = [ctypes.c_char_p], None
    return step


def prepare_marks() -> None:
    """Load what marks need, so that who watches this process sees the first one."""
    _step_function()


def mark_step(
    number: int,
    start_ktime_ns: int,
    end_ktime_ns: int,
    *,
    loader_wait_ns: int = 0,
    identity: Identity | None = None,
    kind: int = wire.STEP_UNKNOWN,
    name: str = "",
) -> None:
    """
    Say that a step of this thread has ended.

    Args:
        number: Which one it is, as the program counts.
        start_ktime_ns: When it began, as ``time.monotonic_ns`` has it.
        end_ktime_ns: When it ended.
        loader_wait_ns: What of it was spent waiting for the data loader.
        identity: The program's own span of it; None: it has none.
        kind: ``enum step_kind``.
        name: What it is called, if it has a name; 31 bytes are kept.
    """
    report = _step_function()
    if report is None:
        return
    trace_id, span_id, trace_flags = identity or _NO_SPAN
    report(
        wire.TOLD_STEP.pack(
            *(max(start_ktime_ns, 0), max(end_ktime_ns, 0), time.monotonic_ns()),
            *(number & _U64, max(loader_wait_ns, 0)),
            *(trace_id.to_bytes(16), span_id.to_bytes(8), trace_flags & 0xFF),
            *(kind, name.encode("utf-8", "replace")[: wire.STEP_NAME_BYTES - 1]),
        )
    )
