"""Says what the program does to whoever watches this process; where nobody does, that is a call."""

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.annotations import pack_pairs
from otel_gpu.instrumentation.context import Identity
from otel_gpu.native_library import MARKS, native_library

_NO_SPAN: Final = (0, 0, 0)
_U64: Final = (1 << 64) - 1


class _Functions(NamedTuple):
    step: Callable[[bytes], None]
    annotate: Any


@functools.cache
def _functions() -> _Functions | None:
    try:
        # Both are shorter than releasing the GIL for them.
        library = ctypes.PyDLL(str(native_library(MARKS)))
    except OSError:
        return None
    step, annotate = library.otel_gpu_step, library.otel_gpu_annotate
    step.argtypes, step.restype = [ctypes.c_char_p], None
    annotate.argtypes, annotate.restype = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t], None
    return _Functions(step, annotate)


def prepare_marks() -> None:
    """Load what marks need, so that who watches this process sees the first one."""
    _functions()


def annotate(**said: object) -> None:
    """
    Say something of this process, as ``otel-gpu annotate`` does from outside.

        annotate(epoch=3, phase="warm-up")

    Values are kept as text, 128 characters of them, and up to 500 bytes of all.

    Raises:
        ValueError: One of them cannot be printed, or they are too long.
    """
    functions = _functions()
    text = pack_pairs([f"{key}={value}" for key, value in said.items()])
    if functions is not None:
        functions.annotate(wire.ANNOTATE_SELF, text, len(text))


def annotate_function() -> Any:  # noqa: ANN401 -- of ctypes
    """Return the function at which an agent listens; None: there is no native library."""
    functions = _functions()
    return None if functions is None else functions.annotate


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
    functions = _functions()
    if functions is None:
        return
    trace_id, span_id, trace_flags = identity or _NO_SPAN
    functions.step(
        wire.TOLD_STEP.pack(
            *(max(start_ktime_ns, 0), max(end_ktime_ns, 0), time.monotonic_ns()),
            *(number & _U64, max(loader_wait_ns, 0)),
            *(trace_id.to_bytes(16), span_id.to_bytes(8), trace_flags & 0xFF),
            *(kind, name.encode("utf-8", "replace")[: wire.STEP_NAME_BYTES - 1]),
        )
    )
