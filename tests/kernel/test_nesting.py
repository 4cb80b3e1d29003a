"""Calls inside calls: parents, depth, and calls that never return to their caller."""

import pytest

from tests.kernel.agent import Agent, calls, losses, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

FULL = ("--spans", "full")


def test_a_driver_call_is_the_child_of_its_runtime_call(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A cuMemAlloc inside cudaMalloc is its child span; memory and calls count once."""
    command = [workload("nested"), stubs.runtime, "driver", "23"]
    with Agent(receiver, command, flags=FULL, env={"CUDA_STUB": "cudaMalloc:nest=1"}) as agent:
        pid = agent.wait().lines[0]["pid"]

    outer = spans(receiver, "cudaMalloc", pid)
    inner = spans(receiver, "cuMemAlloc", pid)
    assert (len(outer), len(inner)) == (23, 23)
    by_id = {span.span.span_id: span.span for span in outer}
    for child in (span.span for span in inner):
        parent = by_id.pop(child.parent_span_id)
        assert child.trace_id == parent.trace_id
        assert parent.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= parent.end_time_unix_nano
    assert all(span.span.parent_span_id == b"" for span in outer)
    assert calls(receiver, "cudaMalloc", pid, gpu__cuda__layer="runtime") == 23
    assert calls(receiver, "cuMemAlloc", pid, gpu__cuda__layer="driver") == 23
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 23 * 512
    assert losses(receiver) == {}


def test_a_failed_inner_call_brings_its_outer_call_along(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A chosen span is never an orphan: the call around it is sent too."""
    command = [workload("nested"), stubs.runtime, "driver", "7"]
    stub = "cudaMalloc:nest=1;cuMemAlloc_v2:fail=2"
    with Agent(receiver, command, env={"CUDA_STUB": stub}) as agent:
        pid = agent.wait().lines[0]["pid"]

    known = {span.span.span_id for span in receiver.spans()}
    inner = spans(receiver, "cuMemAlloc", pid)
    assert len(inner) == 7
    assert {span.attributes["error.type"] for span in inner} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert all(span.span.parent_span_id in known for span in inner)
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 0


def test_recursion_deeper_than_the_bound_is_a_loss_and_no_wrong_number(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Of 13 nested calls 8 are kept and 5 are counted as lost, for each of 7 outermost calls."""
    command = [workload("nested"), stubs.runtime, "recurse", "7"]
    stub = {"CUDA_STUB": "cudaFree:recurse=12"}
    with Agent(receiver, command, flags=FULL, env=stub) as agent:
        pid = agent.wait().lines[0]["pid"]

    found = spans(receiver, "cudaFree", pid)
    assert calls(receiver, "cudaFree", pid) == 7 * 8
    assert losses(receiver) == {"depth_exceeded": 7 * 5}
    assert len(found) == 7 * 8
    assert sum(span.span.parent_span_id == b"" for span in found) == 7


def test_a_call_left_by_longjmp_is_a_loss_and_later_calls_stand_alone(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The unwound call is counted as lost; the next one is not taken for its child."""
    command = [workload("nested"), stubs.runtime, "longjmp", "7"]
    with Agent(receiver, command, flags=FULL) as agent:
        pid = agent.wait().lines[0]["pid"]

    after = spans(receiver, "cudaMalloc", pid)
    assert calls(receiver, "cudaMalloc", pid) == 7
    assert calls(receiver, "cudaFree", pid) == 0
    assert [span.span.parent_span_id for span in after] == [b""] * 7
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 7 * 512
    # The last of the seven is still open when the process ends.
    assert sum(losses(receiver).values()) == 7


def test_a_tail_call_is_nested_in_the_call_that_made_it(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A call that ends in a jump to another API returns together with it; both count once."""
    command = [workload("nested"), stubs.runtime, "tail", "7"]
    with Agent(receiver, command, flags=FULL) as agent:
        pid = agent.wait().lines[0]["pid"]

    outer = spans(receiver, "cudaStreamCreateWithFlags", pid)
    inner = spans(receiver, "cudaStreamCreate", pid)
    assert (len(outer), len(inner)) == (7, 7)
    assert {span.span.parent_span_id for span in inner} == {span.span.span_id for span in outer}
    assert calls(receiver, "cudaStreamCreate", pid) == 7
    assert calls(receiver, "cudaStreamCreateWithFlags", pid) == 7
    assert losses(receiver) == {}


def test_a_thread_that_ends_inside_a_call_leaves_nothing_open(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Threads that die in a call are counted; whole calls of other threads are exact."""
    command = [workload("nested"), stubs.runtime, "exit", "7"]
    with Agent(receiver, command) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaFree", pid) == 7
    assert losses(receiver) == {"exit_inside_call": 7}
