"""
Files by path, as a process sees them.

A container decides what its links point to. /proc/PID/root leads into it, but an absolute
link in there would lead out again, into our own root. So paths are resolved by openat2(2),
which keeps them inside.
"""

import ctypes
import os

from otel_gpu.procfs.mapped_files import open_regular

_OPENAT2 = 437  # the same number on x86-64 and AArch64
_RESOLVE_NO_MAGIC_LINKS, _RESOLVE_IN_ROOT = 0x02, 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_in_root(root: str, path: str, *, follow: bool = True) -> int:
    """
    Open a regular file for reading, by a path that cannot leave a root such as ``/proc/PID/root``.

    ``follow`` says whether the file itself may be a link. The caller closes the descriptor.

    Raises:
        OSError: There is none, it is no regular file, or may not be read.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGIC_LINKS)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = ctypes.CDLL(None, use_errno=True).syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
    finally:
        os.close(folder)
    if place < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return open_regular(place)
