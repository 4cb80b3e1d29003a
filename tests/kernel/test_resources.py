"""One resource per observed process; the agent's own identity is on none of them."""

import pytest

from tests.kernel.agent import CALL_DURATION, Agent, calls, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel


def test_two_processes_have_two_resources(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Each process carries its own service name, pid and command, on spans and metrics alike."""
    first = f"OTEL_SERVICE_NAME=alpha {workload('exact')} {stubs.runtime} 503 1"
    second = f"OTEL_SERVICE_NAME=beta {workload('first_call')} direct 7 {stubs.runtime}"
    command = ["sh", "-c", f"{first} & {second} & wait"]
    with Agent(receiver, command, flags=("--spans", "full")) as agent:
        lines = agent.wait().lines
    alpha = next(line["pid"] for line in lines if "calls" in line)
    beta = next(line["pid"] for line in lines if "cudaMalloc" in line)

    for pid, service, executable, count in (
        (alpha, "alpha", "exact", 101),
        (beta, "beta", "first_call", 7),
    ):
        assert calls(receiver, "cudaMalloc", pid) == count
        for source in (
            *points(receiver, CALL_DURATION, pid),
            *spans(receiver, "cudaMalloc", pid),
        ):
            assert source.resource["service.name"] == service
            assert source.resource["process.executable.name"] == executable
    assert len({p.resource["service.instance.id"] for p in points(receiver, CALL_DURATION)}) == 2


def test_the_agents_identity_is_on_no_observed_process(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Resource attributes from the environment are shared; names and ids are not."""
    env = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
    with Agent(receiver, [workload("exact"), stubs.runtime, "503", "1"], env=env) as agent:
        pid = agent.wait().lines[0]["pid"]
        agent_pid = agent.process.pid

    observed = {frozenset(p.resource.items()) for p in points(receiver, CALL_DURATION, pid)}
    (resource,) = (dict(items) for items in observed)
    own = {p.resource["service.name"] for p in points(receiver, "otel_gpu.probe.hits")}
    assert resource["service.name"] == "exact"
    assert resource["process.pid"] == pid != agent_pid
    assert resource["deployment.environment.name"] == "test"
    assert own == {"otel-gpu"}
    for key, point in receiver.metrics().items():
        if point.scope != "otel_gpu.agent":
            assert key.service != "otel-gpu"
    assert all(span.resource["service.name"] != "otel-gpu" for span in receiver.spans())


def test_an_unnamed_program_is_called_by_its_executable(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Without any OpenTelemetry setting the executable's name is the service's."""
    with Agent(receiver, [workload("exact"), stubs.runtime, "503", "1"]) as agent:
        pid = agent.wait().lines[0]["pid"]

    (name,) = {p.resource["service.name"] for p in points(receiver, CALL_DURATION, pid)}
    assert name == "exact"
