"""What we send survives an independent collector, over gRPC and over HTTP."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.collector.collector import Collector
from tests.kernel.agent import Agent, calls, environment_for, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import stub_libraries, workload

pytestmark = pytest.mark.collector

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "replay"
PROTOCOLS = ("grpc", "http/protobuf")


def recordings() -> list[Path]:
    return sorted(RECORDINGS.rglob("*.otelgpu"))


def endpoint_of(collector: Collector, protocol: str) -> dict[str, str]:
    endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


def replay(recording: Path, output: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    subprocess.run(
        [sys.executable, "-m", "otel_gpu", "replay", str(recording), "--otlp-file", str(output)],
        cwd=ROOT,
        env=environment_for(None) | env,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def spans_in(requests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Spans of OTLP/JSON requests by their id, with resource and scope."""
    return {
        span["spanId"]: {
            "span": span,
            "scope": scope_spans["scope"]["name"],
            "resource": resource_spans["resource"]["attributes"],
        }
        for request in requests
        for resource_spans in request.get("resourceSpans", ())
        for scope_spans in resource_spans["scopeSpans"]
        for span in scope_spans["spans"]
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("recording", recordings(), ids=lambda path: path.stem)
def test_spans_of_a_replay_come_out_of_the_collector_unchanged(
    collector: Collector, receiver: OtlpReceiver, tmp_path: Path, recording: Path, protocol: str
) -> None:
    """Names, ids, times, attributes, status and links are the same on the other side."""
    sent = replay(recording, tmp_path / "sent.jsonl", endpoint_of(collector, protocol))
    expected = spans_in(sent)

    received = receiver.wait_for(
        lambda: (found := receiver.spans()) and len(found) >= len(expected) and found
    )

    assert {item.span.span_id.hex() for item in received} == set(expected)
    for item in received:
        wanted = expected[item.span.span_id.hex()]
        assert item.scope == wanted["scope"]
        assert item.span == span_of(wanted["span"])


def span_of(document: dict[str, Any]) -> Span:
    # OTLP/JSON writes ids in hexadecimal, protobuf's own JSON in base64.
    copy = dict(document)
    ids = {
        name: bytes.fromhex(copy.pop(name, "")) for name in ("traceId", "spanId", "parentSpanId")
    }
    links = copy.pop("links", [])
    span = json_format.ParseDict(copy, Span())
    span.trace_id, span.span_id = ids["traceId"], ids["spanId"]
    span.parent_span_id = ids["parentSpanId"]
    for link in links:
        link_ids = (bytes.fromhex(link.pop("traceId")), bytes.fromhex(link.pop("spanId")))
        added = span.links.add()
        json_format.ParseDict(link, added)
        added.trace_id, added.span_id = link_ids
    return span


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("recording", recordings(), ids=lambda path: path.stem)
def test_histograms_of_a_replay_come_out_of_the_collector_unchanged(
    collector: Collector, receiver: OtlpReceiver, tmp_path: Path, recording: Path, protocol: str
) -> None:
    """Each call duration point has the same count, sum, scale and buckets on the other side."""
    sent = replay(recording, tmp_path / "sent.jsonl", endpoint_of(collector, protocol))
    expected = latest_points(sent)

    def received() -> dict[Any, Any]:
        return {
            (key.pid, frozenset(key.attributes)): (
                point.point.count,
                point.point.sum,
                point.point.scale,
                point.point.positive.offset,
                tuple(point.point.positive.bucket_counts),
            )
            for key, point in receiver.metrics().items()
            if key.name == "gpu.cuda.call.duration"
            and point.metric.HasField("exponential_histogram")
        }

    receiver.wait_for(lambda: len(received()) >= len(expected))
    assert received() == expected


def latest_points(requests: list[dict[str, Any]]) -> dict[Any, Any]:
    points: dict[Any, Any] = {}
    for request in requests:
        for resource_metrics in request.get("resourceMetrics", ()):
            resource = attributes_in(resource_metrics["resource"]["attributes"])
            for scope_metrics in resource_metrics["scopeMetrics"]:
                for metric in scope_metrics["metrics"]:
                    if metric["name"] != "gpu.cuda.call.duration":
                        continue
                    for point in metric.get("exponentialHistogram", {}).get("dataPoints", ()):
                        attributes = frozenset(attributes_in(point["attributes"]).items())
                        positive = point["positive"]
                        points[resource.get("process.pid"), attributes] = (
                            int(point["count"]),
                            float(point["sum"]),
                            int(point.get("scale", 0)),
                            int(positive.get("offset", 0)),
                            tuple(map(int, positive["bucketCounts"])),
                        )
    return points


def attributes_in(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        ((kind, value),) = pair["value"].items()
        if kind == "arrayValue":
            value = tuple(next(iter(item.values())) for item in value["values"])
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


@pytest.mark.kernel
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_live_capture_reaches_the_backend_through_the_collector(
    collector: Collector, receiver: OtlpReceiver, protocol: str
) -> None:
    """Exact counts and all spans of a real capture arrive behind a real collector."""
    command = [workload("exact"), stub_libraries().runtime, "1009", "2"]
    env = endpoint_of(collector, protocol) | {
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
    }
    with Agent(None, command, flags=("--spans", "full"), env=env) as agent:
        made = agent.wait().lines[0]

    receiver.wait_for(
        lambda: (
            calls(receiver, "cudaMalloc", made["pid"]) == made["calls"]["cudaMalloc"] == 202
            and len(spans(receiver, "cudaFree", made["pid"])) == made["calls"]["cudaFree"]
        )
    )
    for api, count in made["calls"].items():
        assert calls(receiver, api, made["pid"]) == count
        assert len(spans(receiver, api, made["pid"])) == count
