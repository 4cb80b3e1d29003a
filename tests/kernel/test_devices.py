"""Devices of the host beside a capture: NVIDIA's bindings over a stub of NVML."""

from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, points, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_nvml, workload

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_by")]

API = "cudaStreamSynchronize"
UUID = "GPU-8f6d2bd1-6c0a-4c5a-9d0b-9a8c7f6e5d4c"
SAID = f"""\
-1 count 2
0 uuid {UUID}
0 model NVIDIA H200
0 power_mw 612345
1 uuid GPU-2
1 power_mw 70001
"""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """What the devices say, which a test may change."""
    path = tmp_path / "devices.txt"
    path.write_text(SAID)
    return path


@pytest.fixture
def environment(said: Path) -> dict[str, str]:
    """Variables of an agent that finds the stub."""
    return {
        "LD_LIBRARY_PATH": str(stub_nvml().parent),
        "OTEL_GPU_STUB_NVML": str(said),
        "OTEL_GPU_DEVICES_INTERVAL_S": "1",
    }


def test_devices_are_metrics_of_the_host(
    receiver: OtlpReceiver, stubs: StubLibraries, environment: dict[str, str]
) -> None:
    """Both, with what each of them can say; calls are counted as ever."""
    command = [workload("steady"), stubs.runtime, "1000", "2"]
    with Agent(receiver, command, env=environment) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: len(points(receiver, "hw.power")) == 2)
        made = agent.next_line()[API]
        assert agent.wait().returncode == 0

    power = {
        key.attribute("hw.id"): point.point.as_double
        for key, point in receiver.metrics().items()
        if key.name == "hw.power"
    }
    assert power == {UUID: 612.345, "GPU-2": 70.001}
    assert total(receiver, "otel_gpu.devices.late") == 0
    assert calls(receiver, API, pid) == made
    assert losses(receiver) == {}


def test_a_device_that_does_not_answer_does_not_hold_up_a_capture(
    receiver: OtlpReceiver, stubs: StubLibraries, environment: dict[str, str], said: Path
) -> None:
    """NVML blocks for 60 s: it is counted as late, and the capture ends when the program does."""
    said.write_text(SAID + "1 sleep_ms 60000\n")
    command = [workload("steady"), stubs.runtime, "1000", "8"]
    with Agent(receiver, command, env=environment) as agent:
        pid = agent.next_line()["pid"]
        made = agent.next_line()[API]
        assert agent.wait().returncode == 0

    assert total(receiver, "otel_gpu.devices.late") == 1
    assert calls(receiver, API, pid) == made
    assert losses(receiver) == {}
