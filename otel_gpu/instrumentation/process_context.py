"""
Publishes the resource of this process for readers outside of it (OTEP 4719).

``otel_gpu/procfs/process_context.py`` reads what others publish, and has the layout.
"""

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

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
    What this process says of itself, until it says something else.

    A child of ``fork`` says it anew, as the mapping does not come along, and another
    ``service.instance.id`` is its own.

    Args:
        resource: Returns attributes of the resource that spans of this process have.
        is_thread_context: Whether threads say in which span they are.
    """

    def __init__(
        self, resource: Callable[[], Mapping[str, Any]], *, is_thread_context: bool = False
    ) -> None:
        self._resource = resource
        self._is_thread_context = is_thread_context
        self._address = 0
        self.publish()
        os.register_at_fork(after_in_child=self.publish)

    def publish(self) -> None:
        """Publish in a mapping of this process's own; where that is not possible, nothing happens."""
        payload = encode(self._resource(), is_thread_context=self._is_thread_context)
        if len(payload) > _LENGTH - _HEADER.size:
            return
        # The old one is not unmapped: after a fork its address may be somebody else's.
        self._address = _map()
        if not self._address:
            return
        place = self._address + _HEADER.size
        ctypes.memmove(place, payload, len(payload))
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        header = _HEADER.pack(_SIGNATURE, _VERSION, len(payload), now_ns, place)
        # Who finds the signature finds the rest.
        ctypes.memmove(self._address + len(_SIGNATURE), header[len(_SIGNATURE) :], 24)
        ctypes.memmove(self._address, header, len(_SIGNATURE))
        _name(self._address)


def encode(resource: Mapping[str, Any], *, is_thread_context: bool) -> bytes:
    """Return a ``ProcessContext`` message: a resource, and how to read the context of threads."""
    said = [("threadlocal.schema_version", SCHEMA_VERSION), ("threadlocal.attribute_key_map", ())]
    return field(b"\x0a", AttributeEncoder(b"\x0a").encode(resource.items())) + (
        AttributeEncoder(b"\x12").encode(said) if is_thread_context else b""
    )


def _map() -> int:
    """Return the address of a new mapping whose name says what it is; 0: there is none."""
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
    # Where the kernel has names for anonymous memory: also tells those who watch for it.
    name = ctypes.create_string_buffer(_SIGNATURE)
    libc = ctypes.CDLL(None)
    libc.prctl(*_SET_NAME, ctypes.c_ulong(address), ctypes.c_ulong(_LENGTH), ctypes.byref(name))
