"""Publishes the span of a thread for readers outside the process (OTEP 4947)."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from otel_gpu.files.built_libraries import CONTEXT, built_library

SCHEMA_VERSION: Final = "tlsdesc_v1_dev"
"""Name of the layout of ``preload/thread_context.c`` in the process context."""

_LOW: Final = (1 << 64) - 1


class Publisher(NamedTuple):
    """
    Writes the thread context of the calling thread.

    ``publish`` takes trace id, span id and trace flags.
    """

    publish: Callable[[int, int, int], None]
    clear: Callable[[], None]


def library_path() -> Path:
    """Return the path of the native library for this machine, which need not exist."""
    return built_library(CONTEXT)


@functools.cache
def load_publisher() -> Publisher | None:
    """Return the publisher of this process. None: no native library exists for this machine."""
    try:
        # Both calls take less time than releasing the GIL.
        library = ctypes.PyDLL(str(library_path()))
    except OSError:
        return None
    write, clear = library.otel_gpu_publish_context, library.otel_gpu_clear_context
    write.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint8]
    write.restype, clear.argtypes, clear.restype = None, [], None

    def publish(trace_id: int, span_id: int, trace_flags: int) -> None:
        write(trace_id >> 64, trace_id & _LOW, span_id, trace_flags)

    return Publisher(publish, clear)
