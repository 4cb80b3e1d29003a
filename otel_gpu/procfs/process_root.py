"""
Files by path, as a process sees them.

A container decides what its links point to. /proc/PID/root leads into it, but an absolute
link in there would lead out again, into our own root. So links are followed here and not by the
kernel, and each step begins at a folder that is open.

We can read more than the process can. In a user namespace of its own it can mount any file that it
can reach, also one that it cannot read, at a path where we look for something; and what we read
there leaves the host as names of functions. So a file is opened for a user: its mode and those
of the folders on the way have to let that user read it. Access control lists are not looked at: who
may read by one of those alone is refused.

A user can serve a file system by a program (FUSE), which answers when it likes. So nothing is opened
or looked into before its device is known. Some facts about that (Linux 6.18): to open the root of
such a file system with O_PATH, or a file of it by a link in map_files, sends its server no request,
nor does statx(2) with AT_STATX_DONT_SYNC. To look up a name in it, fstat(2) and every other open do.
All that is so, too, of an overlay that lies over one.
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
# Links as of the kernel; steps with those in the texts of links.
_MAX_LINKS, _MAX_FOLDERS, _MAX_STEPS = 40, 64, 1024
_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


_DOUBTS: Final = {
    UNKNOWN_USER: "its file system is not known here, and could be one that a user serves (FUSE);"
    " mount fusectl on /sys/fs/fuse/connections to have it known",
    BELOW_OVERLAY: "it may be on an overlay of a user namespace, below which a user can serve files (FUSE)"
    " and keep the agent waiting",
}


class ServedError(OSError):
    """A file is not opened, as a user's program serves its file system, and can take for ever."""

    def __init__(self, server: int) -> None:
        reason = f"user {server} serves its file system (FUSE) and could keep the agent waiting"
        super().__init__(_DOUBTS.get(server, reason))


def check_device(device: int, pid: int, mount: int = 0) -> None:
    """
    Refuse what users serve, but for root and the agent's own user.

    Args:
        device: Of the file system: major << 20 | minor.
        pid: A process that has it mounted.
        mount: As ``server_of`` takes it.

    Raises:
        ServedError: It is one of those, or may be.
    """
    server = server_of(device, pid, mount)
    if server is not None and not is_trusted(server):
        raise ServedError(server)


def open_regular(place: int, pid: int, checked: FileStatus | None = None) -> int:
    """
    Open what an O_PATH descriptor stands for, and close that one.

    To open a device can start something, so what it is must be known before.

    Args:
        place: The descriptor.
        pid: A process that has its file system mounted.
        checked: Of a file that is open and has been checked, so that others of its mount need not be.

    Raises:
        ServedError: A user serves it.
        OSError: It is no regular file, or may not be read.
    """
    try:
        if not stat.S_ISREG(_look_at(place, pid, checked).mode):
            raise OSError("not a regular file")
        # Some of these keep a reader waiting, and some show it more than they show their owner.
        if file_system_of(place) in OF_KERNEL:
            raise OSError("not a file but something that the kernel makes")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        close_file(place)


def open_in_root(root: str, path: str, user: User, pid: int, *, follow: bool = True) -> int:
    """
    Open a regular file for reading, by a path that cannot leave a root such as ``/proc/PID/root``.

    ``user`` has to be allowed to read it; ``pid`` is a process that has its file system mounted.
    ``follow`` says whether the file itself may be a link. The caller closes the descriptor.

    Raises:
        ServedError: The path leads to a file system that a user serves.
        OSError: There is none, it is no regular file, or may not be read.
    """
    walk = _Walk(root, path, user, pid)
    try:
        place, status = walk.find(follow=follow)
    finally:
        walk.close()
    return open_regular(place, pid, status)


class _Walk:
    """The way to a file, one name after the other; the folders on it are open, from the root on."""

    def __init__(self, root: str, path: str, user: User, pid: int) -> None:
        self._path = path
        self._user = user
        self._pid = pid
        self._links = 0
        # With what is known of it, once that was looked at: what is open keeps the number of its mount.
        self._open: list[tuple[int, FileStatus | None]] = [(os.open(root, _FOLDER_FLAGS), None)]

    def close(self) -> None:
        """Close all folders."""
        self._leave(0)

    def find(self, *, follow: bool) -> tuple[int, FileStatus]:
        """Return an O_PATH descriptor of what is there, if the user can read it, and its status."""
        self._check(self._look(), _SEARCH)
        ahead = _names(self._path)
        for _ in range(_MAX_STEPS):
            if not ahead:
                raise OSError("not a regular file")
            name = ahead.pop()
            if name == "..":
                self._leave(max(1, len(self._open) - 1))
                continue
            self._open.append((open_name(self._pid, self._open[-1][0], name), None))
            status = self._look()
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

    def _look(self) -> FileStatus:
        place, _ = self._open[-1]
        checked = self._open[-2][1] if len(self._open) > 1 else None
        status = _look_at(place, self._pid, checked)
        self._open[-1] = place, status
        return status

    def _follow(self) -> str:
        """Return where the link leads that was opened last, seen from the folder that is open then."""
        link, _ = self._open[-1]
        self._links += 1
        # The text of a link of /proc is not where it leads.
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


def _look_at(place: int, pid: int, checked: FileStatus | None) -> FileStatus:
    status = status_of(place)
    # Some kernels do not state the mount. What is on one mount can have more than one device (overlay).
    if (
        checked is None
        or status.mount != checked.mount
        or (not status.mount and status.device != checked.device)
    ):
        check_device(status.device, pid, status.mount)
    return status


def _names(path: str) -> list[str]:
    """Return the steps of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]
