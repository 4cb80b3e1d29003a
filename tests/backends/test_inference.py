"""inference.yaml brings what engines say of themselves, under their service and host, beside ours."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.engines import FOLDER, NAMES, Engines
from tests.backends.kubernetes import POD_PATH, KubernetesApi, pod
from tests.backends.otelcol import Otelcol
from tests.backends.processes import LOOPBACK, free_ports, wait_for
from tests.backends.prometheus import Prometheus
from tests.kernel.agent import CALL_DURATION, Agent
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.backends

POD_UID = "5ac0e5c2-8a1d-4f0e-9d65-1f2d3c4b5a69"
TO_PROMETHEUS = {"OTELCOL_INFERENCE_EXPORTER": "prometheus_remote_write"}
# As the engines call them, and what of the 101 requests of each file took less than half of all.
TO_FIRST_TOKEN_S = {
    "vllm:time_to_first_token_seconds": (0.1, 0.25),
    "sglang:time_to_first_token_seconds": (0.1, 0.2),
    "nv_inference_first_response_histogram_ms": (100, 500),
}
PER_TOKEN_S = {
    "vllm:inter_token_latency_seconds": (0.01, 0.025),
    "sglang:inter_token_latency_seconds": (0.02, 0.04),
    "tgi_request_mean_time_per_token_duration": (0.02, 0.04),
}
GAUGES = {
    "vllm:num_requests_waiting": 11,
    "vllm:kv_cache_usage_perc": 0.61,
    "sglang:num_queue_reqs": 13,
    "sglang:token_usage": 0.43,
    "tgi_queue_size": 3,
    "nv_inference_pending_request_count": 17,
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}': 0.37,
}


class Scraped(NamedTuple):
    """What Prometheus has of the engines, and when all of them were asked twice."""

    prometheus: Prometheus
    end_s: float

    def value(self, promql: str) -> float | None:
        """The answer to a question."""
        return self.prometheus.value(promql, self.end_s)


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    with Engines() as engines, Prometheus() as prometheus:
        env = engines.environment(vllm="chat") | TO_PROMETHEUS
        env |= {"OTELCOL_REMOTE_WRITE": prometheus.remote_write}
        with Otelcol("prometheus", "inference", env=env):
            for job in ("chat", *NAMES[1:]):
                asked = f'rate(scrape_samples_scraped{{job="{job}"}}[1m])'
                assert wait_for(partial(latest, prometheus, asked)), job
        yield Scraped(prometheus, time.time())


def latest(prometheus: Prometheus, promql: str) -> object:
    return prometheus.query(promql, time.time())


@pytest.mark.parametrize("name", GAUGES)
def test_gauges_are_what_the_engine_said(scraped: Scraped, name: str) -> None:
    """Queues and caches, by the names that engines give them."""
    assert scraped.value(name) == GAUGES[name]


@pytest.mark.parametrize("name", [*TO_FIRST_TOKEN_S, *PER_TOKEN_S])
def test_medians_are_in_the_engines_buckets(scraped: Scraped, name: str) -> None:
    """Times to the first token and per token, of what was counted between two readings."""
    low, high = (TO_FIRST_TOKEN_S | PER_TOKEN_S)[name]
    median = scraped.value(f"histogram_quantile(0.5, rate({name}_bucket[1m]))")

    assert median is not None
    assert low < median < high


def test_the_engines_own_metrics_come_and_no_others(scraped: Scraped) -> None:
    """Nothing of the interpreter or of the device, and no series lacks its name."""
    names = set(scraped.prometheus.get("/api/v1/label/__name__/values")["data"])
    ours = {"target_info", "up", *(name for name in names if name.startswith("scrape_"))}
    files = [(FOLDER / f"{name}.prom").read_text(encoding="utf-8") for name in NAMES]
    said = {
        name
        for name in re.findall(r"^([\w:]+)[{ ]", "\n".join(files), re.MULTILINE)
        if not name.startswith(("python_", "nv_gpu_")) and not name.endswith("_created")
    }

    # Remote write ends the names of all counters alike.
    assert {name.removesuffix("_total") for name in names - ours} == {
        name.removesuffix("_total") for name in said
    }


@pytest.mark.kernel
def test_it_is_the_service_and_the_host_of_the_engines_processes(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """What otel-gpu says of a process, and what is scraped, have one service and one host."""
    with Engines() as engines:
        env = engines.environment(vllm="chat")
        env = {key: value for key, value in env.items() if not re.search("SGLANG|TGI|TRITON", key)}
        env |= {"OTELCOL_GATEWAY": receiver.grpc_endpoint.removeprefix("http://")}
        with Otelcol("agent", "inference", env=env) as collector:
            ours = {"OTEL_SERVICE_NAME": "chat", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
            with Agent(None, [workload("exact"), stubs.runtime, "503", "1"], env=ours) as agent:
                agent.wait()
            waiting = receiver.wait_for(partial(resource_of, receiver, "vllm:num_requests_waiting"))
            calls = receiver.wait_for(partial(resource_of, receiver, CALL_DURATION))
        port = engines.port("vllm")

    shared = {"service.name", "host.name", "os.type"}
    assert {key: waiting[key] for key in shared} == {key: calls[key] for key in shared}
    assert waiting["service.instance.id"] == f"{waiting['host.name']}:{port}"
    assert [name for name, times in engines.asked.items() if times] == ["vllm"]


def test_engines_in_pods_are_found_and_named_after_them(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """Those of this node that ask for it, with the pod that otel-gpu names its processes after."""
    with Engines() as engines, KubernetesApi(pods(engines)) as kubernetes:
        env = {
            "K8S_NODE_NAME": "gpu-node-7",
            "KUBECONFIG": str(kubernetes.write_kubeconfig(tmp_path / "kubeconfig")),
            "OTELCOL_GATEWAY": receiver.grpc_endpoint.removeprefix("http://"),
            "OTELCOL_INFERENCE_INTERVAL": "1s",
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=prod-7",
        }
        sets = {
            "processors.k8s_attributes.auth_type": "kubeConfig",
            "processors.k8s_attributes.wait_for_metadata": "true",
        }
        configs = ("agent", "kubernetes", "inference-kubernetes")
        with Otelcol(*configs, env=env, sets=sets):
            waiting = receiver.wait_for(partial(resource_of, receiver, "vllm:num_requests_waiting"))

    assert {
        "service.name": "chat",
        "host.name": "gpu-node-7",
        "k8s.cluster.name": "prod-7",
        "k8s.namespace.name": "training",
        "k8s.node.name": "gpu-node-7",
        "k8s.pod.name": "vllm-7d9c5b8f6d-x2x4z",
        "k8s.pod.uid": POD_UID,
        "k8s.deployment.name": "vllm",
    }.items() <= waiting.items()
    assert [name for name, times in engines.asked.items() if times] == ["vllm"]
    assert kubernetes.asked == {POD_PATH}
    assert kubernetes.selectors == {"spec.nodeName=gpu-node-7"}


def pods(engines: Engines) -> Sequence[Mapping[str, object]]:
    wanted = {"prometheus.io/scrape": "true", "resource.opentelemetry.io/service.name": "chat"}
    ports = {name: {"prometheus.io/port": str(engines.port(name))} for name in NAMES}
    return (
        pod(
            "vllm-7d9c5b8f6d-x2x4z",
            uid=POD_UID,
            owner="vllm-7d9c5b8f6d",
            ip=LOOPBACK,
            annotations=wanted | ports["vllm"],
        ),
        # It does not ask for it.
        pod("tgi-x2x4z", uid=POD_UID[::-1], ip=LOOPBACK, annotations=ports["tgi"]),
    )


def resource_of(receiver: OtlpReceiver, name: str) -> dict[str, object]:
    points = receiver.metrics().items()
    return next((dict(point.resource) for key, point in points if key.name == name), {})


def test_an_engine_that_is_down_is_seen_to_be(prometheus: Prometheus) -> None:
    """``up`` is 0 for it; the others are asked as before."""
    with Engines() as engines:
        env = engines.environment() | TO_PROMETHEUS
        env |= {"OTELCOL_REMOTE_WRITE": prometheus.remote_write}
        env |= {"OTELCOL_TGI": f"[{LOOPBACK}:{free_ports(1)[0]}]"}
        with Otelcol("prometheus", "inference", env=env):
            asked = "sum by (job) (up)"
            assert wait_for(lambda: len(prometheus.query(asked, time.time())) == len(NAMES))
            found = prometheus.query(asked, time.time())

    up = {series["metric"]["job"]: series["value"][1] for series in found}
    assert up == {"vllm": "1", "sglang": "1", "tgi": "0", "triton": "1"}
