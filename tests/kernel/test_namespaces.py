"""Containers: other pid numbers, other paths, other mounts."""

import shutil

import pytest

from tests.kernel.agent import CALL_DURATION, Agent, losses, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

NEW_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(autouse=True)
def unshare() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")


def test_a_process_in_a_pid_namespace_has_both_of_its_numbers(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The resource carries the pid that the agent sees and the one that the process sees."""
    command = [*NEW_PIDS, workload("first_call"), "direct", "7", stubs.runtime]
    with Agent(receiver, command) as agent:
        (line,) = agent.wait().lines

    (point,) = points(receiver, CALL_DURATION, gpu__cuda__api="cudaMalloc")
    assert point.point.count == 7
    assert point.resource["process.vpid"] == line["pid"] == 1
    assert point.resource["process.pid"] != 1


def test_a_library_that_only_the_container_can_see_is_probed(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The library lies on a file system that is mounted nowhere else, and no call is missed."""
    script = (
        "mount -t tmpfs none /mnt && cp "
        f"{stubs.runtime} /mnt && {workload('first_call')} direct 7 /mnt/{stubs.runtime.name}"
    )
    with Agent(receiver, ["unshare", "--mount", "sh", "-c", script]) as agent:
        finished = agent.wait()

    (point,) = points(receiver, CALL_DURATION, gpu__cuda__api="cudaMalloc")
    assert finished.returncode == 0
    assert point.point.count == 7
    assert losses(receiver) == {}


def test_an_agent_in_a_pid_namespace_speaks_its_own_numbers(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """In a container the pids on telemetry are the container's, and counts are as exact."""
    command = [workload("forks"), stubs.runtime, "7", "1"]
    with Agent(receiver, command, inside=NEW_PIDS) as agent:
        line = agent.wait().lines[-1]

    forks = spans(receiver, "process.fork", line["pid"])
    assert line["pid"] < 1000
    assert [span.attributes["otel_gpu.fork.child.pid"] for span in forks] == line["children"]
    by_pid = {
        p.resource["process.pid"]: p.point.count
        for p in points(receiver, CALL_DURATION, gpu__cuda__api="cudaDeviceSynchronize")
    }
    assert by_pid == dict.fromkeys((line["pid"], *line["children"]), 1)
