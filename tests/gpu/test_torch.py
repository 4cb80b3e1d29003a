"""PyTorch: our counts against what the program did and what its allocator says."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel.agent import CALL_DURATION, Agent, calls, losses, points, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS

pytestmark = [pytest.mark.gpu, pytest.mark.kernel]

PROGRAM = WORKLOADS / "torch_steps.py"


class Run(NamedTuple):
    """What one run of the program did, as we and as PyTorch saw it."""

    launches: int
    copies: int
    copied_bytes: float
    synchronizations: int
    allocations: int
    device_allocations: int
    service: str
    uuids: set[str]


def run_steps(python: str, steps: int) -> Run:
    with OtlpReceiver() as receiver:
        with Agent(receiver, [python, PROGRAM, str(steps)]) as agent:
            (line,) = agent.wait(300).lines
        pid = line["pid"]
        assert losses(receiver) == {}
        assert line["value"] == 0.5 * (steps + 5)
        copies = points(
            receiver, "gpu.cuda.memory.copies", pid, cuda__memcpy__kind="MemcpyDeviceToHost"
        )
        durations = points(receiver, CALL_DURATION, pid)
        return Run(
            launches=total(receiver, "gpu.cuda.kernel.launch.calls", pid),
            copies=sum(point.point.count for point in copies),
            copied_bytes=sum(point.point.sum for point in copies),
            synchronizations=total(receiver, "gpu.cuda.device.synchronize.calls", pid),
            allocations=calls(receiver, "cudaMalloc", pid),
            device_allocations=line["device_allocations"],
            service={point.resource["service.name"] for point in durations}.pop(),
            uuids={
                str(key.attribute("cuda.device.uuid"))
                for key in receiver.metrics()
                if key.name == CALL_DURATION and key.attribute("cuda.device.uuid")
            },
        )


@pytest.fixture(scope="module")
def runs(torch_python: str) -> tuple[Run, Run]:
    # What start-up does is the same in both, so the difference is the steps'.
    return run_steps(torch_python, 100), run_steps(torch_python, 201)


def test_launches_copies_and_synchronizations_follow_the_steps(runs: tuple[Run, Run]) -> None:
    """101 more steps are 303 more launches, 101 more copies of 4 KiB and 101 more waits."""
    fewer, more = runs

    assert more.launches - fewer.launches == 303
    assert more.copies - fewer.copies == 101
    assert more.copied_bytes - fewer.copied_bytes == 101 * 4096
    assert more.synchronizations - fewer.synchronizations == 101


def test_device_allocations_are_the_allocators(runs: tuple[Run, Run]) -> None:
    """
    PyTorch's own count of cudaMalloc calls is ours, or ours is higher by its libraries' calls.
    """
    for run in runs:
        assert run.allocations >= run.device_allocations > 0


def test_the_service_is_the_training_script(runs: tuple[Run, Run]) -> None:
    """The resource is named by the script that PyTorch runs in."""
    assert {run.service for run in runs} == {Path(PROGRAM).name}


def test_the_device_is_the_driver_tools(runs: tuple[Run, Run], device_uuids: set[str]) -> None:
    """Devices on metrics are physical devices of this host."""
    for run in runs:
        assert run.uuids
        assert run.uuids <= device_uuids
