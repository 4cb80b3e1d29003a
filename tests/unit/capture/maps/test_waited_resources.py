"""What the kernel side says of resources, made into records."""

import json
import os
import socket
import stat

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps import waited_resources
from otel_gpu.capture.maps.waited_resources import MAX_DESCRIBED, ResourceMaps
from otel_gpu.procfs.mounts import Mount
from otel_gpu.wire.bodies import RESOURCE

OWN_PID, OTHER_PID = os.getpid(), 1 << 22
HERE, THERE = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


class Programs:
    """The map, in memory."""

    def __init__(self):
        self.resources = {}

    def resource(self, resource):
        return self.resources.get(resource)


def build(**fields):
    values = {"pid": OWN_PID, **fields}
    identity = (
        *("device", "family", "socket_type", "remote_port", "local_port"),
        *("is_listening", "is_remote", "remote_address"),
    )
    named = {
        f"identity.{name}" if name in identity else name: value for name, value in values.items()
    }
    # The port of what listens is in its identity as well.
    if "local_port" in fields:
        named["local_port"] = fields["local_port"]
    return wire.RESOURCE.build(**named)


@pytest.fixture
def programs():
    return Programs()


@pytest.fixture
def resource_maps(programs):
    return ResourceMaps(programs, lambda: [OWN_PID])


def body_of(record):
    kind, _, size, *_ = wire.RECORD_HEADER.unpack_from(record)
    assert (kind, size) == (wire.RECORD_RESOURCE, len(record))
    body = json.loads(record[wire.RECORD_HEADER.size :])
    assert RESOURCE.parse(record[wire.RECORD_HEADER.size :]) == body
    assert body.pop("resource") == 7
    return body


def tell(resource_maps, programs, **fields):
    programs.resources[7] = build(**fields)
    [record] = resource_maps.describe(7)
    return body_of(record)


def connection(**fields):
    return {
        "inode": 1,
        "mode": stat.S_IFSOCK,
        "family": socket.AF_INET,
        "socket_type": socket.SOCK_STREAM,
        "remote_address": THERE,
        "local_address": HERE,
        "remote_port": 443,
        "local_port": 50_000,
        "is_remote": 1,
    } | fields


def test_each_is_described_once(resource_maps, programs):
    """Until it was forgotten: then it is described again. 0 is no resource."""
    programs.resources[7] = build(mode=stat.S_IFIFO, file_system=b"pipefs")

    assert len(list(resource_maps.describe(7))) == 1
    assert list(resource_maps.describe(7)) == []
    assert list(resource_maps.describe(0)) == []
    assert list(resource_maps.describe(8)) == []
    for number in range(10, 10 + MAX_DESCRIBED):
        programs.resources[number] = programs.resources[7]
        list(resource_maps.describe(number))
    assert len(list(resource_maps.describe(7))) == 1


def test_a_file_is_named_by_its_path_and_its_mount(resource_maps, programs, monkeypatch):
    """What is mounted says whether another host has it."""
    nfs = Mount("/data", "nfs4", "store:/a")
    asked = []
    monkeypatch.setattr(waited_resources, "find_mount", lambda *place: asked.append(place) or nfs)

    assert tell(
        resource_maps, programs, mode=stat.S_IFREG, path=b"/data/x", device=52, inode=5
    ) == {
        "kind": "file",
        "name": "/data/x",
        "file_system": "nfs4",
        "mount": "/data",
        "source": "store:/a",
        "is_remote": True,
    }
    assert asked == [(OWN_PID, 52, "/data/x")]


def test_of_a_process_that_is_gone_the_kernel_has_said_the_type(resource_maps, programs):
    """Its mounts are gone with it. Bytes that are no text are replaced."""
    assert tell(
        resource_maps,
        programs,
        pid=OTHER_PID,
        mode=stat.S_IFREG,
        path=b"/data/\xff",
        file_system=b"fuse",
        subtype=b"sshfs",
    ) == {
        "kind": "file",
        "name": "/data/\N{REPLACEMENT CHARACTER}",
        "file_system": "fuse.sshfs",
        "is_remote": True,
    }


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (
            {"mode": stat.S_IFCHR, "path": b"/dev/nvidia0"},
            {"kind": "device", "name": "/dev/nvidia0"},
        ),
        ({"mode": 0, "path": b"/[eventfd]"}, {"kind": "eventfd", "name": "[eventfd]"}),
        ({"mode": 0, "path": b"/[io_uring]"}, {"kind": "other", "name": "[io_uring]"}),
        (
            {"mode": stat.S_IFIFO, "path": b"/run/fifo", "file_system": b"tmpfs"},
            {"kind": "pipe", "name": "/run/fifo", "peers": []},
        ),
        (
            {"mode": stat.S_IFIFO, "path": b"/", "file_system": b"pipefs", "pid": OTHER_PID},
            {"kind": "pipe", "name": "", "peers": []},
        ),
        (
            {"mode": stat.S_IFSOCK, "family": socket.AF_UNIX, "path": b"@hidden"},
            {"kind": "unix", "name": "@hidden", "peers": []},
        ),
        ({"mode": stat.S_IFSOCK, "family": socket.AF_NETLINK}, {"kind": "other"}),
        (
            connection(pid=OTHER_PID),
            {
                "kind": "tcp",
                "name": "10.0.0.2:443",
                "is_remote": True,
                "is_incoming": False,
                "retransmits": 0,
            },
        ),
        (
            connection(
                family=socket.AF_INET6,
                socket_type=socket.SOCK_DGRAM,
                remote_address=bytes([0xFD]) + bytes(14) + b"\2",
                local_address=bytes([0xFD]) + bytes(14) + b"\1",
            ),
            {"kind": "udp", "name": "[fd00::2]:443", "is_remote": True, "retransmits": 0},
        ),
        (
            connection(remote_port=0, remote_address=b"", is_listening=1, is_remote=0),
            {"kind": "tcp", "name": "10.0.0.1:50000", "is_remote": False, "is_incoming": True},
        ),
        # What stands for many.
        (
            connection(inode=0, remote_port=0, remote_address=b"", local_address=b""),
            {"kind": "tcp", "is_remote": True},
        ),
    ],
)
def test_the_kinds(resource_maps, programs, fields, body):
    """Of each, what is known of it and no more."""
    assert tell(resource_maps, programs, **fields) == body


def test_the_other_end_of_a_pipe_is_a_watched_process(resource_maps, programs):
    """One that waits itself is not the other end, unless nobody else has the pipe."""
    read, write = os.pipe()
    try:
        fields = {"mode": stat.S_IFIFO, "inode": os.fstat(read).st_ino, "file_system": b"pipefs"}
        assert tell(resource_maps, programs, **fields)["peers"] == [OWN_PID]
        programs.resources[8] = build(pid=OTHER_PID, **fields)
        [record] = resource_maps.describe(8)
        assert json.loads(record[wire.RECORD_HEADER.size :])["peers"] == [OWN_PID]
    finally:
        os.close(read)
        os.close(write)


def test_a_connection_is_told_again_when_segments_had_to_be_sent_again(resource_maps, programs):
    """As often as their number grows; files are not looked at again."""
    programs.resources[7] = build(**connection())
    programs.resources[8] = build(mode=stat.S_IFREG, path=b"/x")
    list(resource_maps.describe(7))
    list(resource_maps.describe(8))

    assert list(resource_maps.report_retransmits()) == []
    programs.resources[7] = build(**connection(retransmits=3))
    [record] = resource_maps.report_retransmits()
    assert body_of(record)["retransmits"] == 3
    assert list(resource_maps.report_retransmits()) == []
