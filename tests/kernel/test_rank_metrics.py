"""Four ranks under an agent: what is exported says who is late, who disagrees, and who waits."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.kernel.agent import Agent, losses
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries, stub_nccl, workload

pytestmark = pytest.mark.kernel

EVERYBODY = {0, 1, 2, 3}
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.5"}


@contextmanager
def training(receiver: OtlpReceiver, stubs: StubLibraries, *how: str) -> Iterator[Agent]:
    """Four ranks that want to do a hundred collectives each; those that hang are ended with the agent."""
    command = [workload("ranks"), stubs.runtime, stub_nccl(), "4", "100", "pace_us=1000", *how]
    with Agent(receiver, command, env=OFTEN) as agent:
        yield agent


def latest(receiver: OtlpReceiver, name: str, **attributes: str) -> dict[int, float]:
    """The latest value of a metric by rank."""
    return {
        key.attribute("gpu.nccl.rank"): point.point.as_int or point.point.as_double
        for key, point in receiver.metrics().items()
        if key.name == name
        and all(key.attribute(f"gpu.nccl.{name}") == value for name, value in attributes.items())
    }


def called(receiver: OtlpReceiver) -> dict[int, float]:
    return latest(receiver, "gpu.nccl.sequence", state="called")


def waiting(receiver: OtlpReceiver) -> dict[int, dict[str, object]]:
    """What ranks said in log records that they wait for, by rank; each says it once."""
    found: dict[int, dict[str, object]] = {}
    for request in receiver.requests("logs"):
        message: Message = ExportLogsServiceRequest.FromString(request.body)
        for resource in message.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    assert (scope.scope.name, record.event_name) == (
                        "otel_gpu.nccl",
                        "gpu.nccl.pending",
                    )
                    said = attributes_of(record.attributes)
                    assert said["gpu.nccl.rank"] not in found
                    found[said["gpu.nccl.rank"]] = said
    return found


def test_metrics_name_the_rank_that_stops_within_two_seconds(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The others have called one more; and they say so themselves, each once."""
    with training(receiver, stubs, "stop_rank=2", "stop_at=50", "sync_every=1"):
        receiver.wait_for(lambda: called(receiver) == {0: 50, 1: 50, 2: 49, 3: 50})
        ages = latest(receiver, "gpu.nccl.pending.age")
        assert ages.pop(2) == 0
        assert all(0 < age < 2 for age in ages.values()), ages

        logs = receiver.wait_for(lambda: len(found := waiting(receiver)) == 3 and found)
        assert EVERYBODY - logs.keys() == {2}
        assert {one["gpu.nccl.number"] for one in logs.values()} == {50}
        assert {one["gpu.nccl.rank_count"] for one in logs.values()} == {4}
        assert losses(receiver) == {}


def test_both_signatures_are_said_where_ranks_disagree(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """All have called the same number, and one asks for an element more."""
    with training(receiver, stubs, "differ_rank=1", "differ_at=40", "sync_every=1"):
        logs = receiver.wait_for(lambda: (found := waiting(receiver)).keys() == EVERYBODY and found)
        assert {rank: one["gpu.nccl.elements"] for rank, one in logs.items()} == {
            0: 1024,
            1: 1025,
            2: 1024,
            3: 1024,
        }
        assert {one["gpu.nccl.number"] for one in logs.values()} == {40}
        signatures = latest(receiver, "gpu.nccl.signature")
        assert signatures[0] == signatures[2] == signatures[3] != signatures[1]


def test_nobody_is_late_where_a_collective_never_ends(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The device, or the network: all have called the same, alike, and none knows it to be done."""
    with training(receiver, stubs, "never_from=33", "sync_every=1"):
        logs = receiver.wait_for(lambda: (found := waiting(receiver)).keys() == EVERYBODY and found)
        assert {one["gpu.nccl.number"] for one in logs.values()} == {33}
        assert called(receiver) == dict.fromkeys(EVERYBODY, 33)
        done = latest(receiver, "gpu.nccl.sequence", state="completed")
        assert done == dict.fromkeys(EVERYBODY, 32)
        assert len(set(latest(receiver, "gpu.nccl.signature").values())) == 1


def test_ranks_that_are_well_are_counted_and_say_nothing(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Collectives and bytes of each rank are exact after its end."""
    with training(receiver, stubs) as agent:
        assert agent.wait().returncode == 0

    assert latest(receiver, "gpu.nccl.collectives", operation="all_reduce") == dict.fromkeys(
        EVERYBODY, 100
    )
    assert latest(receiver, "gpu.nccl.bytes", operation="all_reduce") == dict.fromkeys(
        EVERYBODY, 4 * 1024 * 100
    )
    completions = latest(receiver, "gpu.nccl.completions")
    assert completions.keys() == EVERYBODY
    assert latest(receiver, "gpu.nccl.errors") == {}
    assert waiting(receiver) == {}
    assert losses(receiver) == {}
