"""NCCL's own service beside a capture: a server that speaks as it does."""

import pytest

from tests.kernel.agent import Agent, calls, losses, points, total
from tests.ras_servers import absent, communicator, rank, serving, speaks, status
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"


def test_ranks_that_do_not_answer_are_metrics_of_the_host(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """One of three is unresponsive."""
    made = communicator([rank(0), rank(1, calls=98)], [absent(2, unresponsive=True)])
    command = [workload("steady"), stubs.runtime, "1000", "2"]
    name = "gpu.nccl.ras.ranks"
    with serving(speaks(status(made))) as service:
        environment = {"OTEL_GPU_NCCL_RAS": service.address, "OTEL_GPU_NCCL_RAS_INTERVAL_S": "1"}
        with Agent(receiver, command, env=environment) as agent:
            agent.next_line()
            receiver.wait_for(lambda: len(points(receiver, name)) == 4)
            agent.next_line()
            assert agent.wait().returncode == 0

    found = {
        key.attribute("gpu.nccl.ras.state"): point.point.as_int
        for key, point in receiver.metrics().items()
        if key.name == name
    }
    assert found == {"answering": 2, "unresponsive": 1, "dead": 0, "missing": 0}
    assert points(receiver, "otel_gpu.ras.failed") == []


def test_a_service_that_lies_costs_nothing_but_its_own_figures(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """It greets, and then says what it likes: the failures are counted, and so is every call."""

    def lies(connection, commands):  # type: ignore[no-untyped-def]
        next(commands, None)
        connection.sendall(b"SERVER PROTOCOL 2\nOK\n" + b'{"communicators": [[[' * 1_000)

    command = [workload("steady"), stubs.runtime, "1000", "2"]
    with serving(lies) as service:
        environment = {"OTEL_GPU_NCCL_RAS": service.address, "OTEL_GPU_NCCL_RAS_INTERVAL_S": "1"}
        with Agent(receiver, command, env=environment) as agent:
            pid = agent.next_line()["pid"]
            receiver.wait_for(lambda: total(receiver, "otel_gpu.ras.failed") >= 1)
            made = agent.next_line()[API]
            assert agent.wait().returncode == 0

    assert calls(receiver, API, pid) == made
    assert losses(receiver) == {}
    assert points(receiver, "gpu.nccl.ras.ranks") == []
