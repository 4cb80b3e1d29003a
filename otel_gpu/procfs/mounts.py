"""The mount of a file in its process's view, and whether another host or a program serves it."""

# Lines of /proc/PID/mountinfo (proc(5)):
#
#   36 35 98:0 /folder /mnt/data rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
#
# ID, parent, device, folder of the file system that is mounted, mount point, options, fields that
# may be missing, a hyphen, type, source, options. One device can have many mounts.

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
# The kernel takes a second for ten thousand mounts on top of each other, 2 ms for a thousand folders.
_MAX_S = 0.02
_MAX_HOST_BYTES = 16 << 20
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_MINOR_BITS = 20
# Types of network file systems, and names of network file systems on FUSE: by subtype ("fuse.sshfs"),
# or by source.
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
# Mount points of fusectl, here or on the host. It has a folder for each FUSE connection, also for
# unmounted ones: its name is the device, its owner the user who mounted it.
_CONNECTIONS: Final = ("/sys/fs/fuse/connections", "/proc/1/root/sys/fs/fuse/connections")
_FUSE_TYPES: Final = frozenset({"fuse", "fuseblk"})
# Stacked file systems; users can mount them in their own user namespaces.
_STACKED_TYPES: Final = frozenset({"overlay", "overlayfs", "shiftfs"})
BELOW_OVERLAY: Final = -1
"""In place of a user: some users serve files, and one of them could do so below an overlay."""
# Returns the user namespace that owns a namespace (ioctl_nsfs(2)).
_NS_GET_USERNS: Final = 0xB701
_SERVER: Final = re.compile(rb"(?:^|,)user_id=(\d+)(?:,|$)")
_REMOTE_SOURCE = re.compile(rf"({_REMOTE_FUSE.pattern})\b", re.IGNORECASE)


class Mount(NamedTuple):
    """
    A mounted file system.

    Attributes:
        point: The mount point in the process's view.
        file_system: Its type, ``fuse.NAME`` for one of FUSE.
        source: A device, or ``host:/folder``.
    """

    point: str
    file_system: str
    source: str

    @property
    def is_remote(self) -> bool:
        """Whether its type is that of a network file system."""
        return is_remote(self.file_system, self.source)


def is_remote(file_system: str, source: str = "") -> bool:
    """Whether a type and source are those of a network file system."""
    kind, _, subtype = file_system.partition(".")
    if kind != "fuse":
        return kind in _REMOTE_TYPES
    if subtype:
        return _REMOTE_FUSE.fullmatch(subtype) is not None
    return _REMOTE_SOURCE.match(source) is not None


def find_mount(pid: int, device: int, path: str) -> Mount | None:
    """
    Return the mount of a file in a process's view; None: the process or the mount is gone.

    Args:
        pid: The process.
        device: Device of the file system: major << 20 | minor.
        path: Path of the file; empty: any.
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

    Such a program can answer late or never, so this function sends it no request.

    The kernel does not show the layers of an overlay. An overlay that root mounted counts as not served:
    the host has it mounted, or it is in a mount namespace of our user namespace. Another overlay counts as
    not served only while no user but root and the agent's own serves any file system.

    Args:
        device: Device of the file system: major << 20 | minor.
        pid: A process that has, or had, it mounted.
        mount: The mount as in ``FileStatus``, if known: not all devices are in mountinfo.

    Returns:
        ``BELOW_OVERLAY``: a layer of the overlay could be served by a user. ``UNKNOWN_USER``: it is not
        known, as fusectl is not mounted, and the file system is unmounted, mounted only in the
        process's view, or such an overlay.
    """
    for folder in _CONNECTIONS:
        # If it cannot be read, the text files are, which contain less.
        with contextlib.suppress(OSError):
            connections = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if file_system_of(connections) == FUSE_CONTROL:
                    return _server_by_connection(connections, device, pid=pid, mount=mount)
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
        # A user can have thousands; the first one suffices.
        with os.scandir(listed) as names:
            owners = (_owner(folder, each.name) for each in names)
            return any(owner is not None and not is_trusted(owner) for owner in owners)
    finally:
        os.close(listed)


def _host_servers(device: int, mount: int) -> list[int | None]:
    # Users that serve it, if the host has it mounted.
    tables = [table.servers() for table in _HOST_TABLES]
    keys = (("mount", mount), ("device", device))
    return [servers[key] for servers in tables for key in keys if key in servers]


def _may_be_served(device: int, pid: int, mount: int) -> bool:
    # Whether a user could serve a file system that the host has not mounted, or a layer of it.
    with contextlib.suppress(OSError):
        # Opened, so that all reads are of one process, even if its pid is reused.
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = f"/proc/self/fd/{process}"
            found = _find_row(folder, device, mount)
            if found:
                # Its user is a number in the user namespace that it was mounted in.
                is_stacked = _text(found.kind[0]) in _STACKED_TYPES
                return _is_served(found.kind) or (is_stacked and not _is_of_our_namespace(folder))
        finally:
            os.close(process)
    # Known: memory, and a disk that only the host has mounted.
    return not device >> _MINOR_BITS and device != shared_memory_device()


def _find_row(process: str, device: int, mount: int) -> "_Row | None":
    found = None
    for row in _rows_of(process):
        # No row has the device of a layer of an overlay.
        if row.mount == mount:
            return row
        if found is None and row.device == device:
            found = row
    return found


def _is_of_our_namespace(process: str) -> bool:
    # Whether our user namespace owns the mount namespace of a process.
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
    # The mounts of a namespace of the host; read again when the kernel reports a change.

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._changes = select.poll()
        self._servers: dict[tuple[str, int], int | None] = {}

    def servers(self) -> Mapping[tuple[str, int], int | None]:
        # The user that serves each mount and each device; None: no program does.
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
    """Return the device of files in memory (memfd), which is not mounted."""
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
    # The fields after the hyphen, at least two.
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
                yield _Row(mount=int(place[0]), device=device, point=place[4], kind=kind)


def _text(field: bytes) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field).decode(
        "utf-8", "replace"
    )
