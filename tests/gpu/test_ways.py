"""Ways to a device beside plain calls of the runtime, with probes and with the preload library."""

from collections import Counter

import pytest

from tests.kernel.agent import Agent, calls, losses, spans, through, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS

pytestmark = [pytest.mark.gpu, pytest.mark.kernel]

TIMES = 101


def run(
    receiver: OtlpReceiver, python: str, program: str, *arguments: str, flags: tuple[str, ...] = ()
) -> int:
    """Run a program under an agent that loses nothing, and return its pid."""
    with Agent(receiver, [python, WORKLOADS / program, *arguments], flags=flags) as agent:
        (line,) = agent.wait(300).lines
    assert losses(receiver).keys() <= {"sample"}
    return int(line["pid"])


@pytest.mark.parametrize("way", ["probes", "preload"])
def test_replays_of_a_graph_are_counted(
    receiver: OtlpReceiver, torch_python: str, way: str
) -> None:
    """Once each, by the runtime."""
    with through(way):
        pid = run(receiver, torch_python, "torch_ways.py", "graph", str(TIMES))

    assert calls(receiver, "cudaGraphLaunch", pid) == TIMES
    assert total(receiver, "gpu.cuda.graph.launch.calls", pid) == TIMES


@pytest.mark.parametrize("way", ["probes", "preload"])
def test_kernels_of_triton_are_counted_and_have_their_names(
    receiver: OtlpReceiver, torch_python: str, way: str
) -> None:
    """They are launched by functions of the driver that Triton finds by itself."""
    with through(way):
        pid = run(
            receiver, torch_python, "torch_ways.py", "triton", str(TIMES), flags=("--spans", "full")
        )

    names = Counter(
        span.attributes.get("gpu.cuda.kernel.name")
        for api in ("cuLaunchKernel", "cuLaunchKernelEx")
        for span in spans(receiver, api, pid)
    )
    assert names["add_one"] == TIMES


@pytest.mark.parametrize("way", ["probes", "preload"])
def test_collectives_are_counted(receiver: OtlpReceiver, torch_python: str, way: str) -> None:
    """By the real NCCL, in a communicator with one rank."""
    with through(way):
        pid = run(receiver, torch_python, "torch_ways.py", "nccl", str(TIMES))

    assert total(receiver, "gpu.nccl.collectives", pid) == TIMES
    assert total(receiver, "gpu.nccl.completions", pid) == TIMES
