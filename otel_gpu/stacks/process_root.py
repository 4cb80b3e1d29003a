"""
Files by path, as a process sees them.

A container decides what its links point to. /proc/PID/root leads into it, but an absolute
link in there would lead out again, into our own root. So paths are resolved by openat2(2),
which keeps them inside.

We can read more than the process can. In a user namespace of its own it can mount any file that it
can reach, also one that it cannot read, at a path where we look for something; and what we read
there leaves the host as names of functions. So a file is opened for somebody: its mode and those
of the folders above it have to let that user read it. Access control lists are not looked at: who
may read by one of those alone is refused.
"""

import ctypes
import errno
import os
import stat
from typing import Final

from otel_gpu.procfs.mapped_files import open_regular
from otel_gpu.procfs.proc_files import close_file
from otel_gpu.procfs.users import User

_OPENAT2 = 437  # the same number on x86-64 and AArch64
_RESOLVE_NO_MAGIC_LINKS, _RESOLVE_IN_ROOT = 0x02, 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_READ, _SEARCH = 4, 1
_MAX_LINKS, _MAX_FOLDERS = 8, 64
_FILE_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_in_root(root: str, path: str, user: User, *, follow: bool = True) -> int:
    """
    Open a regular file for reading, by a path that cannot leave a root such as ``/proc/PID/root``.

    ``user`` has to be allowed to read it. ``follow`` says whether the file itself may be a link. The
    caller closes the descriptor.

    Raises:
        OSError: There is none, it is no regular file, or may not be read.
    """
    top = os.open(root, _FOLDER_FLAGS)
    try:
        for _ in range(_MAX_LINKS):
            folder, target = _open_folder(top, path, user), ""
            try:
                place = os.open(os.path.basename(path), _FILE_FLAGS, dir_fd=folder)  # noqa: PTH119
            finally:
                close_file(folder)
            try:
                status = os.fstat(place)
                if follow and stat.S_ISLNK(status.st_mode):
                    # Not one of /proc, whose text is not where it leads.
                    close_file(_open_at(top, path, os.O_PATH | os.O_CLOEXEC))
                    target = os.readlink("", dir_fd=place)
                else:
                    _check_mode(status, user, _READ, path)
            except OSError:
                close_file(place)
                raise
            if not target:
                return open_regular(place)
            close_file(place)
            path = os.path.join(os.path.dirname(path), target)  # noqa: PTH118, PTH120 -- in that root
    finally:
        close_file(top)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _open_folder(top: int, path: str, user: User) -> int:
    """Open the folder of a path, if a user can reach it: from where links led up to the root."""
    found = _open_at(top, os.path.dirname(path) or "/", _FOLDER_FLAGS)  # noqa: PTH120
    end = os.fstat(top)
    folder = os.dup(found)
    try:
        for _ in range(_MAX_FOLDERS):
            status = os.fstat(folder)
            _check_mode(status, user, _SEARCH, path)
            if os.path.samestat(status, end):
                return found
            above = os.open("..", _FOLDER_FLAGS, dir_fd=folder)
            close_file(folder)
            folder = above
    except OSError:
        close_file(found)
        raise
    finally:
        close_file(folder)
    close_file(found)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _open_at(top: int, path: str, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGIC_LINKS)
    found: int = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(top),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return found


def _check_mode(status: os.stat_result, user: User, wanted: int, path: str) -> None:
    if user.uid == 0:
        return
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in user.gids else 0
    if not status.st_mode >> shift & wanted:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
