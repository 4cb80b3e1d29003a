"""Every call is counted, whatever the speed, the protocol or the device."""

from collections.abc import Iterator

import pytest

from tests.kernel.agent import (
    Agent,
    Shared,
    calls,
    losses,
    points,
    run_together,
    spans,
    total,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_each_way")]


@pytest.fixture(scope="module")
def shared(counted_each_way: str, stubs: StubLibraries) -> Iterator[Shared]:
    """Programs that one agent watched, with a span for each call."""
    commands = {
        "many": ({}, [workload("exact"), stubs.runtime, "5003", "2"]),
        "few": ({}, [workload("exact"), stubs.runtime, "13", "1"]),
        "devices": ({}, [workload("devices"), stubs.runtime]),
    }
    with run_together(commands, "--spans", "full") as shared:
        yield shared


def test_a_million_calls_of_five_kinds_from_four_threads_are_counted_exactly(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The summed histogram counts equal the calls made, per API, and nothing is lost unsaid."""
    command = [workload("exact"), stubs.runtime, "1000003", "4", "7"]
    with Agent(receiver, command) as agent:
        finished = agent.wait()
    pid = finished.lines[0]["pid"]

    counted = {api: calls(receiver, api, pid) for api in finished.lines[0]["calls"]}

    assert counted == {
        "cudaMalloc": 200_001,
        "cudaMemcpy": 200_001,
        "cudaLaunchKernel": 200_001,
        "cudaStreamSynchronize": 200_000,
        "cudaFree": 200_000,
    }
    assert counted == finished.lines[0]["calls"]
    # Only spans and their stacks may be lost, for want of room in the ring, never counts.
    assert set(losses(receiver)) <= {"ring_full", "sample"}
    assert finished.returncode == 7


def test_every_chosen_span_arrives_or_is_counted_as_dropped(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Spans received and spans dropped sum to the spans that the kernel side handed over."""
    command = [workload("exact"), stubs.runtime, "100003", "4"]
    with Agent(receiver, command) as agent:
        agent.wait()

    # A parent or a sampled call is one span; a stall can be two, so only calls are compared.
    calls_only = (span for span in receiver.spans() if span.span.name != "gpu.launch_gap")
    received = sum(span.scope == "otel_gpu.cuda" for span in calls_only)

    chosen = total(receiver, "otel_gpu.spans.chosen", otel_gpu__span__source="call")
    dropped = total(receiver, "otel_gpu.spans.dropped")
    assert chosen >= 100  # one in a thousand is sampled
    assert received + dropped == chosen


def test_derived_counters_say_the_same_as_the_histograms(shared: Shared) -> None:
    """Launches, copies and allocated bytes follow from the same exact counts."""
    receiver, pid = shared.receiver, shared.pid("many")

    (copies,) = points(receiver, "gpu.cuda.memory.copies", pid)
    assert total(receiver, "gpu.cuda.kernel.launch.calls", pid) == 1001
    assert total(receiver, "gpu.cuda.stream.synchronize.calls", pid) == 1000
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 1001 * 4096
    assert (copies.point.count, copies.point.sum) == (1001, 1001 * 1000)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_both_protocols_carry_counts_and_spans(
    receiver: OtlpReceiver, stubs: StubLibraries, protocol: str
) -> None:
    """Both gRPC and HTTP are chosen by the standard variable and deliver the same telemetry."""
    command = [workload("exact"), stubs.runtime, "503", "1"]
    flags = ("--spans", "full")
    with Agent(receiver, command, flags=flags, protocol=protocol) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 101
    assert len(spans(receiver, "cudaMalloc", pid)) == 101
    assert {request.protocol for request in receiver.requests()} == {protocol}


def test_memory_is_accounted_each_way_device(shared: Shared) -> None:
    """Bytes allocated, copied and given back carry the device that was current, by its UUID."""
    receiver, pid = shared.receiver, shared.pid("devices")

    def bytes_by_device(name: str) -> dict[str, int]:
        return {
            str(key.attribute("cuda.device.uuid")): point.point.as_int
            for key, point in receiver.metrics().items()
            if key.name == name and key.pid == pid
        }

    first, second = (f"a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae0{index}" for index in (0, 1))
    assert bytes_by_device("gpu.cuda.memory.allocations") == {first: 3000, second: 4000}
    assert bytes_by_device("gpu.cuda.memory.in_use") == {first: 0, second: 4000}
    assert bytes_by_device("gpu.cuda.memory.free.bytes").get(first) == 3000
    models = {
        key.attribute("cuda.device.model")
        for key in receiver.metrics()
        if key.name == "gpu.cuda.memory.allocations" and key.pid == pid
    }
    assert models == {"Stub GPU 0", "Stub GPU 1"}


def test_launches_carry_their_shape(shared: Shared) -> None:
    """A launch's span has the grid and block that the program passed by value."""
    launches = spans(shared.receiver, "cudaLaunchKernel", shared.pid("few"))
    assert len(launches) == 3
    for launch in launches:
        assert launch.attributes["gpu.cuda.kernel.grid"] == (3, 2, 1)
        assert launch.attributes["gpu.cuda.kernel.block"] == (64, 1, 1)


def test_explicitly_no_spans_means_metrics_only(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Without spans the counts are as exact as with them."""
    command = [workload("exact"), stubs.runtime, "5003", "2"]
    with Agent(receiver, command, flags=("--spans", "none")) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaLaunchKernel", pid) == 1001
    assert [span for span in receiver.spans() if span.scope == "otel_gpu.cuda"] == []
