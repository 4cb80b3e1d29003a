"""Mounts, as the processes that use them see them."""

import pytest

from otel_gpu.procfs import mounts
from otel_gpu.procfs.mounts import Mount, find_mount, is_remote

MOUNTINFO = rb"""21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:52 / /mnt/data\040set rw shared:1 master:2 - nfs4 store:/exports/a rw,vers=4.2
23 21 254:0 /var/spool /spool rw - ext4 /dev/vda rw
24 21 0:61 / /bucket rw - fuse.s3fs s3fs rw,user_id=0
25 21 0:62 / /models ro - fuse mountpoint-s3 ro
26 21 0:63 / /deep/data rw - nfs4 store:/b rw
27 21 0:63 / /deep rw - nfs4 store:/b rw
broken line
"""
VDA = 254 << 20


@pytest.fixture(autouse=True)
def proc(monkeypatch):
    files = {"/proc/42/mountinfo": MOUNTINFO}
    monkeypatch.setattr(mounts, "read_file", lambda path, limit, _s: files.get(path, b"")[:limit])


@pytest.mark.parametrize(
    ("device", "path", "mount"),
    [
        (VDA, "/etc/passwd", Mount("/", "ext4", "/dev/vda")),
        (VDA, "/spool/1", Mount("/spool", "ext4", "/dev/vda")),
        (VDA, "/spooler", Mount("/", "ext4", "/dev/vda")),
        (52, "/mnt/data set/x", Mount("/mnt/data set", "nfs4", "store:/exports/a")),
        (61, "", Mount("/bucket", "fuse.s3fs", "s3fs")),
        (63, "/deep/x", Mount("/deep", "nfs4", "store:/b")),
        (63, "/deep/data/x", Mount("/deep/data", "nfs4", "store:/b")),
        # Of a mount that another namespace has: whatever there is of the device.
        (52, "/elsewhere", Mount("/mnt/data set", "nfs4", "store:/exports/a")),
    ],
)
def test_a_file_is_on_the_deepest_mount_that_holds_its_path(device, path, mount):
    """One device can be mounted in many places, and the names in the file are escaped."""
    assert find_mount(42, device, path) == mount


def test_nothing_is_known_of_others():
    """A device that the process has no mount of, and a process that is gone."""
    assert find_mount(42, 99, "/x") is None
    assert find_mount(43, VDA, "/x") is None


@pytest.mark.parametrize(
    ("file_system", "source", "expected"),
    [
        ("nfs4", "store:/a", True),
        ("cifs", "//store/a", True),
        ("ceph", "", True),
        ("fuse.sshfs", "", True),
        ("fuse.s3fs", "", True),
        ("fuse.juicefs", "JuiceFS:data", True),
        ("fuse", "mountpoint-s3", True),
        ("fuse", "juicefs:data", True),
        ("fuse", "/dev/fuse", False),
        ("fuse.lxcfs", "lxcfs", False),
        ("fuseblk", "/dev/sda1", False),
        ("ext4", "/dev/vda", False),
        ("overlay", "overlay", False),
        ("tmpfs", "nfs", False),
        ("", "", False),
    ],
)
def test_the_type_says_whether_another_host_has_the_files(file_system, source, expected):
    """Or of FUSE its subtype, and where there is none, what is mounted."""
    assert is_remote(file_system, source) is expected
