"""NVIDIA's own driver library: its calls are counted by probes, and by the preload library."""

import sys
from collections import Counter

import pytest

from tests.hosts import LIBCUDA
from tests.kernel.agent import CALL_DURATION, Agent, losses, points, total
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import WORKLOADS

pytestmark = pytest.mark.kernel

ROUNDS = 23
# cuda.h
ERRORS = {
    0: None,
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    400: "CUDA_ERROR_INVALID_HANDLE",
}


@pytest.mark.skipif(not LIBCUDA.exists(), reason="libcuda1 of Debian's non-free is not here")
def test_each_call_of_the_driver_counts_once_with_its_result(
    receiver: OtlpReceiver, counted_by: str
) -> None:
    """Also of functions that it gave out itself. Where there is no GPU all of them fail."""
    command = [sys.executable, WORKLOADS / "real_libcuda.py", LIBCUDA, str(ROUNDS)]
    with Agent(receiver, command) as agent:
        (line,) = agent.wait().lines

    counted: Counter[tuple[str, str | None]] = Counter()
    for point in points(receiver, CALL_DURATION, line["pid"]):
        said = attributes_of(point.point.attributes)
        counted[said["gpu.cuda.api"], said.get("error.type")] += point.point.count
    made = {
        (name, ERRORS[int(result)]): calls
        for name, _, result, calls in (
            (*key.partition(" "), calls) for key, calls in line["calls"].items()
        )
    }
    assert counted == made
    assert len(made) == 7
    assert losses(receiver) == {}
    # An allocation is left to its probe.
    by_preload = 5 * ROUNDS if counted_by == "preload" else 0
    assert total(receiver, "otel_gpu.preload.calls") == by_preload
