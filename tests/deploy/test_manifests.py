"""Every manifest is one that an API server takes, and asks for no more than it uses."""

import os.path
import re
from pathlib import Path

import pytest
import yaml

from otel_gpu import config
from tests.backends.otelcol import CONFIGS, validate
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    ROOT,
    Manifest,
    container_of,
    environment_of,
    examine,
    load,
    only,
    pod_of,
    render,
)

pytestmark = pytest.mark.backends

FOLDERS = ("base", *OVERLAYS)
CAPABILITIES = ["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "SYSLOG"]
COLLECTORS = (("DaemonSet", "otel-gpu-collector"), ("Deployment", "otel-gpu-gateway"))


@pytest.fixture(scope="module")
def base() -> list[Manifest]:
    return load(render("base"))


@pytest.fixture(scope="module")
def cluster() -> list[Manifest]:
    """Agents, the nodes' Collectors and the gateway."""
    return load(render("overlays/daemonset-collector"))


@pytest.fixture(scope="module")
def agent(base: list[Manifest]) -> Manifest:
    return only(base, "DaemonSet", "otel-gpu")


@pytest.fixture(scope="module")
def inference() -> Manifest:
    return only(load(render("overlays/sidecar")), "Deployment", "vllm")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_api_server_takes_it_without_a_warning(folder: str) -> None:
    """Each rendered object decodes with no field unknown or doubled, and is valid."""
    verdicts = examine(render(folder))

    assert len(verdicts) >= 4
    for verdict in verdicts:
        assert (verdict.kind, verdict.errors, verdict.warnings) == (verdict.kind, [], [])


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("hostPID: true", "hostPid: true", 'unknown field "spec.template.spec.hostPid"'),
        ("readOnlyRootFilesystem:", "readOnlyRootFileSystem:", "readOnlyRootFileSystem"),
        ("      hostPID: true", "      hostPID: true\n      hostPID: true", "already set"),
        ("mountPath: /etc/otel-gpu", "mountPath: ''", "mountPath: Required value"),
        ("name: machine-id\n", "name: machine_id\n", "machine_id"),
        ("type: RuntimeDefault", "type: Default", "seccompProfile.type: Unsupported value"),
        ("cpu: 500m", "cpu: 500x", "quantities must match"),
        ("cpu: 500m", "cpu: 10m", "must be less than or equal to cpu limit"),
        ("operator: Exists", "operator: Exist", "Unsupported value"),
    ],
)
def test_a_wrong_manifest_is_refused(right: str, wrong: str, said: str) -> None:
    """
    The check above can fail: a misspelt or doubled key, and each kind of wrong value, is found.
    """
    manifests = render("base")
    assert right in manifests

    errors = [
        error for verdict in examine(manifests.replace(right, wrong)) for error in verdict.errors
    ]

    assert errors
    assert all(said in error for error in errors)


def test_a_misspelt_key_of_a_kustomization_is_refused(tmp_path: Path) -> None:
    """kustomize names what it does not know, so nothing of ours is silently left out."""
    text = (KUBERNETES / "base" / "kustomization.yaml").read_text(encoding="utf-8")
    (tmp_path / "kustomization.yaml").write_text(
        text.replace("images:", "image:"), encoding="utf-8"
    )

    with pytest.raises(RuntimeError, match='unknown field "image"'):
        render(".", tmp_path)


def test_the_agent_breaks_only_the_rules_that_it_has_to(base: list[Manifest]) -> None:
    """
    Against the Pod Security Standards: it is no root, and not privileged; the rest has its reason.
    """
    (verdict,) = (found for found in examine(render("base")) if found.kind == "DaemonSet")

    assert sorted(verdict.pod_security["restricted"]) == [
        "allowPrivilegeEscalation != false",
        "forbidden AppArmor profile",
        "host namespaces",
        "restricted volume types",
        "unrestricted capabilities",
    ]
    assert only(base, "Namespace", "otel-gpu")["metadata"]["labels"] == {
        "app.kubernetes.io/name": "otel-gpu",
        "pod-security.kubernetes.io/enforce": "privileged",
    }


def test_the_collectors_break_no_rule() -> None:
    """What listens on the network passes the strictest level of the Pod Security Standards."""
    verdicts = examine(render("overlays/daemonset-collector"))
    found = {(v.kind, v.name): v.pod_security for v in verdicts if v.pod_security}

    assert set(found) == {*COLLECTORS, ("DaemonSet", "otel-gpu")}
    for name in COLLECTORS:
        assert found[name] == {"baseline": [], "restricted": []}


def test_capabilities_are_the_same_wherever_the_agent_runs(
    agent: Manifest, inference: Manifest
) -> None:
    """DaemonSet, sidecar, systemd unit and image ask for the same six."""
    sidecar = container_of(inference, "otel-gpu")["securityContext"]
    own = container_of(agent, "otel-gpu")["securityContext"]
    unit = (ROOT / "deploy/systemd/otel-gpu.service").read_text(encoding="utf-8")
    image = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    written = [f"CAP_{name}" for name in CAPABILITIES]

    assert own["capabilities"] == {"drop": ["ALL"], "add": CAPABILITIES}
    assert {**pod_of(agent)["securityContext"], **own} == {**sidecar, "fsGroup": 65532}
    assert f"AmbientCapabilities={' '.join(written)}\n" in unit
    assert f"CapabilityBoundingSet={' '.join(written)}\n" in unit
    assert f"{','.join(written).lower()}=ep" in image
    assert "USER 65532:65532\n" in image


def test_each_capability_has_its_reason() -> None:
    """Whoever has to allow them reads beside each what it is for."""
    text = (KUBERNETES / "base" / "daemonset.yaml").read_text(encoding="utf-8")

    reasons = dict(re.findall(r"^ +- ([A-Z_]+) # (.+)$", text, re.MULTILINE))

    assert list(reasons) == CAPABILITIES


def test_of_the_host_two_things_are_mounted_and_none_can_be_written(agent: Manifest) -> None:
    """The machine id and the cgroups; what can be written is a volume of the pod's own."""
    volumes = pod_of(agent)["volumes"]
    mounts = container_of(agent, "otel-gpu")["volumeMounts"]

    host = {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    assert host == {"/etc/machine-id", "/sys/fs/cgroup"}
    assert [mount["name"] for mount in mounts if not mount.get("readOnly")] == ["state"]
    assert only([agent], "DaemonSet", "otel-gpu")["spec"]["template"]["spec"]["hostPID"] is True
    assert "hostNetwork" not in pod_of(agent)
    assert "hostIPC" not in pod_of(agent)


def test_only_the_collector_of_the_node_may_ask_the_api_server(cluster: list[Manifest]) -> None:
    """It may read pods; the agent and the gateway have neither a role nor a token."""
    (role,) = (m for m in cluster if m["kind"] in {"Role", "ClusterRole"})
    (binding,) = (m for m in cluster if m["kind"] in {"RoleBinding", "ClusterRoleBinding"})
    tokens = {
        m["metadata"]["name"]: pod_of(m)["automountServiceAccountToken"]
        for m in cluster
        if m["kind"] in {"DaemonSet", "Deployment"}
    }

    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert [subject["name"] for subject in binding["subjects"]] == ["otel-gpu-collector"]
    assert tokens == {
        "otel-gpu": False,
        "otel-gpu-collector": True,
        "otel-gpu-gateway": False,
    }


def test_one_image_is_set_in_one_place(tmp_path: Path) -> None:
    """An overlay's `images` replaces the placeholder, in the DaemonSet and in the sidecar."""
    image = {"name": "registry.example/otel-gpu", "newName": "registry.test/agent", "newTag": "7"}
    for folder in ("overlays/daemonset-direct", "overlays/sidecar"):
        (tmp_path / "kustomization.yaml").write_text(
            yaml.safe_dump(
                {"resources": [os.path.relpath(KUBERNETES / folder, tmp_path)], "images": [image]}
            ),
            encoding="utf-8",
        )
        manifests = load(render(".", tmp_path))
        kind, name = ("Deployment", "vllm") if "sidecar" in folder else ("DaemonSet", "otel-gpu")
        container = container_of(only(manifests, kind, name), "otel-gpu")
        assert container["image"] == "registry.test/agent:7"


def test_the_shipped_settings_are_ones_that_the_agent_knows(
    base: list[Manifest], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both config files load, no variable is unknown, and the recorder fits its volume twice."""
    sidecar = load(render("overlays/sidecar"))
    for manifests, name in ((base, "otel-gpu"), (sidecar, "otel-gpu-sidecar")):
        text = only(manifests, "ConfigMap", f"{name}-config")["data"]["config.yaml"]
        env = only(manifests, "ConfigMap", f"{name}-env")["data"]
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        loaded = config.load(path, env, {})
        assert set(yaml.safe_load(text)) <= {"store", "spans", "log", "capture", "export"}
    recorder = config.load(None, {}, {})
    assert recorder.store.enabled == "auto"
    assert loaded.capture.ring_buffer_bytes == 2 << 20
    text = only(base, "ConfigMap", "otel-gpu-config")["data"]["config.yaml"]
    path.write_text(text, encoding="utf-8")
    store = config.load(path, {}, {}).store
    (state,) = (
        v for v in pod_of(only(base, "DaemonSet", "otel-gpu"))["volumes"] if v["name"] == "state"
    )
    assert state["emptyDir"]["sizeLimit"] == "1Gi"
    assert 2 * store.max_bytes <= 1 << 30
    assert caplog.records == []


@pytest.mark.parametrize(
    ("folder", "names"), [("collector", ("agent", "kubernetes")), ("gateway", ("gateway",))]
)
def test_collectors_run_the_files_of_collector_config(folder: str, names: tuple[str, ...]) -> None:
    """The copies that make this folder one that can be copied are byte for byte the originals."""
    for name in names:
        shipped = (CONFIGS / f"{name}.yaml").read_bytes()
        assert (KUBERNETES / folder / f"{name}.yaml").read_bytes() == shipped


@pytest.mark.parametrize(
    ("kind", "name", "names"),
    [(*COLLECTORS[0], ("agent", "kubernetes")), (*COLLECTORS[1], ("gateway",))],
)
def test_the_collector_takes_its_variables(
    cluster: list[Manifest], kind: str, name: str, names: tuple[str, ...]
) -> None:
    """
    The real Collector accepts the files with the pod's environment, and each variable is used.
    """
    env = environment_of(container_of(only(cluster, kind, name), "otelcol"), cluster)
    text = "".join((CONFIGS / f"{each}.yaml").read_text(encoding="utf-8") for each in names)

    assert validate(names, env) == ""
    for variable in env:
        assert variable == "GOMEMLIMIT" or variable in text, variable


def test_everything_finds_its_next_hop(cluster: list[Manifest]) -> None:
    """Each address that is configured is a Service whose selector and ports the pods have."""
    agent = environment_of(
        container_of(only(cluster, "DaemonSet", "otel-gpu"), "otel-gpu"), cluster
    )
    node = only(cluster, *COLLECTORS[0])
    gateway = only(cluster, *COLLECTORS[1])
    node_env = environment_of(container_of(node, "otelcol"), cluster)
    gateway_env = environment_of(container_of(gateway, "otelcol"), cluster)
    for address, target in (
        (agent["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://"), node),
        (node_env["OTELCOL_GATEWAY"], gateway),
        (f"{gateway_env['OTELCOL_REPLICAS']}:4319", gateway),
    ):
        host, port = address.split(":")
        service = only(cluster, "Service", host)["spec"]
        labels = target["spec"]["template"]["metadata"]["labels"]
        ports = {p["name"]: p["containerPort"] for p in container_of(target, "otelcol")["ports"]}
        assert service["selector"].items() <= labels.items()
        (used,) = (p for p in service["ports"] if p["port"] == int(port))
        assert ports[used["targetPort"]] == int(port)
    replicas = only(cluster, "Service", "otel-gpu-gateway-replicas")["spec"]
    assert (replicas["clusterIP"], replicas["publishNotReadyAddresses"]) == ("None", True)
    assert (
        only(cluster, "Service", "otel-gpu-collector")["spec"]["internalTrafficPolicy"] == "Local"
    )
