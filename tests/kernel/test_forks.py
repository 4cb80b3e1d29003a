"""Forks are spans and a counter; threads are neither."""

import pytest

from tests.kernel.agent import Agent, calls, losses, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_by")]


def test_23_forks_are_23_spans_with_the_right_parent_and_child(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Each fork names its child by the pid that fork() returned; five threads add none."""
    with Agent(receiver, [workload("forks"), stubs.runtime, "23", "5"]) as agent:
        finished = agent.wait()
    # A child inherits the unflushed line, so the whole one is the last.
    line = finished.lines[-1]

    forks = spans(receiver, "process.fork", line["pid"])

    assert [span.attributes["otel_gpu.fork.child.pid"] for span in forks] == line["children"]
    assert len(line["children"]) == 23
    assert {span.scope for span in forks} == {"otel_gpu.process"}
    assert total(receiver, "process.forks", line["pid"]) == 23
    assert losses(receiver) == {}


def test_calls_of_children_and_threads_go_to_the_right_process(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A child's call belongs to the child, a thread's call to its process."""
    with Agent(receiver, [workload("forks"), stubs.runtime, "23", "5"]) as agent:
        line = agent.wait().lines[-1]

    assert calls(receiver, "cudaStreamSynchronize", line["pid"]) == 5
    assert calls(receiver, "cudaDeviceSynchronize", line["pid"]) == 1
    by_child = [calls(receiver, "cudaDeviceSynchronize", pid) for pid in line["children"]]
    assert by_child == [1] * 23
    tids = {
        span.attributes["otel_gpu.thread.tid"] for span in spans(receiver, "cudaStreamSynchronize")
    }
    assert line["pid"] not in tids
