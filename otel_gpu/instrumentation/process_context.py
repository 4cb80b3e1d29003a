"""
Publishes the resource of this process for readers outside (OTEP 4719).

``otel_gpu/procfs/process_context.py`` reads it, and describes the layout.
"""

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.export.otlp.attribute_encoder import AttributeEncoder, field
from otel_gpu.instrumentation.thread_context import SCHEMA_VERSION

_LENGTH: Final = 64 * 1024
_HEADER: Final = struct.Struct("<8sIIQQ")
_SIGNATURE: Final = b"OTEL_CTX"
_VERSION: Final = 2
_NOT_FORKED: Final = 10  # MADV_DONTFORK
_SET_NAME: Final = 0x53564D41, 0  # PR_SET_VMA, PR_SET_VMA_ANON_NAME
_FAILED: Final = ctypes.c_void_p(-1).value


class ProcessContext:
    """
    The published resource of this process.

    A child of ``fork`` publishes its own, as it does not inherit the mapping and has another
    ``service.instance.id``.

    Args:
        resource: Returns the resource attributes of this process's spans.
        is_thread_context: Whether threads publish their spans.
    """

    def __init__(
        self, resource: Callable[[], Mapping[str, object]], *, is_thread_context: bool = False
    ) -> None:
        self._resource = resource
        self._is_thread_context = is_thread_context
        self._address = 0
        self.publish()
        os.register_at_fork(after_in_child=self.publish)

    def publish(self) -> None:
        """Publish in a new mapping. Does nothing if that fails, or the resource is too large."""
        payload = encode(self._resource(), is_thread_context=self._is_thread_context)
        if len(payload) > _LENGTH - _HEADER.size:
            return
        # The old mapping stays: after a fork its address can belong to another mapping.
        self._address = _map()
        if not self._address:
            return
        place = self._address + _HEADER.size
        ctypes.memmove(place, payload, len(payload))
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        header = _HEADER.pack(_SIGNATURE, _VERSION, len(payload), now_ns, place)
        # The signature is written last, so readers that find it find a complete header.
        ctypes.memmove(self._address + len(_SIGNATURE), header[len(_SIGNATURE) :], 24)
        ctypes.memmove(self._address, header, len(_SIGNATURE))
        _name(self._address)


def encode(resource: Mapping[str, object], *, is_thread_context: bool) -> bytes:
    """Encode a ``ProcessContext`` message: a resource, and the layout of thread contexts."""
    layout = [("threadlocal.schema_version", SCHEMA_VERSION), ("threadlocal.attribute_key_map", ())]
    return field(b"\x0a", AttributeEncoder(b"\x0a").encode(resource.items())) + (
        AttributeEncoder(b"\x12").encode(layout) if is_thread_context else b""
    )


def _map() -> int:
    # The address of a new mapping with the name of the signature; 0: it failed.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        file = os.memfd_create(_SIGNATURE.decode(), os.MFD_CLOEXEC)
    except OSError:
        file = -1
    try:
        if file >= 0:
            os.ftruncate(file, _LENGTH)
        flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if file < 0 else 0)
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, _LENGTH, rights, flags, file, 0)
    finally:
        if file >= 0:
            os.close(file)
    if address in {None, _FAILED}:
        return 0
    libc.madvise(address, _LENGTH, _NOT_FORKED)
    return int(address)


def _name(address: int) -> None:
    # If the kernel has names of anonymous memory. The prctl also notifies readers that trace it.
    name = ctypes.create_string_buffer(_SIGNATURE)
    libc = ctypes.CDLL(None)
    libc.prctl(*_SET_NAME, ctypes.c_ulong(address), ctypes.c_ulong(_LENGTH), ctypes.byref(name))
