"""What happens at the bounds: everything that is not sent is counted, with its reason."""

import pytest

from tests.kernel.agent import FIRST, Agent, calls, losses, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

APIS = ("cudaMalloc", "cudaMemcpy", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaFree")
UNLIMITED = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000"}


def call_spans(receiver: OtlpReceiver, pid: int) -> int:
    return sum(len(spans(receiver, api, pid)) for api in APIS)


def test_a_full_ring_costs_spans_that_are_counted_one_by_one(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Spans that arrived, were rate-limited, dropped or found no room sum to the calls made."""
    env = UNLIMITED | {"OTEL_GPU_CAPTURE_RING_BUFFER_BYTES": "65536"}
    command = [workload("exact"), stubs.runtime, "100003", "4"]
    with Agent(receiver, command, flags=("--spans", "full"), env=env) as agent:
        pid = agent.wait().lines[0]["pid"]

    lost = losses(receiver)
    # Samples give way long before the ring is full. A tick may find it full, too.
    assert lost.keys() - {"cpu_sample"} == {"ring_full", "sample"}
    assert sum(calls(receiver, api, pid) for api in APIS) == 100_003
    assert total(receiver, "otel_gpu.spans.dropped") == 0
    assert total(receiver, "otel_gpu.spans.rate_limited") == 0
    arrived = call_spans(receiver, pid)
    assert arrived == total(receiver, "otel_gpu.spans.chosen", otel_gpu__span__source="call")
    # What else finds no room comes of a switch: the stall, and the gap that it lengthens.
    others_lost = lost["ring_full"] - (100_003 - arrived)
    switches = total(receiver, "otel_gpu.probe.hits", otel_gpu__probe__type="sched_switch")
    assert 0 <= others_lost <= 2 * switches


def test_spans_over_the_rate_are_rate_limited_and_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A process gets its burst and its rate; what it would have had beyond is exported."""
    env = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "100"}
    command = [workload("exact"), stubs.runtime, "50021", "2"]
    with Agent(receiver, command, flags=("--spans", "full"), env=env, inside=FIRST) as agent:
        (line,) = agent.wait().lines

    sent = call_spans(receiver, line["pid"])
    limited = total(receiver, "otel_gpu.spans.rate_limited")
    elapsed_s = line["elapsed_ns"] / 1e9
    # Stalled calls are let through, however many.
    stalled = sum(
        "stalled" in span.attributes["otel_gpu.choice"]
        for api in APIS
        for span in spans(receiver, api, line["pid"])
    )
    # One second's worth of burst.
    assert 90 <= sent <= 100 * (2 + elapsed_s) + 50 + stalled
    assert limited + sent >= 50_021
    assert sum(calls(receiver, api, line["pid"]) for api in APIS) == 50_021
    assert losses(receiver) == {}


def test_the_baseline_sample_stands_for_all_calls(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """One call in a thousand is sent whatever its duration, with the weight it stands for."""
    env = UNLIMITED | {"OTEL_GPU_SPANS_SLOW_FLOOR_US": "1000000"}
    command = [workload("exact"), stubs.runtime, "100003", "4"]
    with Agent(receiver, command, env=env) as agent:
        pid = agent.wait().lines[0]["pid"]

    sampled = [
        span
        for api in APIS
        for span in spans(receiver, api, pid)
        if "sampled" in span.attributes["otel_gpu.choice"]
    ]
    plain = [span for span in sampled if span.attributes["otel_gpu.choice"] == ("sampled",)]
    # Each thread starts counting somewhere in its first thousand.
    assert 100 <= len(sampled) <= 104
    assert {span.attributes["otel_gpu.sample.weight"] for span in plain} == {1000}


@pytest.mark.usefixtures("counted_by_probes")
def test_more_series_than_fit_are_lost_and_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Calls that found no place in the histograms are missing there and present in the losses."""
    one = f"{workload('steady')} {stubs.runtime} 500 2"
    env = {"OTEL_GPU_CAPTURE_MAX_SERIES": "64"}
    with Agent(receiver, ["sh", "-c", f"seq 31 | xargs -P 31 -I{{}} {one}"], env=env) as agent:
        lines = [line for line in agent.wait().lines if "elapsed_ns" in line]

    made = sum(line["cudaStreamSynchronize"] for line in lines)
    counted = calls(receiver, "cudaStreamSynchronize")
    lost = losses(receiver)
    assert len(lines) == 31
    assert counted < made
    # Thirty-one processes at once may leave no room for samples of their stacks, which is counted.
    assert set(lost) - {"sample"} == {"series_full"}
    assert counted + lost["series_full"] >= made


def test_series_of_ended_processes_are_exported_before_they_make_room(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Many processes in turn may have more series than fit at a time; each is counted exactly."""
    one = f"{workload('exact')} {stubs.runtime} 503 1"
    env = {"OTEL_GPU_CAPTURE_MAX_SERIES": "64"}
    with Agent(receiver, ["sh", "-c", f"seq 23 | xargs -I{{}} {one}"], env=env) as agent:
        lines = agent.wait().lines

    counted = [sum(calls(receiver, api, line["pid"]) for api in APIS) for line in lines]
    assert losses(receiver) == {}
    assert counted == [503] * 23


def test_deltas_sum_to_the_calls(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """With delta temporality, what all exports add up to is what was called."""
    env = {
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    with Agent(receiver, [workload("steady"), stubs.runtime, "5000", "3"], env=env) as agent:
        made = agent.wait().lines[-1]

    found = [
        point
        for key, point in receiver.points()
        if key.name == "gpu.cuda.call.duration" and key.pid == made["pid"]
    ]
    assert len(found) > 2
    assert {p.metric.exponential_histogram.aggregation_temporality for p in found} == {1}
    assert sum(p.point.count for p in found) == made["cudaStreamSynchronize"]


def test_the_sdk_can_be_disabled(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """OTEL_SDK_DISABLED silences everything and changes nothing else."""
    env = {"OTEL_SDK_DISABLED": "true"}
    command = [workload("exact"), stubs.runtime, "503", "1", "5"]
    with Agent(receiver, command, env=env) as agent:
        finished = agent.wait()

    assert finished.returncode == 5
    assert receiver.requests() == []


def test_one_signal_can_be_turned_off(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Without a traces exporter only metrics are sent."""
    env = {"OTEL_TRACES_EXPORTER": "none"}
    command = [workload("exact"), stubs.runtime, "503", "1"]
    with Agent(receiver, command, flags=("--spans", "full"), env=env) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert receiver.requests("traces") == []
    assert calls(receiver, "cudaMalloc", pid) == 101
