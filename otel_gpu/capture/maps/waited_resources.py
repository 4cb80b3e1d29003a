"""RECORD_RESOURCE for files, devices, sockets and pipes that threads waited for, once each."""

import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mounts import find_mount, is_remote
from otel_gpu.procfs.sockets import (
    Endpoint,
    SocketHolders,
    address_text,
    find_inode,
    listening_ports,
)
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.bodies import ResourceKind

MAX_DESCRIBED: Final = 8192
"""How many described resources are remembered; the least recently used is described again."""
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM = 1, 2
_INTERNET_KINDS = {_STREAM: ResourceKind.TCP, _DATAGRAM: ResourceKind.UDP}
_IPV4_BYTES = 4


class ResourceMaps:
    """
    Describes resources by the ids of the kernel side.

    Args:
        programs: The loaded programs.
        watched: Returns the watched pids, which can hold the other end of a pipe or socket.
    """

    def __init__(self, programs: Programs, watched: Callable[[], Iterable[int]]) -> None:
        self._programs = programs
        self._holders = SocketHolders(watched)
        # By id: the reported retransmits of a connection, -1 for other resources.
        self._described: Recent[int, int] = Recent(MAX_DESCRIBED, cache="wait_resources")

    def describe(self, resource: int) -> Iterator[bytes]:
        """Yield the description of a resource the first time that it is passed; 0 is none."""
        if not resource:
            return
        if resource in self._described:
            self._described.move_to_end(resource)
            return
        yield from self._report(resource)

    def report_retransmits(self) -> Iterator[bytes]:
        """Yield connections again whose count of retransmits has grown."""
        for resource, retransmits in list(self._described.items()):
            if retransmits >= 0:
                yield from self._report(resource, more_than=retransmits)

    def _report(self, resource: int, more_than: int = -1) -> Iterator[bytes]:
        raw = self._programs.resource(resource)
        if raw is None:
            return
        fields = wire.RESOURCE.named(raw)
        retransmits = fields["retransmits"]
        if retransmits <= more_than:
            return
        is_counted = fields["identity.is_remote"] and fields["identity.socket_type"] == _STREAM
        self._described[resource] = retransmits if is_counted else -1
        body = {"resource": resource, **self._describe(fields)}
        yield json_record(
            wire.RECORD_RESOURCE,
            kernel_clock.ktime_ns(),
            body,
            pid=fields["pid"],
            program_ktime_ns=fields["program_ktime_ns"],
        )

    def _describe(self, fields: Mapping[str, Any]) -> dict[str, object]:
        match fields["identity.family"]:
            case 0:
                return self._describe_file(fields)
            case number if number in (_INET, _INET6):
                return self._describe_connection(fields)
            case number if number == _UNIX:
                peers = self._others(fields["peer_inode"], fields["pid"])
                return {"kind": ResourceKind.UNIX, "name": _text(fields["path"]), "peers": peers}
        return {"kind": ResourceKind.OTHER}

    def _describe_file(self, fields: Mapping[str, Any]) -> dict[str, object]:
        name, inode = _text(fields["path"]), fields["inode"]
        file_system, subtype = _text(fields["file_system"]), _text(fields["subtype"])
        match stat.S_IFMT(fields["mode"]):
            case stat.S_IFIFO:
                # An unnamed pipe is on a file system without a root.
                name = "" if file_system == "pipefs" else name
                return {
                    "kind": ResourceKind.PIPE,
                    "name": name,
                    "peers": self._others(inode, fields["pid"]),
                }
            case stat.S_IFCHR | stat.S_IFBLK:
                return {"kind": ResourceKind.DEVICE, "name": name}
            case stat.S_IFREG | stat.S_IFDIR:
                mount = find_mount(fields["pid"], fields["identity.device"], name)
                if mount is not None:
                    return {
                        "kind": ResourceKind.FILE,
                        "name": name,
                        "file_system": mount.file_system,
                        "mount": mount.point,
                        "source": mount.source,
                        "is_remote": mount.is_remote,
                    }
                file_system += f".{subtype}" if subtype else ""
                remote = is_remote(file_system)
                return {
                    "kind": ResourceKind.FILE,
                    "name": name,
                    "file_system": file_system,
                    "is_remote": remote,
                }
        # Anonymous inodes: [eventfd], [io_uring].
        name = name.removeprefix("/")
        is_eventfd = name == "[eventfd]"
        kind = ResourceKind.EVENTFD if is_eventfd else ResourceKind.OTHER
        return {"kind": kind, "name": name}

    def _describe_connection(self, fields: Mapping[str, Any]) -> dict[str, object]:
        pid, family = fields["pid"], fields["identity.family"]
        kind = _INTERNET_KINDS.get(fields["identity.socket_type"], ResourceKind.OTHER)
        size = _IPV4_BYTES if family == _INET else wire.ADDRESS_BYTES
        remote = Endpoint(
            address_text(fields["identity.remote_address"][:size]), fields["identity.remote_port"]
        )
        local = Endpoint(address_text(fields["local_address"][:size]), fields["local_port"])
        described: dict[str, object] = {
            "kind": kind,
            "is_remote": bool(fields["identity.is_remote"]),
        }
        if not fields["inode"] and not remote.port:
            # A combined entry of many connections.
            return described
        if not remote.port:
            return described | {"name": str(local), "is_incoming": True}
        described |= {"name": str(remote), "retransmits": fields["retransmits"]}
        if kind == ResourceKind.TCP:
            described["is_incoming"] = local.port in listening_ports(pid)
            if not described["is_remote"]:
                described["peers"] = self._others(find_inode(pid, remote, local), pid)
        return described

    def _others(self, inode: int, pid: int) -> list[int]:
        # The watched processes that have an inode open, without ``pid`` unless it is the only one.
        holders = self._holders.of(inode) if inode else ()
        return [holder for holder in holders if holder != pid] or list(holders)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
