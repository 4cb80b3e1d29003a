"""Real CUDA on a real GPU, driven through the runtime library."""

import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.kernel.agent import CALL_DURATION, Agent, calls, losses, points, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS

pytestmark = [pytest.mark.gpu, pytest.mark.kernel]

ROUNDS = 101
SIZE_BYTES = 1 << 20


@pytest.fixture
def said(receiver: OtlpReceiver, real_cudart: Path) -> dict[str, Any]:
    program = WORKLOADS / "cudart_success.py"
    command = [sys.executable, program, real_cudart, str(ROUNDS), str(SIZE_BYTES)]
    with Agent(receiver, command) as agent:
        (line,) = agent.wait().lines
    if line["failures"]:
        pytest.skip(f"this driver cannot serve the wheel's runtime: {set(line['failures'])}")
    assert isinstance(line, dict)
    return line


@pytest.fixture
def pid(said: dict[str, Any]) -> int:
    return int(said["pid"])


def test_calls_bytes_and_copies_are_exact(receiver: OtlpReceiver, pid: int) -> None:
    """Counts and bytes equal what the program did; what the driver does inside adds nothing."""
    runtime = {
        api: calls(receiver, api, pid, gpu__cuda__layer="runtime")
        for api in ("cudaMalloc", "cudaMemcpy", "cudaDeviceSynchronize", "cudaFree")
    }
    copied = {
        kind: sum(
            point.point.sum
            for point in points(
                receiver, "gpu.cuda.memory.copies", pid, cuda__memcpy__kind=f"Memcpy{kind}"
            )
        )
        for kind in ("HostToDevice", "DeviceToHost")
    }

    assert runtime == {
        "cudaMalloc": ROUNDS,
        "cudaMemcpy": 2 * ROUNDS,
        "cudaDeviceSynchronize": ROUNDS,
        "cudaFree": ROUNDS,
    }
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == ROUNDS * SIZE_BYTES
    assert total(receiver, "gpu.cuda.memory.free.bytes", pid) == ROUNDS * SIZE_BYTES
    assert total(receiver, "gpu.cuda.memory.in_use", pid) == 0
    assert copied == dict.fromkeys(("HostToDevice", "DeviceToHost"), ROUNDS * SIZE_BYTES)
    assert losses(receiver) == {}


def test_what_was_measured_by_events_is_what_the_program_got(
    receiver: OtlpReceiver, said: dict[str, Any]
) -> None:
    """Each answer of the device once, with the device's time and not the host's."""
    (found,) = points(receiver, "gpu.cuda.event.elapsed", said["pid"])

    assert found.point.count == ROUNDS
    assert found.point.sum == pytest.approx(sum(said["measured"]) / 1_000, rel=1e-6)
    assert min(said["measured"]) > 0


def test_a_driver_call_is_seen_each_time_or_never(receiver: OtlpReceiver, pid: int) -> None:
    """
    The runtime reaches the driver by pointers; where these are the exported functions, all
    of them are seen, inside their runtime calls.
    """
    assert calls(receiver, "cuMemAlloc", pid) in (0, ROUNDS)


def test_no_successful_call_is_an_error(receiver: OtlpReceiver, pid: int) -> None:
    """No span of this program has status ERROR."""
    mine = [span for span in receiver.spans() if span.resource.get("process.pid") == pid]
    assert mine
    assert all(span.span.status.code != Status.STATUS_CODE_ERROR for span in mine)


def test_the_device_has_the_uuid_that_the_driver_says(
    receiver: OtlpReceiver, pid: int, device_uuids: set[str]
) -> None:
    """``cuda.device.uuid`` is the physical device's, as nvidia-smi prints it."""
    found = {
        key.attribute("cuda.device.uuid")
        for key in receiver.metrics()
        if key.name == CALL_DURATION and key.pid == pid
    } - {None}
    assert found
    assert found <= device_uuids
