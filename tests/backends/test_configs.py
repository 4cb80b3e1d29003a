"""Every file in collector-config is what the pinned Collector takes, and carries our data."""

from pathlib import Path

import pytest

from otel_gpu.export.exports import open_exports
from otel_gpu.options import Config, ExportConfig
from tests.activities import SECOND, call, call_stack, capture, image, sample
from tests.backends.conftest import Replay
from tests.backends.jaeger import Jaeger
from tests.backends.otelcol import CONFIGS, Otelcol, validate
from tests.backends.processes import wait_for
from tests.backends.prometheus import Prometheus
from tests.backends.recordings import moved_to_now
from tests.backends.traces import traces_of
from tests.backends.truth import RECORDINGS, SERVICE, truth_of
from tests.profiles import read
from tests.receiver import OtlpReceiver

pytestmark = pytest.mark.backends

# As they are run: one file, or several that are merged.
SHIPPED = (
    ("agent",),
    ("agent", "kubernetes"),
    ("gateway",),
    ("gateway-clickhouse",),
    ("jaeger",),
    ("tempo",),
    ("prometheus",),
    ("jaeger", "prometheus"),
    ("tempo", "prometheus"),
    ("debug",),
    ("debug", "profiles"),
    ("agent", "profiles"),
    ("agent", "inference"),
    ("agent", "kubernetes", "inference-kubernetes"),
    ("prometheus", "inference"),
    ("gateway", "inference"),
)


def test_every_shipped_file_is_tried() -> None:
    """No file in the folder is left out here."""
    assert {name for names in SHIPPED for name in names} == {
        path.stem for path in CONFIGS.glob("*.yaml")
    }


@pytest.mark.parametrize("names", SHIPPED, ids="+".join)
def test_the_collector_finds_nothing_wrong(names: tuple[str, ...]) -> None:
    """`validate` passes and warns of nothing, with nothing set but what a file says it needs."""
    env = {"K8S_NODE_NAME": "node-7"} if "kubernetes" in names else {}
    if "inference" in names and "agent" not in names:
        env["OTELCOL_INFERENCE_EXPORTER"] = "prometheus_remote_write"
    assert validate(names, env) == ""


def test_debug_prints_what_we_send(replay: Replay) -> None:
    """The incident of a scenario, its chain and a histogram are in the Collector's output."""
    with Otelcol("debug") as otelcol:
        replay(RECORDINGS / "lock.otelgpu", otelcol.endpoint)
        wanted = (
            "Name           : gpu.incident",
            "-> otel_gpu.severity: Str(high)",
            "-> Name: gpu.cuda.call.duration",
        )
        assert wait_for(lambda: all(text in otelcol.log for text in wanted))


def test_tempo_gets_every_span_and_the_tenant(replay: Replay, receiver: OtlpReceiver) -> None:
    """All spans leave over OTLP/HTTP unchanged, with the header that the environment holds."""
    recording = truth_of("preemption").path
    expected = {
        sent.span.span_id: sent.span for trace in traces_of(recording).values() for sent in trace
    }
    env = {
        "OTELCOL_TEMPO": receiver.http_endpoint,
        "OTELCOL_TEMPO_HEADERS": "{X-Scope-OrgID: gpu}",
    }
    with Otelcol("tempo", env=env) as otelcol:
        replay(recording, otelcol.endpoint)
        receiver.wait_for(lambda: len(receiver.spans()) >= len(expected))

    assert {received.span.span_id: received.span for received in receiver.spans()} == expected
    assert len(expected) > 250
    for request in receiver.requests():
        assert request.signal == "traces"
        assert request.protocol.startswith("http")
        assert {name.lower(): value for name, value in request.headers.items()}[
            "x-scope-orgid"
        ] == "gpu"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_profiles_pass_the_collector(receiver: OtlpReceiver, protocol: str) -> None:
    """Samples arrive behind it with stack, line and span, over both protocols; nothing is dropped."""
    trainer = image()
    launch = call(trainer, "cudaLaunchKernel", 6 * SECOND, SECOND)
    inside = {"root_start_ktime_ns": 6 * SECOND}
    activities = (
        capture(),
        *(sample(trainer, 6 * SECOND + n, stack=call_stack(), **inside) for n in range(5)),
        launch,
        *(sample(trainer, 8 * SECOND + n, stack=call_stack(), weight_ns=7) for n in range(3)),
    )
    env = {
        "OTELCOL_PROFILES": receiver.http_endpoint,
        "OTELCOL_PROFILES_HEADERS": "{X-Scope-OrgID: gpu}",
    }
    with Otelcol("debug", "profiles", env=env) as otelcol:
        endpoint = otelcol.endpoint if protocol == "grpc" else otelcol.http_endpoint
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        config = Config(export=ExportConfig(profiles=True))
        with open_exports(config, environ, live=True) as exports:
            for activity in activities:
                exports.observe(activity)
        (request,) = receiver.wait_for(lambda: receiver.requests("profiles"))
        # It decodes what it gets for the other exporters, and prints it.
        assert wait_for(lambda: "Name           : cudaLaunchKernel" in otelcol.log)

    assert exports.dropped() == {}
    assert {name.lower(): text for name, text in request.headers.items()}["x-scope-orgid"] == "gpu"
    _, sent = read(request.body)
    assert {one.link: sum(weight for _, weight in one.values) for one in sent} == {
        (launch.trace_id, launch.span_id): 50_000_000,
        (b"", b""): 21,
    }
    assert {tuple(one.frames) for one in sent} == {call_stack().frames}


@pytest.mark.parametrize("traces", ["jaeger", "tempo"])
def test_two_files_together_do_what_each_does(
    jaeger: Jaeger, prometheus: Prometheus, replay: Replay, tmp_path: Path, traces: str
) -> None:
    """With prometheus.yaml beside it, traces go to one place and metrics to the other."""
    recording = tmp_path / "now.otelgpu"
    end_s = moved_to_now(truth_of("lock").path, recording)
    env = {
        "OTELCOL_JAEGER": jaeger.endpoint,
        # Jaeger stands in: both take OTLP over HTTP.
        "OTELCOL_TEMPO": jaeger.http_endpoint,
        "OTELCOL_REMOTE_WRITE": prometheus.remote_write,
    }
    with Otelcol(traces, "prometheus", env=env) as otelcol:
        replay(recording, otelcol.endpoint)
        launches = f'gpu_cuda_kernel_launch_calls_total{{job="{SERVICE}"}}'
        assert wait_for(lambda: prometheus.value(launches, end_s + 1)) == 60
        assert wait_for(
            lambda: SERVICE in jaeger.services() and "gpu.incident" in jaeger.operations(SERVICE)
        )
