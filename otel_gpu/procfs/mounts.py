"""Which mount a file is on, as its process sees it, and whether another host is behind that."""

# Lines of /proc/PID/mountinfo (proc(5)):
#
#   36 35 98:0 /folder /mnt/data rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
#
# ID, parent, device, folder of the file system that is mounted, mount point, options, fields that
# may be missing, a hyphen, type, source, options. Of one device there can be many mounts.

import re
from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu.procfs.proc_files import read_file

_MAX_BYTES = 1 << 20
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


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _mounts(pid: int, device: int) -> Iterator[Mount]:
    number = f"{device >> _MINOR_BITS}:{device & (1 << _MINOR_BITS) - 1}".encode()
    for line in read_file(f"/proc/{pid}/mountinfo", _MAX_BYTES).splitlines():
        before, _, after = line.partition(b" - ")
        place, kind = before.split(b" "), after.split(b" ")
        if len(place) > 4 and len(kind) > 1 and place[2] == number:  # noqa: PLR2004 -- see above
            yield Mount(_text(place[4]), _text(kind[0]), _text(kind[1]))


def _text(field: bytes) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field).decode(
        "utf-8", "replace"
    )
