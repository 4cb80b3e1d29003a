"""agent.yaml and kubernetes.yaml name what otel-gpu watched, and pass it on to gateway.yaml."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.conftest import Replay
from tests.backends.jaeger import Jaeger
from tests.backends.kubernetes import POD_PATH, KubernetesApi, pod
from tests.backends.otelcol import Otelcol
from tests.backends.processes import LOOPBACK, wait_for
from tests.backends.test_gateway import QUICK, inner_port, is_explained
from tests.backends.traces import post, traces_of
from tests.backends.truth import SERVICE, truth_of
from tests.receiver import OtlpReceiver

pytestmark = pytest.mark.backends

# A process in a container of a pod; see tests/replay/make_recordings.py.
TRAINING = Path(__file__).resolve().parents[1] / "replay" / "training.otelgpu"
POD_UID = "5ac0e5c2-8a1d-4f0e-9d65-1f2d3c4b5a69"
CONTAINER_ID = "0123456789abcdef" * 4
PODS = (
    pod(
        "trainer-7d9c5b8f6d-x2x4z",
        uid=POD_UID,
        owner="trainer-7d9c5b8f6d",
        container_id=CONTAINER_ID,
        image="registry.example/trainer:1.4.2",
    ),
    # It has the address that all connections come from.
    pod(
        "otelgpu-q8w2p",
        uid="00000000-0000-4000-8000-000000000001",
        container_id="f" * 64,
        image="registry.example/otel-gpu:0.1",
        ip=LOOPBACK,
    ),
)
NAMES = {
    "k8s.namespace.name": "training",
    "k8s.pod.name": "trainer-7d9c5b8f6d-x2x4z",
    "k8s.pod.uid": POD_UID,
    "k8s.node.name": "gpu-node-7",
    "k8s.deployment.name": "trainer",
    "k8s.container.name": "trainer",
    "container.image.name": "registry.example/trainer",
    "container.image.tag": "1.4.2",
}


class Node(NamedTuple):
    """A Collector on a node, the API server that it asks, and where it sends."""

    agent: Otelcol
    kubernetes: KubernetesApi
    gateway: OtlpReceiver


@pytest.fixture
def node(receiver: OtlpReceiver, tmp_path: Path) -> Iterator[Node]:
    with KubernetesApi(PODS) as kubernetes:
        env = {
            "K8S_NODE_NAME": "gpu-node-7",
            "KUBECONFIG": str(kubernetes.write_kubeconfig(tmp_path / "kubeconfig")),
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=prod-7,host.name=not-this-one",
            "OTELCOL_GATEWAY": receiver.grpc_endpoint.removeprefix("http://"),
            "OTELCOL_GATEWAY_HEADERS": "{authorization: Bearer s3cret}",
        }
        sets = {
            "processors.k8s_attributes.auth_type": "kubeConfig",
            "processors.k8s_attributes.wait_for_metadata": "true",
        }
        with Otelcol("agent", "kubernetes", env=env, sets=sets) as agent:
            yield Node(agent, kubernetes, receiver)


def test_a_process_gets_the_names_of_its_pod_and_container(node: Node, replay: Replay) -> None:
    """
    Spans and metrics of a process in a pod are named after that pod, not the one that sent them.
    """
    replay(TRAINING, node.agent.endpoint)
    spans = node.gateway.wait_for(node.gateway.spans)
    points = node.gateway.wait_for(
        lambda: [
            point
            for key, point in node.gateway.metrics().items()
            if key.name == "gpu.cuda.call.duration"
        ]
    )

    for resource in (*(span.resource for span in spans), *(point.resource for point in points)):
        if resource["process.pid"] == 4242:
            assert NAMES.items() <= resource.items()
    assert {span.resource["process.pid"] for span in spans} >= {4242}
    assert "otelgpu-q8w2p" not in {span.resource.get("k8s.pod.name") for span in spans}


def test_the_container_id_alone_is_enough(node: Node) -> None:
    """Where the cgroup path tells the container and not the pod, the names are found just so."""
    spans = [sent for trace in traces_of(TRAINING).values() for sent in trace]
    for sent in spans:
        uids = [pair for pair in sent.resource.attributes if pair.key == "k8s.pod.uid"]
        for pair in uids:
            sent.resource.attributes.remove(pair)
    post(spans, node.agent.http_endpoint)

    received = node.gateway.wait_for(node.gateway.spans)

    of_trainer = [span for span in received if span.resource["process.pid"] == 4242]
    assert of_trainer
    for span in of_trainer:
        assert NAMES.items() <= span.resource.items()


def test_what_the_process_said_of_itself_is_not_replaced(node: Node, replay: Replay) -> None:
    """What this Collector's environment says is added where it is missing, and nowhere else."""
    replay(TRAINING, node.agent.endpoint)

    spans = node.gateway.wait_for(node.gateway.spans)

    for span in spans:
        assert span.resource["host.name"] == "gpu-node-7"
        assert span.resource["k8s.cluster.name"] == "prod-7"
        assert span.resource["os.type"] == "linux"


def test_only_the_pods_of_this_node_are_asked_for(node: Node) -> None:
    """The permissions that kubernetes.yaml names are all that it needs."""
    assert node.kubernetes.asked == {POD_PATH}
    assert node.kubernetes.selectors == {"spec.nodeName=gpu-node-7"}


def test_the_secret_of_the_gateway_comes_from_the_environment(node: Node, replay: Replay) -> None:
    """Every request to the gateway carries the header that the environment holds."""
    replay(TRAINING, node.agent.endpoint)
    node.gateway.wait_for(lambda: node.gateway.requests("metrics") and node.gateway.spans())

    requests = node.gateway.requests()

    assert {request.headers.get("authorization") for request in requests} == {"Bearer s3cret"}


def test_an_incident_crosses_both_tiers(jaeger: Jaeger, replay: Replay) -> None:
    """
    Outside Kubernetes, agent.yaml alone and gateway.yaml behind it bring incidents into Jaeger.
    """
    recorded = traces_of(truth_of("lock").path)
    explained = {key.hex() for key, trace in recorded.items() if is_explained(trace)}
    gateway = Otelcol(
        "gateway",
        env={"OTELCOL_TRACES": jaeger.endpoint, "OTELCOL_SAMPLING_PERCENTAGE": "0"},
        sets=QUICK | inner_port() | {"service.pipelines.metrics.exporters": "[nop]"},
    )
    env = {"OTELCOL_GATEWAY": gateway.endpoint.removeprefix("http://")}
    with gateway, Otelcol("agent", env=env) as agent:
        replay(truth_of("lock").path, agent.endpoint)
        found = wait_for(lambda: len(traces := kept(jaeger)) >= len(explained) and traces)

    assert found == explained
    assert len(explained) == 5


def kept(jaeger: Jaeger) -> set[str]:
    if SERVICE not in jaeger.services():
        return set()
    return {span.trace_id for span in jaeger.find(SERVICE)}
