"""
Opens files by paths in the view of a process.

A container controls its links. /proc/PID/root leads into the container, but an absolute link in there
leads out again, into our own root. So links are followed here and not by the kernel, and each step
starts at an open folder.

The agent can read more than the process. In its own user namespace, a process can mount any file that
it can reach, even an unreadable one, at a path that the agent reads; and the content leaves the host as
names of functions. So a file is opened for a user: its mode and those of its folders must let that user
read it. Access control lists are ignored: a user who can read only through one is refused.

A user can serve a file system with a program (FUSE), which can answer late or never. So nothing is
opened before its device is known. On Linux 6.18, these send the server no request: opening the root of
such a file system with O_PATH, opening a file through a link in map_files, and statx(2) with
AT_STATX_DONT_SYNC. Looking up a name, fstat(2) and every other open send one. The same holds for an
overlay over such a file system.
"""

import errno
import os
import stat
from typing import Final

from otel_gpu.procfs.file_status import OF_KERNEL, PROC, FileStatus, file_system_of, status_of
from otel_gpu.procfs.mounts import BELOW_OVERLAY, server_of
from otel_gpu.procfs.proc_files import close_file
from otel_gpu.procfs.reader import open_name
from otel_gpu.procfs.users import User, is_trusted
from otel_gpu.wire import UNKNOWN_USER

_READ, _SEARCH = 4, 1
# Links: the kernel's limit; steps include those in the targets of links.
_MAX_LINKS, _MAX_FOLDERS, _MAX_STEPS = 40, 64, 1024
_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


_DOUBTS: Final = {
    UNKNOWN_USER: "its file system is not known here, and could be one that a user serves (FUSE);"
    " mount fusectl on /sys/fs/fuse/connections to have it known",
    BELOW_OVERLAY: "it may be on an overlay of a user namespace, below which a user can serve files (FUSE)"
    " and keep the agent waiting",
}


class ServedError(OSError):
    """A file is not opened, as a user's program serves its file system, and can block for ever."""

    def __init__(self, server: int) -> None:
        reason = f"user {server} serves its file system (FUSE) and could keep the agent waiting"
        super().__init__(_DOUBTS.get(server, reason))


def check_device(device: int, pid: int, mount: int = 0) -> None:
    """
    Refuse file systems that users serve, except root and the agent's own user.

    Args:
        device: Device of the file system: major << 20 | minor.
        pid: A process that has it mounted.
        mount: The mount, as for ``server_of``.

    Raises:
        ServedError: A user serves it, or could serve it.
    """
    server = server_of(device, pid, mount)
    if server is not None and not is_trusted(server):
        raise ServedError(server)


def open_regular(place: int, pid: int, checked: FileStatus | None = None) -> int:
    """
    Open the file of an O_PATH descriptor for reading, and close that descriptor.

    Opening a device can have side effects, so the type is checked before.

    Args:
        place: The O_PATH descriptor.
        pid: A process that has its file system mounted.
        checked: The status of a checked file: another file of its mount needs no check.

    Raises:
        ServedError: A user serves its file system.
        OSError: It is not a regular file, or not readable.
    """
    try:
        if not stat.S_ISREG(_checked_status(place, pid, checked).mode):
            raise OSError("not a regular file")
        # Some of these block readers, and some show a privileged reader more than their owner.
        if file_system_of(place) in OF_KERNEL:
            raise OSError("not a file but something that the kernel makes")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        close_file(place)


def open_in_root(root: str, path: str, user: User, pid: int, *, follow: bool = True) -> int:
    """
    Open a regular file for reading, by a path that cannot leave a root such as ``/proc/PID/root``.

    Args:
        root: The root.
        path: The path; its links are followed inside the root.
        user: A user who must be allowed to read the file.
        pid: A process that has the file system mounted.
        follow: Whether the file itself can be a link.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        ServedError: The path leads to a file system that a user serves.
        OSError: The file does not exist, is not a regular file, or not readable.
    """
    walk = _Walk(root, path, user=user, pid=pid)
    try:
        place, status = walk.find(follow=follow)
    finally:
        walk.close()
    return open_regular(place, pid, status)


class _Walk:
    # Walks a path name by name; all folders from the root on are open.

    def __init__(self, root: str, path: str, user: User, pid: int) -> None:
        self._path = path
        self._user = user
        self._pid = pid
        self._links = 0
        # Each with its status, once read: the mount number of an open file does not change.
        self._open: list[tuple[int, FileStatus | None]] = [(os.open(root, _FOLDER_FLAGS), None)]

    def close(self) -> None:
        self._leave(0)

    def find(self, *, follow: bool) -> tuple[int, FileStatus]:
        # Returns an O_PATH descriptor of the file, if the user can read it, and its status.
        self._check(self._status(), _SEARCH)
        ahead = _names(self._path)
        for _ in range(_MAX_STEPS):
            if not ahead:
                raise OSError("not a regular file")
            name = ahead.pop()
            if name == "..":
                self._leave(max(1, len(self._open) - 1))
                continue
            self._open.append((open_name(self._pid, self._open[-1][0], name), None))
            status = self._status()
            if stat.S_ISDIR(status.mode):
                self._check(status, _SEARCH)
            elif stat.S_ISLNK(status.mode) and (ahead or follow):
                ahead += _names(self._follow())
            elif ahead:
                raise self._error(errno.ENOTDIR)
            else:
                self._check(status, _READ)
                return self._open.pop()[0], status
            if len(self._open) > _MAX_FOLDERS:
                break
        raise self._error(errno.ELOOP)

    def _status(self) -> FileStatus:
        place, _ = self._open[-1]
        checked = self._open[-2][1] if len(self._open) > 1 else None
        status = _checked_status(place, self._pid, checked)
        self._open[-1] = place, status
        return status

    def _follow(self) -> str:
        # Returns the target of the link that was opened last, and leaves it.
        link, _ = self._open[-1]
        self._links += 1
        # The text of a link of /proc is not its target.
        if self._links > _MAX_LINKS or file_system_of(link) == PROC:
            raise self._error(errno.ELOOP)
        target = os.readlink("", dir_fd=link)
        self._leave(1 if target.startswith("/") else len(self._open) - 1)
        return target

    def _leave(self, kept: int) -> None:
        while len(self._open) > kept:
            close_file(self._open.pop()[0])

    def _check(self, status: FileStatus, wanted: int) -> None:
        if self._user.uid == 0:
            return
        is_owner, is_member = status.uid == self._user.uid, status.gid in self._user.gids
        shift = 6 if is_owner else 3 if is_member else 0
        if not status.mode >> shift & wanted:
            raise self._error(errno.EACCES)

    def _error(self, number: int) -> OSError:
        return OSError(number, os.strerror(number), self._path)


def _checked_status(place: int, pid: int, checked: FileStatus | None) -> FileStatus:
    status = status_of(place)
    # Some kernels do not return the mount. Files of one mount can have several devices (overlay).
    if (
        checked is None
        or status.mount != checked.mount
        or (not status.mount and status.device != checked.device)
    ):
        check_device(status.device, pid, status.mount)
    return status


def _names(path: str) -> list[str]:
    # The names in a path, the last one first.
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]
