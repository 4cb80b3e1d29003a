"""CUDA calls of an engine's worker under the steps of its core, which is another process."""

import sys
from pathlib import Path

import pytest

from tests.kernel.agent import ROOT, Agent, losses, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

SCRIPT = ROOT / "tests" / "workloads" / "served.py"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
REQUESTS = 23


def test_each_call_is_under_the_step_that_it_is_made_in(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """23 requests of 1 to 23 tokens: 23 steps of 14 calls, each linked to who still has a request."""
    command = [INSTRUMENT, sys.executable, SCRIPT, stubs.runtime, REQUESTS]
    env = {
        "PYTHONPATH": str(ROOT),
        "OTEL_GPU_STACKS_ENABLED": "false",
    }
    with Agent(receiver, command, flags=["--spans", "full"], env=env) as agent:
        (line,) = agent.wait().lines

    steps = sorted(
        spans(receiver, "gpu.inference.step"),
        key=lambda one: one.attributes["gpu.inference.step.number"],
    )
    linked = [[int.from_bytes(link.trace_id, "big") for link in step.span.links] for step in steps]
    assert [step.span.parent_span_id for step in steps] == [b""] * REQUESTS
    assert linked == [list(range(number, REQUESTS + 1)) for number in range(1, REQUESTS + 1)]

    found = {
        one.attributes["gpu.cuda.size"]: one for one in spans(receiver, "cudaMalloc", line["pid"])
    }
    parents = {
        number: (found[number].span.trace_id, found[number].span.parent_span_id) for number in found
    }
    wanted = {
        number: (step.span.trace_id, step.span.span_id)
        for step, numbers in zip(steps, line["steps"], strict=True)
        for number in numbers
    }
    assert len(wanted) == REQUESTS * 14
    assert {number: parents.get(number) for number in wanted} == wanted
    assert [parents[number][1] for number in line["after"]] == [b""] * 7
    # The agent is told of each, too.
    told = points(receiver, "gpu.step.duration", gpu__step__source="program")
    assert sum(one.point.count for one in told) == REQUESTS
    assert losses(receiver) == {}
