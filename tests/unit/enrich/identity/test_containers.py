import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.identity.containers import Container, choose_cgroup, find_container

A = "8f3b0c52d1a94ee6b7f0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8"
B = "1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d"
UID = "2b1c1f0e-6c1a-4b7e-9d55-0a1b2c3d4e5f"
UID_ = "2b1c1f0e_6c1a_4b7e_9d55_0a1b2c3d4e5f"
STATIC = "77c3f7d2a4b94e0b9c36a1e8d5f20b47"
PODS = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable"
SESSION = "/user.slice/user-1000.slice/user@1000.service/user.slice"
KUBELET_PODS = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
TASK = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"

TABLE = {
    "docker, cgroupfs, v1": (
        ["12:pids:/docker/" + A, "1:name=systemd:/docker/" + A, "0::/"],
        Container(A, None),
    ),
    "docker, systemd, v2": ([f"0::/system.slice/docker-{A}.scope"], Container(A, None)),
    "docker, rootless": (
        [
            f"0::{SESSION}/docker-{A}.scope"
        ],
        Container(A, None, is_claimed=True),
    ),
    "docker in docker": ([f"4:memory:/docker/{B}/docker/{A}"], Container(A, None)),
    "systemd inside docker": (
        [f"0::/system.slice/docker-{A}.scope/system.slice/trainer.service"],
        Container(A, None),
    ),
    "podman": ([f"0::/machine.slice/libpod-{A}.scope/container"], Container(A, None)),
    "podman, payload": (
        [f"0::/machine.slice/libpod-{A}.scope/libpod-payload-{A}"],
        Container(A, None),
    ),
    "podman's monitor": ([f"0::/machine.slice/libpod-conmon-{A}.scope"], Container(None, None)),
    "podman, rootless": (
        [
            f"0::{SESSION}/libpod-{A}.scope/container"
        ],
        Container(A, None, is_claimed=True),
    ),
    "podman pod": (
        [f"0::/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope/container"],
        Container(A, None),
    ),
    "containerd, cgroupfs, v1": (
        [f"11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{A}"],
        Container(A, UID),
    ),
    "containerd, cgroupfs, guaranteed": ([f"0::/kubepods/pod{UID}/{A}"], Container(A, UID)),
    "containerd, systemd, v2": (
        [f"0::{PODS}-pod{UID_}.slice/cri-containerd-{A}.scope"],
        Container(A, UID),
    ),
    "containerd, systemd, guaranteed": (
        [f"0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope"],
        Container(A, UID),
    ),
    "containerd, best effort, kubelet slice": (
        [
            f"0::{KUBELET_PODS}/kubelet-kubepods-besteffort-pod{UID_}.slice/cri-containerd-{A}.scope"
        ],
        Container(A, UID),
    ),
    "containerd, mixed drivers": (
        [
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{A}"
        ],
        Container(A, UID),
    ),
    "cri-o, systemd": ([f"0::{PODS}-pod{UID_}.slice/crio-{A}.scope"], Container(A, UID)),
    "cri-o, cgroupfs": ([f"3:cpuset:/kubepods/besteffort/pod{UID}/crio-{A}"], Container(A, UID)),
    "cri-o's monitor": (
        [f"0::{PODS}-pod{UID_}.slice/crio-conmon-{A}.scope"],
        Container(None, UID),
    ),
    "docker shim": (
        [f"0::{PODS}-pod{UID_}.slice/docker-{A}.scope"],
        Container(A, UID),
    ),
    "static pod": ([f"0::/kubepods/burstable/pod{STATIC}/{A}"], Container(A, STATIC)),
    "kind: a node in docker": (
        [f"0::/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}"],
        Container(A, UID),
    ),
    "k3s, systemd scope inside": (
        [f"0::{PODS}-pod{UID_}.slice/cri-containerd-{A}.scope/init.scope"],
        Container(A, UID),
    ),
    "seen from a sibling's cgroup namespace": (
        [f"0::/../cri-containerd-{A}.scope"],
        Container(A, None),
    ),
    "ECS": (
        [f"9:perf_event:/ecs/55091c13-b8cf-4801-b527-f4601742204d/{A}"],
        Container(A, None),
    ),
    "ECS on Fargate": (
        [
            f"9:cpu:/ecs/{TASK}/{TASK}-1234567890"
        ],
        Container(f"{TASK}-1234567890", None),
    ),
    "v1, only one controller tells": (
        ["3:freezer:/", f"2:devices:/docker/{A}", "1:name=systemd:/init.scope", "0::/init.scope"],
        Container(A, None),
    ),
    "a login session": (
        ["0::/user.slice/user-1000.slice/session-3.scope"],
        Container(None, None),
    ),
    "a service": (["0::/system.slice/nvidia-persistenced.service"], Container(None, None)),
    "Slurm": (["0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"],
              Container(None, None)),
    "the root": (["0::/"], Container(None, None)),
    "nothing": ([], Container(None, None)),
    "too short an id": ([f"0::/docker/{A[:63]}"], Container(None, None)),
    "a pod's name outside kubepods": ([f"0::/podcast/pod{UID}/x"], Container(None, None)),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), TABLE.values(), ids=TABLE.keys())
def test_each_runtime_s_cgroups_are_read(lines, expected):
    """A container's and a pod's id are found in whatever form the runtime writes them."""
    assert find_container(lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["2:cpu:/a", "0::/b"], "0::/b"),
        (["2:cpu:/a", "1:name=systemd:/c", "0::/"], "1:name=systemd:/c"),
        (["2:cpu:/a", "0::/"], "2:cpu:/a"),
        (["2:cpu:/", "0::/"], "0::/"),
        ([], None),
    ],
)
def test_the_most_telling_cgroup_is_chosen(lines, expected):
    """The v2 line comes first, unless it says nothing."""
    assert choose_cgroup(lines) == expected


@given(st.lists(st.text()))
def test_no_line_is_a_problem(lines):
    """Anything may stand in a cgroup's name."""
    container = find_container(lines)

    assert container.pod_uid is None or "kubepods" in "".join(lines)
    assert (choose_cgroup(lines) is None) == (not lines)
