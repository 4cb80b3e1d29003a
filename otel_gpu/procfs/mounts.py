"""Which mount a file is on, as its process sees it, and whether another host or a program is behind that."""

# Lines of /proc/PID/mountinfo (proc(5)):
#
#   36 35 98:0 /folder /mnt/data rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
#
# ID, parent, device, folder of the file system that is mounted, mount point, options, fields that
# may be missing, a hyphen, type, source, options. Of one device there can be many mounts.

import contextlib
import fcntl
import functools
import os
import re
import select
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from otel_gpu.procfs.file_status import FUSE_CONTROL, file_system_of, status_of
from otel_gpu.procfs.proc_files import read_descriptor, read_file
from otel_gpu.procfs.users import is_trusted
from otel_gpu.wire import UNKNOWN_USER

_MAX_BYTES = 1 << 20
# Ten thousand mounts on top of each other take the kernel a second, and a thousand folders 2 ms.
_MAX_S = 0.02
_MAX_HOST_BYTES = 16 << 20
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_MINOR_BITS = 20
# Types that are used for files of other hosts, and what FUSE file systems of that kind are called:
# by their subtype ("fuse.sshfs"), or by their source.
_REMOTE_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "ceph", "afs", "lustre", "gpfs", "beegfs"),
        *("pvfs2", "wekafs", "glusterfs", "panfs"),
    }
)
_REMOTE_FUSE = re.compile(
    r"sshfs|s3fs|mountpoint-s3|gcsfuse|goofys|rclone|blobfuse2?|glusterfs|ceph-fuse|juicefs|alluxio"
    r"|seaweedfs|weed|dfuse|davfs2?|fuse_dfs|hdfs|mfs|moosefs|curlftpfs|cvmfs2?|s3ql|objectivefs"
    r"|geesefs|yandex-s3|cunofs|beeond|onedatafs|tigrisfs",
    re.IGNORECASE,
)
# Where fusectl is mounted, here or on the host. It has a folder for each connection of FUSE, also of
# those that are mounted nowhere any more: its name is the device, its owner who mounted it.
_CONNECTIONS: Final = ("/sys/fs/fuse/connections", "/proc/1/root/sys/fs/fuse/connections")
_FUSE_TYPES: Final = frozenset({"fuse", "fuseblk"})
# Have their files from others; users can mount them in a user namespace of their own.
_STACKED_TYPES: Final = frozenset({"overlay", "overlayfs", "shiftfs"})
BELOW_OVERLAY: Final = -1
"""In place of a user: there are users that serve files, and one may do so below an overlay."""
# Gives the user namespace that a namespace belongs to (ioctl_nsfs(2)).
_NS_GET_USERNS: Final = 0xB701
_SERVER: Final = re.compile(rb"(?:^|,)user_id=(\d+)(?:,|$)")
_REMOTE_SOURCE = re.compile(rf"({_REMOTE_FUSE.pattern})\b", re.IGNORECASE)


class Mount(NamedTuple):
    """
    A mounted file system.

    Attributes:
        point: Where the process sees it.
        file_system: Its type, ``fuse.NAME`` for one of FUSE.
        source: What is mounted: a device, or ``host:/folder``.
    """

    point: str
    file_system: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether another host has the files, as far as the type says."""
        return is_remote(self.file_system, self.source)


def is_remote(file_system: str, source: str = "") -> bool:
    """Say whether the files of a file system are on another host, as far as its type says."""
    kind, _, subtype = file_system.partition(".")
    if kind != "fuse":
        return kind in _REMOTE_TYPES
    if subtype:
        return _REMOTE_FUSE.fullmatch(subtype) is not None
    return _REMOTE_SOURCE.match(source) is not None


def find_mount(pid: int, device: int, path: str) -> Mount | None:
    """
    Return the mount that a process has a file on; None if it is gone, or has none such.

    Args:
        pid: The process.
        device: Of the file system: major << 20 | minor.
        path: Of the file; empty: any.
    """
    found = None
    for mount in _mounts(pid, device):
        if found is None or (
            _holds(mount.point, path)
            and (len(mount.point) >= len(found.point) or not _holds(found.point, path))
        ):
            found = mount
    return found


def server_of(device: int, pid: int, mount: int = 0) -> int | None:
    """
    Return the user whose program serves a file system (FUSE); None: no program does.

    Such a program answers when it likes, and so this sends it no request.

    Of an overlay the kernel does not show what is below. One that root has mounted counts as served by no
    program: the host has it mounted, or it is in a mount namespace of our user namespace. Another one does
    only while no user at all serves a file system, but for root and the agent's own user.

    Args:
        device: Of the file system: major << 20 | minor.
        pid: A process that has it mounted, or had.
        mount: The mount, as ``Status`` has it, where it is known: not all devices are in mountinfo.

    Returns:
        ``BELOW_OVERLAY`` where one may, below. ``UNKNOWN_USER`` where it is not known whether one does, or of
        which user: where fusectl is not mounted, and the file system is mounted nowhere any more, only
        as the process sees it, or is such an overlay.
    """
    for folder in _CONNECTIONS:
        # Where it cannot be read, texts are, by which less is known.
        with contextlib.suppress(OSError):
            connections = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if file_system_of(connections) == FUSE_CONTROL:
                    return _server_by_connection(connections, device, pid, mount)
            finally:
                os.close(connections)
    host = _host_servers(device, mount)
    if host:
        return host[0]
    return UNKNOWN_USER if _may_be_served(device, pid, mount) else None


def _server_by_connection(folder: int, device: int, pid: int, mount: int) -> int | None:
    owner = _owner(folder, str(device))
    if owner is not None or not _does_any_user_serve(folder) or _host_servers(device, mount):
        return owner
    return BELOW_OVERLAY if _may_be_served(device, pid, mount) else None


def _owner(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None


def _does_any_user_serve(folder: int) -> bool:
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        # A user can have thousands, and the first one will do.
        with os.scandir(listed) as names:
            owners = (_owner(folder, each.name) for each in names)
            return any(owner is not None and not is_trusted(owner) for owner in owners)
    finally:
        os.close(listed)


def _host_servers(device: int, mount: int) -> list[int | None]:
    """Return who serves what the host has mounted, or nothing where it has not."""
    tables = [table.servers() for table in _HOST_TABLES]
    keys = (("mount", mount), ("device", device))
    return [servers[key] for servers in tables for key in keys if key in servers]


def _may_be_served(device: int, pid: int, mount: int) -> bool:
    """Say whether a user may serve what the host has not mounted, or what is below."""
    with contextlib.suppress(OSError):
        # Open, so that it is one process, whichever has its number by then.
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = f"/proc/self/fd/{process}"
            found = _find_row(folder, device, mount)
            if found:
                # The user that it states is a number in the user namespace that it was mounted in.
                is_stacked = _text(found.kind[0]) in _STACKED_TYPES
                return _is_served(found.kind) or (is_stacked and not _is_of_our_namespace(folder))
        finally:
            os.close(process)
    # Known: a disk of which only the host has a mount, and memory.
    return not device >> _MINOR_BITS and device != shared_memory_device()


def _find_row(process: str, device: int, mount: int) -> "_Row | None":
    found = None
    for row in _rows_of(process):
        # A part of an overlay has a device that no row has.
        if row.mount == mount:
            return row
        if found is None and row.device == device:
            found = row
    return found


def _is_of_our_namespace(process: str) -> bool:
    """Say whether a process has its mounts from who has rights in our user namespace."""
    try:
        namespace = os.open(f"{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        finally:
            os.close(namespace)
        try:
            return os.path.samestat(os.fstat(owner), Path("/proc/self/ns/user").stat())
        finally:
            os.close(owner)
    except OSError:
        return False


class _HostTable:
    """What is mounted in a namespace of the host; read again once the kernel says that it changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._changes = select.poll()
        self._servers: dict[tuple[str, int], int | None] = {}

    def servers(self) -> Mapping[tuple[str, int], int | None]:
        """Return who serves each mount and each device, None where no program does."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return {}
            self._changes.register(self._fd, select.POLLPRI)
            self._read()
        elif self._changes.poll(0):
            self._read()
        return self._servers

    def _read(self) -> None:
        self._servers = {}
        with contextlib.suppress(OSError):
            text = read_descriptor(self._fd, _MAX_HOST_BYTES)
            for row in _rows(text):
                server = _server(row.kind)
                self._servers["mount", row.mount] = self._servers["device", row.device] = server


_HOST_TABLES: Final = (_HostTable("/proc/self/mountinfo"), _HostTable("/proc/1/mountinfo"))


def _server(kind: list[bytes]) -> int | None:
    if not _is_served(kind):
        return None
    found = _SERVER.search(kind[2]) if len(kind) > 2 else None  # noqa: PLR2004 -- see above
    return int(found[1]) if found else UNKNOWN_USER


def _is_served(kind: list[bytes]) -> bool:
    return _text(kind[0]).partition(".")[0] in _FUSE_TYPES


@functools.cache
def shared_memory_device() -> int:
    """Return the device of files that programs make in memory, which is mounted nowhere."""
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return status_of(fd).device
    finally:
        os.close(fd)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _mounts(pid: int, device: int) -> Iterator[Mount]:
    for row in _rows_of(f"/proc/{pid}"):
        if row.device == device:
            yield Mount(_text(row.point), _text(row.kind[0]), _text(row.kind[1]))


class _Row(NamedTuple):
    mount: int
    device: int
    point: bytes
    # The fields behind the hyphen, of which there are two at least.
    kind: list[bytes]


def _rows_of(process: str) -> Iterator[_Row]:
    return _rows(read_file(f"{process}/mountinfo", _MAX_BYTES, _MAX_S))


def _rows(text: bytes) -> Iterator[_Row]:
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        place, kind = before.split(b" "), after.split(b" ")
        if len(place) > 4 and len(kind) > 1:  # noqa: PLR2004 -- see above
            major, _, minor = place[2].partition(b":")
            with contextlib.suppress(ValueError):
                device = int(major) << _MINOR_BITS | int(minor)
                yield _Row(int(place[0]), device, place[4], kind)


def _text(field: bytes) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field).decode(
        "utf-8", "replace"
    )
