"""
What a descriptor stands for, without a question to whoever serves its file system.

fstat(2) asks the server of a file system of FUSE, and waits for its answer. statx(2) can be told to
be content with what the kernel knows. It knows the device for certain; the rest can be old there.
"""

import ctypes
import os
import platform
import struct
from typing import Final, NamedTuple

FUSE_CONTROL: Final = 0x65735543
"""The type of the file system that lists the connections of FUSE (FUSE_CTL_SUPER_MAGIC)."""
PROC: Final = 0x9FA0
"""The type of /proc (PROC_SUPER_MAGIC)."""

_STATX: Final = {"x86_64": 332, "aarch64": 291}
_EMPTY_PATH, _DONT_SYNC = 0x1000, 0x4000
_BASIC_STATS, _MOUNT_ID = 0x7FF, 0x1000
# Of struct statx: stx_uid, stx_gid and stx_mode; stx_dev_major, stx_dev_minor and stx_mnt_id.
_OWNER, _OWNER_OFFSET = struct.Struct("<IIH"), 20
_DEVICE, _DEVICE_OFFSET = struct.Struct("<IIQ"), 136
_STATUS_BYTES: Final = 256
_TYPE: Final = struct.Struct("@q")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class FileStatus(NamedTuple):
    """
    Of a file: its mode, owners, device and mount.

    ``device`` is major << 20 | minor, as stat(2) states it: parts of some file systems (overlay, btrfs)
    have numbers of their own, which neither /proc/PID/maps nor mountinfo has. ``mount`` is the first
    field of mountinfo.
    """

    mode: int
    uid: int
    gid: int
    device: int
    mount: int


def status_of(descriptor: int) -> FileStatus:
    """
    Return what the kernel knows of an open file; the descriptor can be one of O_PATH.

    Raises:
        OSError: The descriptor is none, or this machine is not known.
    """
    status = ctypes.create_string_buffer(_STATUS_BYTES)
    number, flags = _STATX.get(platform.machine(), -1), _EMPTY_PATH | _DONT_SYNC
    wanted = ctypes.c_uint(_BASIC_STATS | _MOUNT_ID)
    place = (ctypes.c_int(descriptor), b"", ctypes.c_int(flags))
    _check(_LIBC.syscall(ctypes.c_long(number), *place, wanted, status))
    uid, gid, mode = _OWNER.unpack_from(status, _OWNER_OFFSET)
    major, minor, mount = _DEVICE.unpack_from(status, _DEVICE_OFFSET)
    return FileStatus(mode, uid, gid, major << 20 | minor, mount)


def file_system_of(descriptor: int) -> int:
    """
    Return the type of the file system of an open file, which the server of one of FUSE is asked for.

    Raises:
        OSError: The descriptor is none.
    """
    status = ctypes.create_string_buffer(_STATUS_BYTES)
    _check(_LIBC.fstatfs(ctypes.c_int(descriptor), status))
    return int(_TYPE.unpack_from(status)[0])


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
