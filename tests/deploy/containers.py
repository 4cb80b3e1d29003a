"""
A container of a manifest, made here by runc as a node's runtime would make it.

User, capabilities, system call filter, read-only root, namespaces, mounts, limits and environment
are the manifest's. Of a node it lacks the network namespace, so that it reaches a test's receiver
on loopback, and AppArmor. The image is a stand-in for that of deploy/docker: this host's files
with an /opt/otel-gpu that holds the Dockerfile's interpreter and the checkout's code.
"""

import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.deploy import programs
from tests.deploy.manifests import ROOT, Manifest, container_of, environment_of, only, pod_of
from tests.kernel.agent import wait_until

DOCKER = ROOT / "deploy" / "docker"
POD_NAME = "otel-gpu-x7k2p"
# From include/uapi/linux/capability.h.
NUMBERS = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "SYSLOG": 34} | {
    "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40
}  # fmt: skip
SCRIPT = """
set -eu
mount --make-rprivate /
mount --rbind "$1/image" /opt
mount --rbind / "$1/rootfs"
# The runtime mounts its own.
umount --lazy "$1/rootfs/proc" "$1/rootfs/sys" "$1/rootfs/dev"
cd "$1"
shift
exec "$@"
"""
END_TIMEOUT_S = 40.0


class Container:
    """
    The container, as a context manager.

    Args:
        manifests: All of the overlay.
        workload: The kind and the name of the one whose container ``otel-gpu`` is run.
        env: Set over the manifest's environment.
        pid_namespace: A process whose pid namespace it shares; None: the host's, as ``hostPID``.

    Attributes:
        pid: The agent's.
        cgroup: Its memory cgroup.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        workload: tuple[str, str],
        env: Mapping[str, str],
        pid_namespace: int | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="otel-gpu-container-"))
        self._id = self._folder.name
        self._manifests = list(manifests)
        self._workload = only(manifests, *workload)
        self._container = container_of(self._workload, "otel-gpu")
        self._env = dict(env)
        self._pid_namespace = pid_namespace
        self._process: subprocess.Popen[bytes]
        self.pid = 0

    def __enter__(self) -> Self:
        for name in ("rootfs", "image", "volumes"):
            (self._folder / name).mkdir()
        # The rest of its path is closed to the container's user.
        self._folder.chmod(0o755)
        make_image(self._folder / "image" / "otel-gpu")
        config = json.dumps(self._config(), indent=1)
        (self._folder / "config.json").write_text(config, encoding="utf-8")
        runc = [programs.runc(), "--root", self._folder / "state"]
        command = [*runc, "run", "--pid-file", self._folder / "pid", self._id]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", self._folder, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(self._started, "the start of the container", 30)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"the container said:\n{self.log[-4000:]}")
        self.stop()
        shutil.rmtree(self._folder)

    @property
    def log(self) -> str:
        """What the container has printed so far."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def cgroup(self) -> Path:
        """Where its memory is counted."""
        for base in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
            if (folder := base / self._id).is_dir():
                return folder
        raise FileNotFoundError(self._id)

    def stop(self) -> int:
        """End it as the kubelet does, and return its exit code."""
        if self._process.poll() is None and self.pid:
            os.kill(self.pid, 15)
        try:
            return self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, 9)
            self._process.wait()
            raise

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as ``kubectl exec`` does."""
        runc = [programs.runc(), "--root", self._folder / "state", "exec", self._id]
        return subprocess.run(
            [str(part) for part in (*runc, *command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _started(self) -> bool:
        assert self._process.poll() is None, "the container ended"
        path = self._folder / "pid"
        if not self.pid and path.exists() and (text := path.read_text(encoding="ascii")):
            self.pid = int(text)
        return bool(self.pid)

    def _config(self) -> dict[str, Any]:
        pod, context = pod_of(self._workload), self._container["securityContext"]
        context = {**pod.get("securityContext", {}), **context}
        assert context["capabilities"]["drop"] == ["ALL"]
        held = [f"CAP_{name}" for name in context["capabilities"]["add"]]
        limits = self._container["resources"]["limits"]
        env = environment_of(self._container, self._manifests) | self._env
        image = {"PATH": "/opt/otel-gpu/bin:/usr/local/bin:/usr/bin:/bin"}
        return {
            "ociVersion": "1.0.2",
            "hostname": POD_NAME,
            "root": {"path": "rootfs", "readonly": context["readOnlyRootFilesystem"]},
            "process": {
                "args": ["/opt/otel-gpu/bin/entrypoint", *self._container["args"]],
                "cwd": "/",
                "env": [f"{name}={value}" for name, value in (image | env).items()],
                "user": {
                    "uid": context["runAsUser"],
                    "gid": context["runAsGroup"],
                    "additionalGids": [context.get("fsGroup", context["runAsGroup"])],
                },
                # As containerd and CRI-O have it for every user: no ambient ones.
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
                "noNewPrivileges": not context["allowPrivilegeEscalation"],
            },
            "mounts": [*_own_mounts(), *self._volumes(pod, context)],
            "linux": {
                "namespaces": list(self._namespaces(pod)),
                "cgroupsPath": f"/{self._id}",
                "resources": {
                    "memory": {"limit": _bytes(limits["memory"])},
                    "cpu": {"period": 100000, "quota": _millicores(limits["cpu"]) * 100},
                },
                "seccomp": seccomp(held),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
            },
        }

    def _namespaces(self, pod: Manifest) -> Sequence[Mapping[str, str]]:
        own = [{"type": name} for name in ("mount", "uts", "ipc", "cgroup")]
        if self._pid_namespace is None:
            assert pod["hostPID"]
            return own
        assert pod["shareProcessNamespace"]
        return [*own, {"type": "pid", "path": f"/proc/{self._pid_namespace}/ns/pid"}]

    def _volumes(self, pod: Manifest, context: Manifest) -> list[Mapping[str, Any]]:
        sources = {volume["name"]: self._source(volume, context) for volume in pod["volumes"]}
        return [
            {
                "destination": mount["mountPath"],
                "type": "bind",
                "source": str(sources[mount["name"]]),
                "options": ["rbind", "ro" if mount.get("readOnly") else "rw"],
            }
            for mount in self._container["volumeMounts"]
        ]

    def _source(self, volume: Manifest, context: Manifest) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = self._folder / "volumes" / volume["name"]
        folder.mkdir()
        if "configMap" in volume:
            (found,) = (
                m["data"]
                for m in self._manifests
                if (m["kind"], m["metadata"]["name"]) == ("ConfigMap", volume["configMap"]["name"])
            )
            for name, text in found.items():
                (folder / name).write_text(text, encoding="utf-8")
        else:
            assert "emptyDir" in volume
            # As the kubelet does for fsGroup.
            os.chown(folder, 0, context["fsGroup"])
            folder.chmod(stat.S_ISGID | 0o775)
        return folder


def make_image(folder: Path) -> None:
    """Make the folder that the image has in /opt: the Dockerfile's, with the checkout's code."""
    (folder / "bin").mkdir(parents=True)
    real = Path(sys.executable).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\n", encoding="utf-8")
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    capture = folder / "bin" / "python3-capture"
    shutil.copy(real, capture)
    capture.chmod(0o755)
    dockerfile = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    (given,) = re.findall(r"setcap (\S+)=ep", dockerfile)
    bits = sum(1 << NUMBERS[name.removeprefix("cap_").upper()] for name in given.split(","))
    # struct vfs_cap_data, revision 2, with the flag that makes them effective.
    words = (0x02000001, bits & 0xFFFFFFFF, 0, bits >> 32, 0)
    os.setxattr(capture, "security.capability", b"".join(w.to_bytes(4, "little") for w in words))
    shutil.copy(DOCKER / "entrypoint.sh", folder / "bin" / "entrypoint")


def seccomp(held: Sequence[str]) -> dict[str, Any]:
    """Return what CRI-O makes of its default profile for a container with capabilities."""
    profile = json.loads(programs.seccomp_profile().read_text(encoding="utf-8"))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]

    def applies(rule: Mapping[str, Any]) -> bool:
        needs, excludes = rule.get("includes", {}), rule.get("excludes", {})
        return (
            set(needs.get("caps", ())) <= set(held)
            and machine in needs.get("arches", [machine])
            and not set(excludes.get("caps", ())) & set(held)
            and machine not in excludes.get("arches", ())
        )

    fields = ("names", "action", "errnoRet", "args")
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [
            {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[machine],
        ],
        "syscalls": [
            {field: rule[field] for field in fields if rule.get(field) is not None}
            for rule in profile["syscalls"]
            if applies(rule)
        ],
    }


def _own_mounts() -> list[dict[str, Any]]:
    safe = ["nosuid", "noexec", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "mode=755"],
        },
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*safe, "ro"]},
    ]


def _bytes(quantity: str) -> int:
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def _millicores(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else int(quantity) * 1000
