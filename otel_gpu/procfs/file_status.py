"""
Status of open files, without a request to the server of a FUSE file system.

fstat(2) asks that server, and waits for its answer. statx(2) can return what the kernel has cached:
the device is always right, the rest can be stale.
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
OF_KERNEL: Final = frozenset(
    {PROC, 0x62656572, 0x64626720, 0x74726163, 0x73636673, 0x27E0EB, 0x63677270, 0xCAFE4A11}
)
"""
Types of file systems whose files the kernel generates on read: proc, sysfs, debugfs, tracefs,
securityfs, cgroup, cgroup2 and bpf.
"""

_STATX: Final = {"x86_64": 332, "aarch64": 291}
# The same on all machines; struct open_how: flags, mode, resolve.
_OPENAT2: Final = 437
_HOW: Final = struct.Struct("=QQQ")
_RESOLVE_CACHED: Final = 0x20
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
    The mode, owners, device and mount of a file.

    ``device`` is major << 20 | minor, as in stat(2): parts of some file systems (overlay, btrfs)
    have their own numbers, which /proc/PID/maps and mountinfo do not show. ``mount`` is the first
    field of mountinfo.
    """

    mode: int
    uid: int
    gid: int
    device: int
    mount: int


def status_of(descriptor: int) -> FileStatus:
    """
    Return the cached status of an open file; the descriptor can be one of O_PATH.

    Raises:
        OSError: The descriptor is invalid, or the machine is unsupported.
    """
    status = ctypes.create_string_buffer(_STATUS_BYTES)
    number, flags = _STATX.get(platform.machine(), -1), _EMPTY_PATH | _DONT_SYNC
    wanted = ctypes.c_uint(_BASIC_STATS | _MOUNT_ID)
    place = (ctypes.c_int(descriptor), b"", ctypes.c_int(flags))
    _check(_LIBC.syscall(ctypes.c_long(number), *place, wanted, status))
    uid, gid, mode = _OWNER.unpack_from(status, _OWNER_OFFSET)
    major, minor, mount = _DEVICE.unpack_from(status, _DEVICE_OFFSET)
    return FileStatus(mode, uid, gid=gid, device=major << 20 | minor, mount=mount)


def open_cached(folder: int, name: str) -> int:
    """
    Open a name in a folder with O_PATH, if the kernel has it in its cache; links are not followed.

    It takes no lock of the folder, and sends no request to the file system.

    Raises:
        OSError: ``EAGAIN``: not cached; ``EINVAL``: a kernel before 5.12; ``ENOENT``: no such name.
    """
    how = _HOW.pack(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE_CACHED)
    place = (ctypes.c_int(folder), os.fsencode(name), how, ctypes.c_size_t(_HOW.size))
    return _check(_LIBC.syscall(ctypes.c_long(_OPENAT2), *place))


def file_system_of(descriptor: int) -> int:
    """
    Return the type of the file system of an open file; FUSE asks the server for it.

    Raises:
        OSError: The descriptor is invalid.
    """
    status = ctypes.create_string_buffer(_STATUS_BYTES)
    _check(_LIBC.fstatfs(ctypes.c_int(descriptor), status))
    return int(_TYPE.unpack_from(status)[0])


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
