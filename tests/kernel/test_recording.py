"""A recording of a live run replays to the same telemetry, every time."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, otel_gpu
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel


def replay(recording: Path, output: Path) -> bytes:
    done = otel_gpu("replay", recording, "--otlp-file", output)
    assert done.returncode == 0, done.stderr
    return output.read_bytes()


def test_a_replay_gives_the_spans_and_counts_of_the_live_run(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Same span ids, same counts; and two replays are the same to the byte."""
    recording = tmp_path / "run.otelgpu"
    flags = ("--record", str(recording), "--spans", "full")
    with Agent(receiver, [workload("exact"), stubs.runtime, "503", "2"], flags=flags) as agent:
        pid = agent.wait().lines[0]["pid"]

    first = replay(recording, tmp_path / "first.jsonl")
    second = replay(recording, tmp_path / "second.jsonl")

    assert first == second
    replayed_spans: list[str] = []
    counts: Counter[str] = Counter()
    for line in first.splitlines():
        request = json.loads(line)
        for resource_spans in request.get("resourceSpans", ()):
            for scope_spans in resource_spans["scopeSpans"]:
                replayed_spans += [span["spanId"] for span in scope_spans["spans"]]
        for resource_metrics in request.get("resourceMetrics", ()):
            latest = latest_counts(resource_metrics, pid)
            counts |= latest
    assert sorted(replayed_spans) == sorted(s.span.span_id.hex() for s in receiver.spans())
    assert counts["cudaMalloc"] == calls(receiver, "cudaMalloc", pid) == 101
    assert counts["cudaFree"] == calls(receiver, "cudaFree", pid) == 100


def latest_counts(resource_metrics: dict, pid: int) -> Counter[str]:
    """Calls by API in one process's cumulative points."""
    attributes = {a["key"]: a["value"] for a in resource_metrics["resource"]["attributes"]}
    if int(attributes.get("process.pid", {}).get("intValue", 0)) != pid:
        return Counter()
    counts: Counter[str] = Counter()
    for scope_metrics in resource_metrics["scopeMetrics"]:
        for metric in scope_metrics["metrics"]:
            if metric["name"] == "gpu.cuda.call.duration":
                for point in metric["exponentialHistogram"]["dataPoints"]:
                    api = next(a for a in point["attributes"] if a["key"] == "gpu.cuda.api")
                    counts[api["value"]["stringValue"]] += int(point["count"])
    return counts
