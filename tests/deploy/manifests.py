"""The manifests of deploy/kubernetes, rendered by kustomize and judged by the API server's code."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy import programs

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(f"overlays/{path.name}" for path in (KUBERNETES / "overlays").iterdir())

# What the downward API would say.
FIELDS = {
    "metadata.name": "trainer-0",
    "metadata.namespace": "inference",
    "spec.nodeName": "node-7",
    "status.podIP": "10.1.2.3",
}

Manifest = Mapping[str, Any]


class Verdict(NamedTuple):
    """What the API server would say of one manifest; see validate/main.go."""

    kind: str
    namespace: str
    name: str
    errors: Sequence[str]
    warnings: Sequence[str]
    pod_security: Mapping[str, Sequence[str]] = {}


def render(folder: str, base: Path = KUBERNETES) -> str:
    """Return what ``kubectl apply -k`` would send, as YAML."""
    return _run([programs.kustomize(), "build", base / folder])


def examine(manifests: str) -> list[Verdict]:
    """Let the API server's code judge manifests, one by one."""
    lines = _run([programs.validate()], manifests).splitlines()
    return [Verdict(**json.loads(line)) for line in lines]


def load(manifests: str) -> list[Manifest]:
    """Return the documents of a YAML stream."""
    return list(yaml.safe_load_all(manifests))


def only(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """Return the one manifest of this kind and name; of a ConfigMap's, the hash is left out."""
    (found,) = (
        manifest
        for manifest in manifests
        if manifest["kind"] == kind
        and name == (_unhashed(manifest) if kind == "ConfigMap" else manifest["metadata"]["name"])
    )
    return found


def pod_of(manifest: Manifest) -> Manifest:
    """Return the pod's specification of a workload."""
    return dict(manifest["spec"]["template"]["spec"])


def container_of(manifest: Manifest, name: str) -> Manifest:
    """Return a container of a workload, or a sidecar."""
    pod = pod_of(manifest)
    containers = (*pod["containers"], *pod.get("initContainers", ()))
    (found,) = (container for container in containers if container["name"] == name)
    return dict(found)


def environment_of(container: Manifest, manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return a container's environment on a node, with what the cluster would fill in."""
    env: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        env.update(_named(manifests, source["configMapRef"]["name"]))
    for variable in container["env"]:
        value = _value(variable, manifests)
        if value is not None:
            env[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], value)
    return env


def _value(variable: Mapping[str, Any], manifests: Sequence[Manifest]) -> str | None:
    if "value" in variable:
        return str(variable["value"])
    ((kind, source),) = variable["valueFrom"].items()
    if kind == "fieldRef":
        return FIELDS[source["fieldPath"]]
    if kind == "configMapKeyRef":
        return _named(manifests, source["name"])[source["key"]]
    assert (kind, source["optional"]) == ("secretKeyRef", True)
    return None


def _named(manifests: Sequence[Manifest], name: str) -> Mapping[str, str]:
    (found,) = (m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == name)
    return dict(found["data"])


def _unhashed(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"]).rpartition("-")[0]


def _run(command: Sequence[str | Path], text: str = "") -> str:
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-4000:]}")
    return done.stdout
