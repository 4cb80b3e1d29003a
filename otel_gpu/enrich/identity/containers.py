"""The container and the Kubernetes pod of a process, from its cgroups."""

# Some facts about container cgroups
# ----------------------------------
#
# A line of /proc/PID/cgroup is "hierarchy:controllers:path". cgroup v2 has one line, "0::path"; v1
# has one per controller; mixed systems have both, and the v2 line is then often just "0::/". No
# field is "container": every runtime encodes the container's id in a name of the path, in its own
# way:
#
#   docker, cgroupfs     /docker/ID
#   docker, systemd      /system.slice/docker-ID.scope
#   podman               /machine.slice/libpod-ID.scope/container
#   kubelet, cgroupfs    /kubepods/burstable/podUID/ID
#   containerd, systemd  /kubepods.slice/.../kubepods-burstable-podUID.slice/cri-containerd-ID.scope
#   containerd, mixed    /system.slice/containerd.service/kubepods-...-podUID.slice:cri-containerd:ID
#   cri-o                /kubepods.slice/.../crio-ID.scope
#   ECS on Fargate       /ecs/TASK/TASK-NUMBER
#
# ID is 64 hexadecimal digits. systemd takes "-" as a level of the slice tree, so there the pod's
# UID is written with "_". Static pods have a hash of 32 digits as UID.
#
# Containers nest (kind runs nodes in docker), and a container can run systemd, which adds names
# below the container's. So the deepest name with an id wins, wherever it is. conmon, podman's and
# cri-o's monitor, has a cgroup with the id of the container that it watches, but is not in it.
#
# systemd leaves what is below user@UID.service to that user, who can make cgroups of any name
# there.

import re
from collections.abc import Iterable
from typing import NamedTuple

_CONTAINER = re.compile(
    r"""
    ^ (?: (?P<runtime> [a-z][a-z0-9_-]*? ) - )?
    (?P<id> [0-9a-f]{64} | [0-9a-f]{32}-[0-9]{8,10} )
    (?: \.scope )? $
    """,
    re.VERBOSE,
)
_POD = re.compile(
    r"""
    ^ (?: [a-z0-9_-]* - )? pod
    (?P<uid> [0-9a-f]{8} (?: [-_][0-9a-f]{4} ){3} [-_][0-9a-f]{12} | [0-9a-f]{32} )
    (?: \.slice )? $
    """,
    re.VERBOSE,
)


_OF_USER = re.compile(r"/user@[0-9]+\.service/")


class Container(NamedTuple):
    """
    Where a process runs; None if its cgroups do not show it.

    ``is_claimed``: its user could have named these cgroups.
    """

    container_id: str | None
    pod_uid: str | None
    is_claimed: bool = False


def find_container(cgroups: Iterable[str]) -> Container:
    """
    Return the container from the lines of ``/proc/PID/cgroup``.

    The first line that names a container, or a pod, decides.
    """
    container_id = pod_uid = None
    is_claimed = False
    for line in cgroups:
        path = line.partition(":")[2].partition(":")[2]
        # The mixed containerd form separates with ":" what others separate with "/".
        names = re.split("[/:]", path)
        before = container_id, pod_uid
        container_id = container_id or _deepest_container(names)
        if "kubepods" in path:
            pod_uid = pod_uid or _deepest_pod(names)
        is_claimed |= (container_id, pod_uid) != before and _OF_USER.search(path) is not None
    return Container(container_id, pod_uid, is_claimed)


def choose_cgroup(cgroups: Iterable[str]) -> str | None:
    """
    Return the most useful line on the place of a process.

    That is the v2 line, else systemd's, else the first; lines that name only the root count when
    no other exists.
    """
    best: str | None = None
    best_rank = 99
    for line in cgroups:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        rank = 0 if hierarchy == "0" else 1 if controllers == "name=systemd" else 2
        if path in ("", "/"):
            rank += 10
        if rank < best_rank:
            best, best_rank = line, rank
    return best


def _deepest_container(names: list[str]) -> str | None:
    for name in reversed(names):
        match = _CONTAINER.match(name)
        if match is not None:
            if (match["runtime"] or "").endswith("conmon"):
                return None
            return match["id"]
    return None


def _deepest_pod(names: list[str]) -> str | None:
    for name in reversed(names):
        match = _POD.match(name)
        if match is not None:
            return match["uid"].replace("_", "-")
    return None
