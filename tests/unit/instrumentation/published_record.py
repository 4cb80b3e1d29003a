"""The thread context record that readers outside the process see."""

import ctypes

from otel_gpu.instrumentation.thread_context import library_path

HEADER_BYTES = 28


def published():
    """Read this thread's record as another process does: through the exported symbol."""
    pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library_path())), "otel_thread_ctx_v1").value
    if pointer is None:
        return None
    record = ctypes.string_at(pointer, HEADER_BYTES)
    if record[24] != 1:
        return None
    assert record[26:28] == bytes(2)
    return int.from_bytes(record[:16], "big"), int.from_bytes(record[16:24], "big"), record[25]
