"""Reports steps to an agent through a probed function. Without an agent, a report costs one call."""

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
        # The call takes less time than releasing the GIL.
        step = ctypes.PyDLL(str(built_library(MARKS))).otel_gpu_step
    except OSError:
        return None
    step.argtypes, step.restype = [ctypes.c_char_p], None
    return step


def prepare_marks() -> None:
    """Load the native library early, so an agent can probe it before the first step."""
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
    Report that a step of this thread has ended.

    Args:
        number: The program's number of the step.
        start_ktime_ns: Its start on the clock of ``time.monotonic_ns``.
        end_ktime_ns: Its end on that clock.
        loader_wait_ns: Time in it waiting for the data loader.
        identity: The program's own span of the step. None: it has none.
        kind: ``enum step_kind``.
        name: Its name, if it has one; 31 bytes are kept.
    """
    report = _step_function()
    if report is None:
        return
    trace_id, span_id, trace_flags = identity or _NO_SPAN
    report(
        wire.REPORTED_STEP.pack(
            *(max(start_ktime_ns, 0), max(end_ktime_ns, 0), time.monotonic_ns()),
            *(number & _U64, max(loader_wait_ns, 0)),
            *(trace_id.to_bytes(16), span_id.to_bytes(8), trace_flags & 0xFF),
            *(kind, name.encode("utf-8", "replace")[: wire.STEP_NAME_BYTES - 1]),
        )
    )
